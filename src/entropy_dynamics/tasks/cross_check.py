"""Math-Verify beside our own grading: how often the two agree. It never changes a grade.

Math-Verify hands what a model wrote to a computer algebra system, where 9^{9^{9^9}} computes without end inside one C
function, so it runs in a process of its own: `python -m entropy_dynamics.tasks.cross_check` reads a JSON object a line
from stdin and writes one a line to stdout. It is killed when an answer takes too long, and started anew.
"""

import json
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from typing import Self

LIMIT_SECONDS = 5.0  # for one answer
START_SECONDS = 120.0  # for the import of SymPy on a busy machine
ORPHAN_SECONDS = 60  # after which a worker that nobody kills ends itself
MEMORY_BYTES = 4 * 2**30

COUNTS = ("checked", "agree", "ours_only", "theirs_only", "timeout", "crash")


def cross_check(responses: Iterable[tuple[str, int, bool]], limit_seconds: float = LIMIT_SECONDS) -> dict[str, int]:
    """Grade each (text, answer, whether we found it correct) by Math-Verify too and count what came of it.

    `agree`, `ours_only` (correct by our grading alone), `theirs_only`, `timeout` and `crash` add up to `checked`.
    """
    counts = dict.fromkeys(COUNTS, 0)
    with MathVerify(limit_seconds) as theirs:
        for text, answer, correct in responses:
            verdict = theirs.correct(text, answer)
            if isinstance(verdict, bool):
                verdict = "agree" if verdict == correct else "ours_only" if correct else "theirs_only"
            counts[verdict] += 1
            counts["checked"] += 1
    return counts


class MathVerify:
    """The worker process; use it in a `with` block, which ends it."""

    def __init__(self, limit_seconds: float = LIMIT_SECONDS):
        self.limit_seconds = limit_seconds
        self.process: subprocess.Popen | None = None
        self.starts = True  # false once it did not: it will not the next time either

    def correct(self, text: str, answer: int) -> bool | str:
        """Whether Math-Verify finds the answer in `text`, or "timeout", or "crash"."""
        if self.process is None:
            self.starts = self.starts and self._start()
        if not self.starts:
            return "crash"
        try:
            deadline = time.monotonic() + self.limit_seconds
            self._write_line({"text": text, "answer": answer}, deadline)
            verdict = self._read_line(deadline)["correct"]
        except (OSError, ValueError) as error:  # it has ended, it is ending, or it is still at it
            self.close()
            return "timeout" if isinstance(error, TimeoutError) else "crash"
        return "crash" if verdict is None else verdict

    def close(self) -> None:
        """Kill the worker, if there is one."""
        if self.process is not None:
            self.process.kill()
            with self.process:  # closes its pipes and waits for it
                pass
            self.process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _start(self) -> bool:
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "entropy_dynamics.tasks.cross_check"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        os.set_blocking(self.process.stdin.fileno(), False)  # a long text fills the pipe of a worker that hangs
        try:
            self._read_line(time.monotonic() + START_SECONDS)
        except (OSError, ValueError):
            self.close()
            return False
        return True

    def _write_line(self, question: dict, deadline: float) -> None:
        """Raises TimeoutError, or OSError if the worker has ended."""
        pipe, line = self.process.stdin.fileno(), json.dumps(question).encode() + b"\n"
        while line:
            _wait(pipe, select.POLLOUT, deadline)
            line = line[os.write(pipe, line) :]

    def _read_line(self, deadline: float) -> dict:
        """The next line of the worker. Raises TimeoutError, or ValueError if it ends before."""
        pipe, line = self.process.stdout.fileno(), b""
        while not line.endswith(b"\n"):
            _wait(pipe, select.POLLIN, deadline)
            part = os.read(pipe, 4096)
            if not part:
                raise ValueError("the worker has ended")
            line += part
        return json.loads(line)


def _wait(pipe: int, event: int, deadline: float) -> None:
    """Until `event` can be had of the pipe. Raises TimeoutError."""
    poll = select.poll()
    poll.register(pipe, event)
    if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
        raise TimeoutError


def _work() -> None:
    """Answer questions until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # whatever a library prints is no reply
    logging.disable()
    from math_verify import parse, verify

    print(json.dumps({"ready": True}), file=replies)
    for line in sys.stdin:
        signal.alarm(ORPHAN_SECONDS)  # without a handler the system ends the process, whatever it is at
        question = json.loads(line)
        try:  # no limits of Math-Verify's own: they wait for Python, which a long multiplication does not let in
            gold = parse(str(question["answer"]), parsing_timeout=None)
            verdict = bool(verify(gold, parse(question["text"], parsing_timeout=None), timeout_seconds=None))
        except Exception:
            verdict = None
        signal.alarm(0)
        print(json.dumps({"correct": verdict}), file=replies)


if __name__ == "__main__":
    _work()
