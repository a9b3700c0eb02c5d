"""The first half hour on a GPU, in stages of at most eight minutes: docs/gpu.md.

    PYTHONPATH=src python benchmarks/gpu_check.py kernels training

Each stage writes <out>/<stage>.json and rewrites it after every result, so that a stage that is stopped keeps what it
has. `--tiny` runs the same code on a CPU with the smallest shapes.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

# Before torch and transformers are imported, here and in the processes that run the cases.
os.environ |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "TRANSFORMERS_VERBOSITY": "error"}

from entropy_dynamics.results.provenance import hardware
from gpu_check_common import Check, end_of
from gpu_check_kernels import kernels
from gpu_check_runs import end_to_end, seeds
from gpu_check_training import training

OUTCOME = re.compile(r"^(tests/\S+) (PASSED|FAILED|SKIPPED|ERROR)(?: \((.+?)\))?", re.MULTILINE)


def tests(check: Check) -> None:
    """All tests marked gpu; where there is no GPU they are skipped, with the reason."""
    files = [str(path) for path in sorted(Path("tests").glob("test_*.py")) if "pytest.mark.gpu" in path.read_text()]
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-vv", "-p", "no:cacheprovider", *files]
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


STAGES = {"kernels": kernels, "training": training, "tests": tests, "end_to_end": end_to_end, "seeds": seeds}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("stages", nargs="*", choices=[*STAGES, []], metavar="STAGE", help=f"of {', '.join(STAGES)}")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/<name of the GPU>")
    parser.add_argument("--work", type=Path, default=Path("results/gpu-check"), help="runs, models and logs")
    parser.add_argument("--minutes", type=float, default=8, help="time budget of a stage (default: 8)")
    parser.add_argument("--processes", type=int, default=6, help="runs that share the GPU (default: 6)")
    parser.add_argument("--tiny", action="store_true", help="the smallest shapes, on a CPU")
    parser.add_argument(
        "--fork", action="store_true", help="with --tiny: processes are forked, not spawned: no imports"
    )
    options = parser.parse_args()
    gpu = (hardware()["gpus"] or ["cpu"])[0].lower().replace(" ", "-")
    out, complete = options.out or Path("benchmarks/results", gpu), True
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])  # when this process began: proc(5)
    start = ticks / os.sysconf("SC_CLK_TCK")  # so the time of the first stage includes the imports
    for name in options.stages or STAGES:
        check = Check(name, out, options.work, options.minutes, options.processes, options.tiny, options.fork, start)
        STAGES[name](check)
        start = time.monotonic()
        complete &= check.record["complete"]
        print(f"{name}: {'complete' if check.record['complete'] else 'incomplete'}, see {check.file}", flush=True)
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
