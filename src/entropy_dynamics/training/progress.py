"""Progress of a run on standard error: a bar on a terminal, plain lines in a log."""

import sys
import time

from tqdm import tqdm

LOG_EVERY_SECONDS = 5.0


class Progress:
    """`with Progress("train", steps) as progress: progress.step(entropy=..., accuracy=...)`, on standard error."""

    def __init__(self, name: str, total: int, done: int = 0, shown: bool = True):
        """done: steps of an earlier process. shown: whether this process is the one that shows progress."""
        self.name = name
        self.total = total
        self.done = self.done_before = done
        self.shown = shown
        self.start = time.monotonic()
        self.last_line = float("-inf")
        self.bar = None
        if shown and sys.stderr.isatty():
            self.bar = tqdm(total=total, initial=done, desc=name, dynamic_ncols=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        if self.bar is not None:
            self.bar.close()

    def step(self, **values: float) -> None:
        """One more step is done; `values` are shown beside it."""
        self.done += 1
        if not self.shown:
            return
        shown = {name: f"{value:.3f}" for name, value in values.items()}
        if self.bar is not None:
            self.bar.set_postfix(shown)
            self.bar.update()
            return
        now = time.monotonic()
        if now - self.last_line >= LOG_EVERY_SECONDS or self.done == self.total:
            self.last_line = now
            left = (now - self.start) / (self.done - self.done_before) * (self.total - self.done)
            text = "  ".join(f"{name} {value}" for name, value in shown.items())
            print(f"{self.name} {self.done}/{self.total}  {text}  {left:.0f} s left", file=sys.stderr, flush=True)
