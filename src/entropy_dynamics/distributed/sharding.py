"""FSDP2: parameters, gradients and optimizer states are sharded over the ranks and gathered block by block.

With several nodes, this applies within each node; nodes replicate the shards and average their gradients (HSDP).
A module is built on the meta device, sharded, and then filled from safetensors, so that no rank ever holds the whole
model. Master weights and reductions are fp32, whatever the precision of the forward and backward passes.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError
from torch import nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import GENERATION_CONFIG_NAME

from entropy_dynamics.distributed.precision import PRECISIONS
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError


def empty_model(directory: Path) -> PreTrainedModel:
    """The model in `directory` in fp32 on the meta device, i.e. shapes without values."""
    config = AutoConfig.from_pretrained(directory, trust_remote_code=False, local_files_only=True)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)
    if (directory / GENERATION_CONFIG_NAME).is_file():  # from_config ignores it
        model.generation_config = GenerationConfig.from_pretrained(directory, local_files_only=True)
    return model


def shard(module: nn.Module, blocks: Iterable[nn.Module], precision: str, ranks: Ranks) -> None:
    """Shard `module` over the ranks in place: each of `blocks` separately, then the rest.

    Computation is in `precision`, gradient reduction in fp32. Only the outermost module casts its outputs to fp32, as
    the output of a block is the input of the next.
    """
    compute = None if precision == "float32" else PRECISIONS[precision]
    inner = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    outer = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32, output_dtype=torch.float32)
    for block in blocks:
        fully_shard(block, mesh=ranks.mesh, mp_policy=inner)
    fully_shard(module, mesh=ranks.mesh, mp_policy=outer)


def fill(module: nn.Module, directory: Path, name_in_file: Callable[[str], str | None], ranks: Ranks) -> None:
    """Materialize a sharded module from the safetensors files in `directory`; each rank keeps its shard.

    `name_in_file` maps a parameter's name to its name in the files, or to None if it is initialized to 0. Raises
    UserError if a file is damaged, or if a parameter is missing or has a different shape.
    """
    module.to_empty(device=ranks.device)
    _rebuild_buffers(module, ranks.device)
    wanted = {}
    for name, parameter in module.named_parameters():
        if (source := name_in_file(name)) is None:
            nn.init.zeros_(parameter)
        else:
            wanted[source] = parameter.detach()
    with storage_faults(f"the weights in {directory} cannot be loaded"):
        dcp.load(wanted, storage_reader=HuggingFaceStorageReader(str(directory)))


@contextmanager
def storage_faults(what: str) -> Iterator[None]:
    """Turn a failure on any rank to read or write `what` into a one-line UserError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # intended: `no_dist`
            yield
    except (dcp.api.CheckpointException, SafetensorError, OSError) as error:
        causes = getattr(error, "failures", {None: (error, None)})
        cause = str(next(iter(causes.values()))[0]) or type(error).__name__
        raise UserError(f"{what}: {cause.splitlines()[0]}") from error


def _rebuild_buffers(module: nn.Module, device: torch.device) -> None:
    """Recreate modules whose buffers are computed from the config (rotary frequencies) and are not in any file."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if child._non_persistent_buffers_set:
                if not hasattr(child, "config"):
                    raise UserError(f"{name} of the model has values that are in no file: set hardware.ranks to null")
                setattr(parent, name, type(child)(config=child.config).to(device))


def sync_gradients(module: nn.Module, now: bool) -> None:
    """Choose whether the next backward pass reduces gradients over the ranks (`now`) or only accumulates them locally.

    Accumulation saves reductions, but keeps an unsharded fp32 gradient on every rank until the last micro-batch.
    """
    if isinstance(module, FSDPModule):
        module.set_requires_gradient_sync(now)


def release(module: nn.Module) -> None:
    """Reshard after a forward pass without a backward pass; otherwise the outermost parameters would stay gathered."""
    if isinstance(module, FSDPModule):
        module.reshard()


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The full, detached tensor: a DTensor is gathered from the ranks."""
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
