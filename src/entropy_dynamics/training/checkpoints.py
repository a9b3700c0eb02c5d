"""Checkpoints: the state of a run, written atomically and readable with a different number of ranks.

Tensors go through torch.distributed.checkpoint's safetensors writer (its default writer pickles), everything else into
one JSON file, which is written last. It holds the hash of every other file, so that a damaged checkpoint is detected
and the previous one used instead. No random state is stored: random numbers depend only on the seed and the step.
"""

import json
import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

from entropy_dynamics.distributed.lock import held
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import storage_faults
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import flush, sha256, write_json
from entropy_dynamics.results.layout import CHECKPOINT_FILE_BYTES
from entropy_dynamics.results.provenance import fingerprint
from entropy_dynamics.sampling import Rollout
from entropy_dynamics.training.optimizer import Trained

RECORD = "checkpoint.json"
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


class Checkpoints:
    """The checkpoints of one run, in the folders <fingerprint of config and inputs>/step<n> after n steps.

    Args:
        made_from: config and hashes of the inputs. Checkpoints made from anything else are never resumed or deleted.
        made_by: method, code and packages. One by a longer run or other code is resumed, its maker is in `earlier`.
        kept: number of most recent checkpoints to keep.
    """

    def __init__(self, root: Path, ranks: Ranks, *, made_from: dict[str, Any], made_by: dict[str, Any], kept: int):
        self.root, self.folder = root, root / fingerprint(made_from)
        self.ranks, self.made_from, self.made_by, self.kept = ranks, made_from, made_by, kept
        self.earlier: list[dict[str, Any]] = []  # other makers of some of the steps
        self.ahead: list[list[Rollout]] = []  # rollouts sampled ahead, from the checkpoint that was resumed
        self.latest = 0  # steps done at the latest complete checkpoint; none is needed before the first step
        self.damaged: list[Path] = []  # skipped by `resume`; deleted after the next complete checkpoint

    def save(
        self,
        trained: Trained,
        rows: list[dict[str, float]],
        method_state: dict[str, float],
        ahead: Sequence[Sequence[Rollout]] = (),
        finished: bool = False,
    ) -> None:
        """Write a checkpoint after `len(rows)` steps, unless the latest is of the same step, and delete older ones.

        Raises UserError if it cannot be written.

        Args:
            rows: the metrics of every step so far.
            ahead: rollouts already sampled for the next steps (`training.staleness`).
            finished: the run has no more steps: the optimizer's state is left out.
        """
        if len(rows) == self.latest:
            return
        temporary = self.folder / f".step{len(rows)}.partial"
        if self.ranks.is_main:
            for stale in self.folder.glob(".step*.partial"):  # left by a run that was killed
                shutil.rmtree(stale)
        self.ranks.barrier()
        record = {"steps_done": len(rows), "made_from": self.made_from, "rows": rows, "method": method_state}
        record |= {"made_by": [*self.earlier, self.made_by], "finished": finished}
        record["ahead"] = [[vars(rollout) for rollout in rollouts] for rollouts in ahead]
        tensors = _tensors(trained, finished)
        writer = HuggingFaceStorageWriter(str(temporary), _file_numbers(tensors), save_distributed=True)
        try:
            with storage_faults(f"checkpoint {temporary}"):
                dcp.save(tensors, storage_writer=writer, no_dist=self.ranks.mesh is None)
                record["files"] = self._hashes(temporary, to_disk=True)
                if self.ranks.is_main:
                    write_json(temporary / RECORD, record | {"sha256": fingerprint(record)})
                    self._rename(temporary, self.folder / f"step{len(rows)}")
        except BaseException:  # leave nothing half-written after Ctrl-C or on a full disk
            if self.ranks.is_main:
                shutil.rmtree(temporary, ignore_errors=True)
            raise
        self.ranks.barrier()
        self.latest, self.damaged = len(rows), []

    def leave(self, lock: Path, trained: Trained, rows: list[dict[str, float]], method_state: dict[str, float]) -> None:
        """Write the last checkpoint of this run from a longer one, unless another job holds the `lock` of this run."""

        def locks() -> bool:
            with suppress(UserError):
                stack.enter_context(held(lock))
                return True
            return False

        with ExitStack() as stack:
            if self.ranks.on_main(locks):
                self.save(trained, rows, method_state, finished=True)
            else:
                self.ranks.note(f"another job trains the run of {len(rows)} steps, so it gets no checkpoint from here")

    def _rename(self, temporary: Path, final: Path) -> None:
        if final.exists():  # damaged, or made by a longer run that repeats this step
            shutil.rmtree(final)
        temporary.rename(final)
        flush(self.folder)
        damaged = {*self.damaged} - {final}  # which this one has replaced
        undamaged = [path for path in self._steps() if path not in damaged]
        for path in {*damaged, *undamaged[: -self.kept]}:
            shutil.rmtree(path, ignore_errors=True)

    def resume(self, trained: Trained) -> tuple[list[dict[str, float]], dict[str, float]]:
        """Load the latest undamaged checkpoint of this run into `trained`; damaged ones are skipped with a note.

        Returns the metrics of the completed steps and the method's state; both are empty if there is no checkpoint.
        """
        for name in reversed(self.ranks.on_main(lambda: [path.name for path in self._steps()])):
            path = self.folder / name
            record = self.ranks.on_main(partial(_read_record, path))
            if record is not None and record["files"] == self._hashes(path):
                tensors = _tensors(trained, record.get("finished", False))
                with storage_faults(f"checkpoint {path}"):  # loads in place
                    reader = HuggingFaceStorageReader(str(path))
                    dcp.load(tensors, storage_reader=reader, no_dist=self.ranks.mesh is None)
                self.latest = record["steps_done"]
                self.ahead = [[Rollout(**each) for each in rollouts] for rollouts in record.get("ahead", [])]
                self.earlier = [by for by in record["made_by"] if _maker(by) != _maker(self.made_by)]
                return record["rows"], record["method"]
            self.damaged.append(path)
            self.ranks.note(f"checkpoint {path} is damaged and is skipped")
        return [], {}

    def _hashes(self, path: Path, to_disk: bool = False) -> dict[str, str]:
        """SHA-256 of every file of a checkpoint except its record, by name; `to_disk` also flushes each."""
        names = self.ranks.on_main(lambda: sorted({file.name for file in path.iterdir() if file.is_file()} - {RECORD}))

        def digest(name: str) -> str:
            if to_disk:
                flush(path / name)
            return sha256(path / name)

        return dict(zip(names, self.ranks.map(digest, names), strict=True))

    def others(self) -> list[Path]:
        """Folders with checkpoints of this run from a different config or different inputs."""
        return [path for path in self.root.glob("*") if path != self.folder]

    def delete(self) -> None:
        """Delete this run's checkpoints, once its results are written. To be called on one rank."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):
            self.root.rmdir()  # fails if it holds checkpoints of another config

    def _steps(self) -> list[Path]:
        steps = [path for path in self.folder.glob("step*") if re.fullmatch(r"step\d+", path.name)]
        return sorted(steps, key=lambda path: int(path.name.removeprefix("step")))


def _read_record(path: Path) -> dict[str, Any] | None:
    """The record of a checkpoint; None if it is missing or damaged."""
    with suppress(FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        record = json.loads((path / RECORD).read_text(encoding="utf-8"))
        if record.pop("sha256") == fingerprint(record):
            return record
    return None


def checkpoint_bytes(trained: Trained) -> int:
    """Checkpoint size in bytes, over all ranks: every weight and its two Adam moments."""
    weights = (weight for module, _ in trained.values() for weight in module.parameters())
    return sum(3 * weight.numel() * weight.element_size() for weight in weights)


def _file_numbers(tensors: dict[str, Tensor]) -> dict[str, int]:
    """File number of each tensor, from 1. Files are filled in order."""
    ends = accumulate(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    return {name: 1 + (end - 1) // CHECKPOINT_FILE_BYTES for name, end in zip(tensors, ends, strict=True)}


def _maker(made_by: dict[str, Any]) -> list[Any]:
    # not the commit, which may differ for equal code
    return [made_by.get(key) for key in ("method", "code_sha256", "packages")]


def _tensors(trained: Trained, finished: bool) -> dict[str, Tensor]:
    """The weights, tied ones once, and, unless `finished`, the optimizers' tensors; they are those in use, not copies.

    The remaining state, the optimizer's settings, comes from the config.
    """
    tensors = {}
    for name, (module, optimizer) in trained.items():
        model, optim = get_state_dict(module, optimizer, options=_FLAT)  # tied weights under each of their names
        tensors |= {f"{name}/model/{key}": model[key] for key, _ in module.named_parameters()}
        if not finished:
            tensors |= {f"{name}/optimizer/{key}": value for key, value in optim.items() if isinstance(value, Tensor)}
    return tensors
