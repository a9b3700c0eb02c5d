"""Progress of a run on standard error, a line every few seconds, and what logs say of it."""

import re
import sys
import time
from pathlib import Path

LOG_EVERY_SECONDS = 5.0
_TRAINED = re.compile(r" (\d+)/(\d+)  entropy ([\d.]+)  accuracy ([\d.]+)")


def trained_steps(log: Path) -> list[tuple[float, ...]]:
    """Step, number of steps, entropy (nats) and accuracy of each line about training in a log.

    Empty without a log.
    """
    text = log.read_text("utf-8", errors="replace") if log.is_file() else ""
    return [tuple(map(float, line)) for line in _TRAINED.findall(text)]


class Progress:
    """`progress = Progress("train", steps)`, then `progress.step(entropy=..., accuracy=...)` after every step.

    `done` steps were completed by an earlier process. `shown` is False on all ranks but one.
    """

    def __init__(self, name: str, total: int, done: int = 0, shown: bool = True):
        self.name, self.total, self.shown = name, total, shown
        self.done = self.done_before = done
        self.start, self.last_line = time.monotonic(), float("-inf")

    def step(self, **values: float) -> None:
        """Record that a step is done; `values` are shown beside it."""
        self.done += 1
        now = time.monotonic()
        if self.shown and (now - self.last_line >= LOG_EVERY_SECONDS or self.done == self.total):
            self.last_line = now
            left = (now - self.start) / (self.done - self.done_before) * (self.total - self.done)
            text = "  ".join(f"{name} {value:z.3f}" for name, value in values.items())
            print(f"{self.name} {self.done}/{self.total}  {text}  {left:.0f} s left", file=sys.stderr, flush=True)
