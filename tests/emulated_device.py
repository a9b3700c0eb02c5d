"""An emulated accelerator: tensors that claim to be on it compute on the CPU, and keep PyTorch's rules on devices.

A test that passes here does not prove that code runs on a GPU. One that fails shows that it would not: every mix of
devices that PyTorch refuses is refused, with PyTorch's own rules:

- operands are on one device; a CPU tensor without dimensions that is not written to may be mixed in, but only with
  element-wise operators: not with products, cat, gather, scatter, embedding or searchsorted;
- a tensor on the device may be indexed by CPU indices, a CPU tensor may not be indexed by indices on the device;
- the value of `index_put` is on the device of the tensor that it is written to;
- a generator is on the device of what it draws;
- CUDA has no matrix product of integers;
- `numpy()` needs a CPU tensor.

`is_cuda` is true of its tensors, so what the code does on CUDA alone is run.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import MagicMock, patch

import torch
from torch import Tensor
from torch._C import DisableTorchFunctionSubclass
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "emulated"
COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default}
INDEXING = {
    aten.index.Tensor,
    aten._unsafe_index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}

PRODUCTS = {getattr(aten, name).default for name in ("mm", "bmm", "addmm", "baddbmm", "mv", "dot")}
TAKE_SCALARS = {  # they read a CPU tensor without dimensions as a number, though they are not tagged as element-wise
    aten.fill.Tensor,
    aten.fill_.Tensor,
    aten.masked_fill.Tensor,
    aten.masked_fill_.Tensor,
}


class DeviceError(RuntimeError):
    """An operation that PyTorch would refuse on a real device."""


class _Backend:
    """The functions that PyTorch looks up in `torch.<device type>`."""

    is_initialized = is_available = staticmethod(lambda: True)
    _is_in_bad_fork = staticmethod(lambda: False)
    current_device = staticmethod(lambda: 0)
    device_count = staticmethod(lambda: 1)
    get_rng_state = staticmethod(lambda device: torch.zeros(0, dtype=torch.uint8))  # for fork_rng, in other tests
    set_rng_state = staticmethod(lambda state, device: None)
    manual_seed_all = staticmethod(lambda seed: None)
    current_stream = stream = Stream = MagicMock()  # all work is done when its call returns
    get_amp_supported_dtype = staticmethod(lambda: [torch.bfloat16])


_setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
DEVICE = torch.device(NAME, 0)


class DeviceTensor(Tensor):
    """A tensor on the emulated device; `on_cpu` holds its values."""

    on_cpu: Tensor

    @staticmethod
    def __new__(cls, on_cpu: Tensor) -> "DeviceTensor":
        self = Tensor._make_wrapper_subclass(
            cls,
            on_cpu.size(),
            strides=on_cpu.stride(),
            storage_offset=on_cpu.storage_offset(),
            dtype=on_cpu.dtype,
            device=DEVICE,
        )
        self.on_cpu = on_cpu
        return self

    def __repr__(self, **_: Any) -> str:
        return f"{type(self).__name__}({self.on_cpu})"

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is Tensor.tolist:  # a copy to the host, which PyTorch does not offer for subclasses
            return args[0].on_cpu.tolist()
        if function == Tensor.is_cuda.__get__:
            return True
        if function is Tensor.numpy:
            raise DeviceError(f"can't convert {NAME}:0 device type tensor to numpy; copy it to host memory first")
        with DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, operator, types, args=(), kwargs=None):
        return _execute(operator, args, kwargs or {})


class _Generator(torch.Generator):
    """`torch.Generator` with the emulated device as another choice.

    Operators see another Python object of the same generator, so its address tells what it claims.
    """

    claiming: ClassVar[set[int]] = set()

    def __new__(cls, device: torch.device | str = "cpu") -> "_Generator":
        self = super().__new__(cls)
        change = cls.claiming.add if torch.device(device).type == NAME else cls.claiming.discard
        change(self._cdata)  # an address may have been another's
        return self

    @property
    def device(self) -> torch.device:
        return DEVICE if self._cdata in self.claiming else torch.device("cpu")


class _Emulation(TorchDispatchMode):
    """Needed for operators without a tensor on the device among their arguments, such as `torch.zeros`."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), COMPOSITE):
            return _execute(operator, args, kwargs or {})
        with self:  # in inference mode, composite operators arrive in one piece
            return operator._op_dk(COMPOSITE, *args, **(kwargs or {}))  # not `decompose`: torch 2.11 has wrong ones


@contextmanager
def emulated_device() -> Iterator[torch.device]:
    """The device, inside a context in which tensors can be created on it."""
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device=...) is then a copy that the mode sees
    torch.__future__.set_swap_module_params_on_conversion(True)  # without it, Module.to would untie tied weights
    try:
        capability = patch.object(torch.cuda, "get_device_capability", lambda device: (9, 0))
        with capability, patch.object(torch, "Generator", _Generator), _Emulation():
            yield DEVICE
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_swap_module_params_on_conversion(False)


def _execute(operator: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    leaves = tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    on_device = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
    device = kwargs.get("device")
    goes_to_device = bool(on_device) if device is None else torch.device(device).type == NAME
    if operator not in COPIES:
        _check(operator, args, kwargs, tensors)
        for generator in (leaf for leaf in leaves if isinstance(leaf, torch._C.Generator)):
            if (generator._cdata in _Generator.claiming) != goes_to_device:
                raise DeviceError(f"{operator}: the generator is on another device than what it draws")
    if device is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    values, options = tree_map_only(DeviceTensor, lambda tensor: tensor.on_cpu, (args, kwargs))
    if operator is aten.mm.dtype:  # factors in bf16, a product in fp32: only CUDA has that
        operator, values = aten.mm.default, [factor.to(values[2]) for factor in values[:2]]
    result = operator(*values, **options)
    if operator is aten.copy_.default:
        return args[0]
    if not goes_to_device:
        return result
    arguments = {id(tensor.on_cpu): tensor for tensor in on_device}  # in-place operators return their argument
    return tree_map_only(Tensor, lambda one: arguments[id(one)] if id(one) in arguments else DeviceTensor(one), result)


def _check(operator: Any, args: tuple, kwargs: dict[str, Any], tensors: list[Tensor]) -> None:
    hosts = [tensor for tensor in tensors if not isinstance(tensor, DeviceTensor)]
    if len(hosts) == len(tensors):
        return
    if operator in PRODUCTS and not args[0].is_floating_point():
        raise DeviceError(f"{operator}: not implemented for {args[0].dtype}")
    if operator in INDEXING:
        if not isinstance(args[0], DeviceTensor):
            raise DeviceError("indices should be either on cpu or on the same device as the indexed tensor (cpu)")
        hosts = [tensor for tensor in args[2:3] if not isinstance(tensor, DeviceTensor)]
    arguments = operator._schema.arguments
    given = dict(zip((one.name for one in arguments), args, strict=False)) | kwargs
    outputs = [given.get(one.name) for one in arguments if one.alias_info and one.alias_info.is_write]
    written = {id(one) for one in tree_leaves(outputs)}
    mixes = torch.Tag.pointwise in operator.tags or operator in INDEXING | TAKE_SCALARS
    if any(not mixes or tensor.dim() or id(tensor) in written for tensor in hosts):
        raise DeviceError(f"{operator}: expected all tensors to be on the same device, but found {NAME}:0 and cpu")
