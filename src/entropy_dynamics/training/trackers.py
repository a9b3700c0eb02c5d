"""TensorBoard, Weights & Biases and Trackio, if the config lists them; metrics.parquet is always written."""

import hashlib
import importlib
import math
import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from types import ModuleType
from typing import Any

from entropy_dynamics.config import RunConfig, settings_of
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.layout import Layout

PROJECT = "entropy-dynamics"


class Trackers(ExitStack):
    """The trackers in `config.trackers` for one run, as a context manager that flushes and closes them."""

    def __init__(self, config: RunConfig, layout: Layout, method: str, seed: int, *, enabled: bool = True) -> None:
        """
        Args:
            enabled: True on one rank only.

        Raises:
            UserError: a tracker is not installed or does not start.
        """
        super().__init__()
        logs, run = layout.root / "logs", Path(config.model.name, method, f"seed{seed}")
        kinds: dict[str, Callable[[], _TensorBoard | _WandB | _Trackio]] = {
            "tensorboard": lambda: _TensorBoard(logs / "tensorboard" / run),
            "wandb": lambda: _WandB(config, logs, str(Path(config.scale, run))),
            "trackio": lambda: _Trackio(config, logs, str(Path(config.scale, run))),
        }
        self._open = [self.enter_context(closing(kinds[name]())) for name in config.trackers if enabled]

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Log the metrics of a step, except those that are NaN."""
        numbers = {name: float(value) for name, value in metrics.items() if name != "step" and not math.isnan(value)}
        for tracker in self._open:
            tracker.log(step, numbers)


class _TensorBoard:
    def __init__(self, directory: Path) -> None:
        _import("tensorboard")
        self._directory = directory
        self._writer: Any = None

    def log(self, step: int, numbers: dict[str, float]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # A resumed run repeats the steps since its checkpoint: purge their earlier events.
            self._writer = SummaryWriter(str(self._directory), purge_step=step)
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class _WandB:
    """Online, offline or disabled, according to wandb's own WANDB_MODE."""

    def __init__(self, config: RunConfig, directory: Path, name: str) -> None:
        wandb = _import("wandb")
        directory.mkdir(parents=True, exist_ok=True)
        try:
            self._run = wandb.init(
                project=PROJECT,
                id=_identity(config, directory, name),
                resume="allow",  # a run resumed from a checkpoint continues the same wandb run
                name=name,
                config=config.model_dump(),
                dir=str(directory),
            )
        except wandb.Error as error:
            raise UserError(f"wandb does not start: {' '.join(str(error).split())}") from error

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step)

    def close(self) -> None:
        self._run.finish()


class _Trackio:
    """Logs to TRACKIO_DIR, by default logs/trackio; `trackio show` reads the same variable (docs/results.md)."""

    def __init__(self, config: RunConfig, directory: Path, name: str) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(directory / "trackio"))  # read when trackio is imported
        trackio = _import("trackio")
        name = f"{name} {_identity(config, directory, name)[:6]}"  # its runs have no other id
        self._run = trackio.init(project=PROJECT, name=name, resume="allow", config=config.model_dump(), embed=False)

    def log(self, step: int, numbers: dict[str, float]) -> None:
        self._run.log(numbers, step=step)

    def close(self) -> None:
        self._run.finish()


def _identity(config: RunConfig, directory: Path, name: str) -> str:
    """The same for a run resumed from a checkpoint only: a run of other results or settings is another run."""
    return hashlib.sha256(f"{directory.resolve()} {name} {settings_of('train', config)}".encode()).hexdigest()[:16]


def _import(tracker: str) -> ModuleType:
    try:
        return importlib.import_module(tracker)
    except ImportError:
        raise UserError(
            f'trackers: {tracker} is not installed: pip install "entropy-dynamics[trackers]", or take it off the list'
        ) from None
