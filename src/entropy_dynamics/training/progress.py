"""Progress of a run on standard error: a bar on a terminal, otherwise plain lines."""

import sys
import time
from contextlib import AbstractContextManager

from tqdm import tqdm

LOG_EVERY_SECONDS = 5.0


class Progress(AbstractContextManager["Progress"]):
    """`with Progress("train", steps) as progress: progress.step(entropy=..., accuracy=...)`, on standard error.

    `done` steps were completed by an earlier process. `shown` is False on all ranks but one.
    """

    def __init__(self, name: str, total: int, done: int = 0, shown: bool = True):
        self.name, self.total, self.shown = name, total, shown
        self.done = self.done_before = done
        self.start, self.last_line = time.monotonic(), float("-inf")
        terminal = shown and sys.stderr.isatty()
        self.bar = tqdm(total=total, initial=done, desc=name, dynamic_ncols=True, disable=not terminal)

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def step(self, **values: float) -> None:
        """Record that a step is done; `values` are shown beside it."""
        self.done += 1
        shown = {name: f"{value:.3f}" for name, value in values.items()}
        self.bar.set_postfix(shown)
        self.bar.update()
        now = time.monotonic()
        due = now - self.last_line >= LOG_EVERY_SECONDS or self.done == self.total
        if self.shown and self.bar.disable and due:
            self.last_line = now
            left = (now - self.start) / (self.done - self.done_before) * (self.total - self.done)
            text = "  ".join(f"{name} {value}" for name, value in shown.items())
            print(f"{self.name} {self.done}/{self.total}  {text}  {left:.0f} s left", file=sys.stderr, flush=True)
