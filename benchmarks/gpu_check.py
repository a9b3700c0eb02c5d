"""The first half hour on a GPU, in stages of at most eight minutes: docs/gpu.md.

    PYTHONPATH=src python benchmarks/gpu_check.py kernels training

Each stage writes <out>/<stage>.json and rewrites it after every result, so that a stage that is stopped keeps what it
has. `--tiny` runs the same code on a CPU with the smallest shapes.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from entropy_dynamics.distributed.launch import end_with_parent

if __name__ == "__mp_main__":  # a case that is spawned imports this file first, and with it torch, for seconds
    end_with_parent()

# Before torch and transformers are imported, here and in the processes that run the cases.
os.environ |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "TRANSFORMERS_VERBOSITY": "error"}

from entropy_dynamics.results.provenance import hardware
from gpu_check_common import START_SECONDS, Check, end_of
from gpu_check_kernels import kernels, kernels_seconds
from gpu_check_runs import (
    end_to_end,
    end_to_end_seconds,
    seeds,
    seeds_seconds,
    smollm2,
    smollm2_alone,
    smollm2_alone_seconds,
    smollm2_seconds,
)
from gpu_check_training import steps_seconds, training

LAUNCHES = 3  # of ranks, by tests/distributed/test_gpu.py
TEST_SECONDS = 3  # most are two steps of a small model, on the GPU and a CPU; some compile a kernel [estimate]
OUTCOME = re.compile(r"^(tests/\S+) (PASSED|FAILED|SKIPPED|ERROR)(?: \((.+?)\))?", re.MULTILINE)
COLLECTED = re.compile(r"^tests/\S+: (\d+)$", re.MULTILINE)


def pytest_command(*options: str) -> list[str]:
    """Runs all tests marked gpu."""
    files = [str(path) for path in sorted(Path("tests").rglob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    return [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", *options, *files]


def tests_seconds() -> float:
    """Estimate: pytest starts twice, first to count the tests."""
    listed = subprocess.run(pytest_command("--collect-only", "-q"), capture_output=True, text=True).stdout
    count = sum(map(int, COLLECTED.findall(listed)))
    return START_SECONDS * (2 + LAUNCHES) + TEST_SECONDS * count


def tests(check: Check) -> None:
    """All tests marked gpu; where there is no GPU they are skipped, with the reason."""
    command = pytest_command("-vv")
    wide = os.environ | {"COLUMNS": "300"}  # for the reasons of skipped tests
    with (log := check.work / "tests.log").open("w") as output:
        try:
            code = subprocess.run(command, stdout=output, stderr=output, env=wide, timeout=check.left()).returncode
        except subprocess.TimeoutExpired:
            code = None
    names = ("test", "outcome", "reason")
    outcomes = [dict(zip(names, map(str.lower, match), strict=True)) for match in OUTCOME.findall(log.read_text())]
    counts = {
        outcome: sum(test["outcome"] == outcome for test in outcomes) for outcome in ("passed", "failed", "skipped")
    }
    check.write(complete=code == 0, **counts, tests=outcomes, **({} if code == 0 else {"log": end_of(log, 100)}))


STAGES = {
    "kernels": kernels,
    "smollm2": smollm2,
    "smollm2_alone": smollm2_alone,
    "training": training,
    "tests": tests,
    "end_to_end": end_to_end,
    "seeds": seeds,
}
NEED_WEIGHTS = {"smollm2", "smollm2_alone"}  # so they run only when named


def estimated_seconds(stage: str, processes: int) -> float:
    """How long a stage is expected to take on a GPU, its own imports included."""
    of_stage = {
        "kernels": kernels_seconds,
        "training": steps_seconds,
        "tests": tests_seconds,
        "end_to_end": partial(end_to_end_seconds, processes),
        "seeds": partial(seeds_seconds, processes),
        "smollm2": partial(smollm2_seconds, processes),
        "smollm2_alone": smollm2_alone_seconds,
    }
    return START_SECONDS + of_stage[stage]()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], metavar="STAGE", help=f"of {', '.join(STAGES)}")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<name of the GPU>")
    parser.add_argument("--work", type=Path, default=Path("results/gpu-check"), help="runs, models and logs")
    parser.add_argument("--minutes", type=float, default=8, help="time budget of a stage (default: 8)")
    parser.add_argument("--processes", type=int, default=6, help="runs that share the GPU (default: 6)")
    parser.add_argument("--seeds", type=int, default=1000, help="of the stages seeds and smollm2, at most")
    parser.add_argument("--tiny", action="store_true", help="the smallest shapes, on a CPU")
    parser.add_argument(
        "--fork", action="store_true", help="with --tiny: processes are forked, not spawned: no imports"
    )
    parser.add_argument(
        "--estimate", action="store_true", help="only print the minutes that each stage is expected to take"
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # an exit ends the cases, and pytest
    if options.estimate:
        for name in options.stages or STAGES:
            print(f"{name}: {estimated_seconds(name, options.processes) / 60:.1f} minutes")
        return 0
    gpu = (hardware()["gpus"] or ["cpu"])[0].lower().replace(" ", "-")
    names = options.stages or [name for name in STAGES if name not in NEED_WEIGHTS]
    out, complete = options.out or Path("benchmarks/results", gpu), True
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # when this process began: proc(5)
    start = ticks / os.sysconf("SC_CLK_TCK")  # so the time of the first stage includes the imports
    for name in names:
        settings = options.work, options.minutes, options.processes, options.tiny, options.fork, start, options.seeds
        check = Check(name, out, *settings)
        check.write(estimated_seconds=estimated_seconds(name, options.processes))
        STAGES[name](check)
        start = time.monotonic()
        complete &= check.record["complete"]
        print(f"{name}: {'complete' if check.record['complete'] else 'incomplete'}, see {check.file}", flush=True)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
