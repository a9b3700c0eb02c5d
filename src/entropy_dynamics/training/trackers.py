"""TensorBoard, Weights & Biases and Trackio, if the config lists them; metrics.parquet is always written."""

import hashlib
import importlib
import math
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from entropy_dynamics.config import RunConfig, settings_of
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.layout import Layout

PROJECT = "entropy-dynamics"
Log = Callable[[int, dict[str, float]], None]


class Trackers(ExitStack):
    """The trackers in `config.trackers` for one run, as a context manager that flushes and closes them.

    `enabled` is True on one rank only. Raises ModuleNotFoundError if a tracker is not installed, and UserError if it
    does not start.
    """

    def __init__(self, config: RunConfig, layout: Layout, method: str, seed: int, *, enabled: bool = True) -> None:
        super().__init__()
        logs, run = layout.root / "logs", Path(config.model.name, method, f"seed{seed}")
        try:
            self._logs = [
                self._tensorboard(logs / name / run) if name == "tensorboard" else self._wandb(name, config, logs, run)
                for name in config.trackers
                if enabled
            ]
        except BaseException:
            self.close()  # those that have started
            raise

    def log(self, step: int, metrics: dict[str, Any]) -> None:
        """Log the metrics of a step, except those that are NaN."""
        numbers = {name: float(value) for name, value in metrics.items() if name != "step" and not math.isnan(value)}
        for log in self._logs:
            log(step, numbers)

    def _tensorboard(self, directory: Path) -> Log:
        importlib.import_module("tensorboard")  # fails before anything runs
        writers: list[Any] = []

        def log(step: int, numbers: dict[str, float]) -> None:
            if not writers:
                from torch.utils.tensorboard import SummaryWriter

                # A resumed run repeats the steps since its checkpoint: purge their earlier events.
                writers.append(self.enter_context(SummaryWriter(str(directory), purge_step=step)))
            for name, value in numbers.items():
                writers[0].add_scalar(name, value, step)

        return log

    def _wandb(self, package: str, config: RunConfig, directory: Path, run: Path) -> Log:
        """Weights & Biases (WANDB_MODE says whether online), or Trackio, which has the same interface.

        Trackio logs to TRACKIO_DIR, by default logs/trackio; `trackio show` reads the same variable (docs/results.md).
        """
        os.environ.setdefault("TRACKIO_DIR", str(directory / "trackio"))  # read when trackio is imported
        module = importlib.import_module(package)
        directory.mkdir(parents=True, exist_ok=True)
        name = str(Path(config.scale, run))
        # The same for a run resumed from a checkpoint only: a run of other results or settings is another run.
        key = f"{directory.resolve()} {name} {settings_of('train', config)}"
        identity = hashlib.sha256(key.encode()).hexdigest()[:16]
        own = {"id": identity, "name": name, "dir": str(directory)}
        if package == "trackio":  # its runs have no other id than the name
            own = {"name": f"{name} {identity[:6]}", "embed": False}
        try:
            opened = module.init(project=PROJECT, resume="allow", config=config.model_dump(), **own)
        except getattr(module, "Error", ()) as error:
            raise UserError(f"{package} does not start: {' '.join(str(error).split())}") from error
        self.callback(opened.finish)
        return lambda step, numbers: opened.log(numbers, step=step)
