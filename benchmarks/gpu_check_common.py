"""Shared by the stages of `gpu_check.py`: their record, time budget and processes."""

import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from entropy_dynamics.config import load_config
from entropy_dynamics.distributed.launch import RENDEZVOUS, end_with_parent
from entropy_dynamics.methods import method_types
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.provenance import hardware, provenance

MODEL = "qwen2.5-7b-instruct"
START_SECONDS = 15  # imports and CUDA, per process [estimate]
RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
Case = dict[str, Any]


class Check:
    """The record of one stage and its time budget."""

    def __init__(
        self,
        stage: str,
        out: Path,
        work: Path,
        minutes: float,
        processes: int,
        tiny: bool = False,
        fork: bool = False,
        start_time: float | None = None,
        seeds: int = 1000,
    ):
        self.file, self.work, self.processes, self.tiny = out / f"{stage}.json", work, processes, tiny
        self.seeds = min(seeds, 2) if tiny else seeds
        self.start_time, self.seconds = start_time or time.monotonic(), 60 * minutes
        work.mkdir(parents=True, exist_ok=True)
        # A process that has used a GPU must not fork.
        self.context = multiprocessing.get_context("fork" if fork else "spawn")
        if fork:
            method_types()
            for module in ("pyarrow.dataset", "entropy_dynamics.stages.train", "entropy_dynamics.stages.evaluate"):
                import_module(module)
        self.record: dict[str, Any] = {"stage": stage, "complete": False, "tiny": tiny}
        self.write(**provenance([]))

    def left(self) -> float:
        """Seconds of the time budget that are left."""
        return max(0.0, self.start_time + self.seconds - time.monotonic())

    def write(self, **entries: Any) -> None:
        """Add `entries` to the record and write it."""
        self.record |= entries | {"stage_seconds": round(time.monotonic() - self.start_time, 1)}
        write_json(self.file, self.record)

    def start(self, target: Callable[..., object], *arguments: Any, log: Path) -> BaseProcess:
        """Run `target(*arguments)` in a new process as the only rank of a launch: it claims no GPU."""
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        process = self.context.Process(target=_as_a_rank, args=(log, target, *arguments), daemon=True)
        process.start()
        return process

    def measure(self, target: Callable[[Case], Case], cases: Sequence[Case]) -> list[Case]:
        """Add `target(case)` of every case to the record's `cases`, each measured in a process of its own.

        A case starts if there is time for one as long as the longest so far, and is killed when the time is over.
        """
        results: list[Case] = []
        longest = 0.0
        for number, case in enumerate(cases):
            if self.left() <= longest:
                break
            start = time.monotonic()
            log = self.work / f"{self.record['stage']}{number}.log"
            result = log.with_suffix(".json")
            result.unlink(missing_ok=True)
            process = self.start(_measure, target, case, result, log=log)
            process.join(self.left())
            timed_out = process.is_alive()
            process.kill()
            longest = max(longest, time.monotonic() - start)
            if result.is_file():
                outcome = json.loads(result.read_text())
            else:
                outcome = {"timed_out": True} if timed_out else {"error": end_of(log)}
            results.append(case | outcome)
            self.write(cases=results)
        complete = len(results) == len(cases) and all(measured(case) for case in results)
        self.write(cases=results, complete=complete, left_out=cases[len(results) :])
        return results


def _as_a_rank(log: Path, target: Callable[..., object], *arguments: Any) -> None:
    end_with_parent(multiprocessing.parent_process().pid)
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        os.environ |= RANK | {RENDEZVOUS: f"{folder}/rendezvous"}
        try:
            code = target(*arguments)
        except BaseException:
            traceback.print_exc()
            code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)  # as the command does


def _measure(target: Callable[[Case], Case], case: Case, result: Path) -> None:
    write_json(result, target(case))


def measured(case: Case) -> bool:
    return not case.keys() & {"error", "timed_out"}


def gpu_row() -> str | None:
    """The row of `plan.gpus` for this machine's GPU."""
    return next((row for row in load_config("paper").plan.gpus for name in hardware()["gpus"] if row in name), None)


def end_of(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
