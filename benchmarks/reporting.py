"""Tables, figures, claims and the workflow's graph at size, from synthetic results of up to 10,000 runs.

The results are synthetic (tests/synthetic_results.py), in a temporary folder; they say nothing about any method.
Measured are the seconds and the peak memory of the commands that a user types. Seeds from the tenth on are hard links
to the first ten: reading them costs the same.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import synthetic_results  # noqa: E402
from entropy_dynamics.config import BASE  # noqa: E402
from entropy_dynamics.experiments.claims import load_claims  # noqa: E402
from entropy_dynamics.experiments.load import Run, experiment_files, load_experiment  # noqa: E402
from entropy_dynamics.results.files import write_json  # noqa: E402
from entropy_dynamics.results.provenance import hardware  # noqa: E402

SCALE = synthetic_results.SCALE
SAMPLES = {
    "aime24": 30 * 32,
    "aime25": 30 * 32,
    "dapo500": 60 * 8,
}  # samples per policy, as synthetic_results writes them
STEPS = 100  # per run
DISTINCT = 10  # seeds
COMMANDS = {  # a wide table, the widest figure, the distribution, all claims
    "table1": ["draw", "table1"],
    "table3": ["draw", "table3"],
    "figure2": ["draw", "figure2"],
    "lens": ["draw", "lens"],
    "data_filter": ["draw", "data_filter"],
    "claims": ["claims"],
}
RESULT = Path(__file__).parent / "results" / "reporting.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 19, 190], help="of every method")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    os.chdir(ROOT)
    sizes = [measure(seeds) for seeds in options.seeds]
    record = {"what": "reports from synthetic results", "hardware": hardware(), "sizes": sizes}
    write_json(options.out, record)
    print(as_table(sizes))


def measure(count: int) -> dict:
    """Run each command on the results of `count` seeds of every method."""
    seeds = {"tables": count, "extras": count}
    with tempfile.TemporaryDirectory(prefix="entropy-dynamics-synthetic-") as folder:
        runs, samples = write_results(Path(folder) / SCALE, seeds)
        chosen = ["--scale", SCALE, "--results", folder]
        chosen += [word for key in seeds for word in ("--set", f"seeds.{key}={count}")]
        spent = {
            name: run_command([sys.executable, "-m", "entropy_dynamics.cli", *command, *chosen])
            for name, command in COMMANDS.items()
        }
    snakemake = str(Path(sys.executable).parent / "snakemake")
    selection = ["--config", f"seeds={count}", f"extra_seeds={count}"]
    with tempfile.TemporaryDirectory(prefix="entropy-dynamics-graph-") as folder:  # a tree without results
        for name in ("Snakefile", "workflow", "configs", "experiments", "profiles", "environment.yml"):
            (Path(folder) / name).symlink_to(ROOT / name)
        spent["snakemake -n"] = run_command([snakemake, "-n", "--quiet", "all", *selection], folder)
    return {"seeds": count, "runs": runs, "samples": samples, "commands": spent}


def write_results(results: Path, seeds: dict[str, int]) -> tuple[int, int]:
    """Write what every table, figure and claim reads; return the numbers of runs and of samples in it."""
    synthetic_results.write_models(results)
    synthetic_results.write_pass_rates(results)
    synthetic_results.write_logit_steps(results)
    needed: dict[tuple[Run, str | None], None] = {}  # data set, None: the training metrics
    for name in experiment_files():
        experiment = load_experiment(name, SCALE, seeds)
        needed |= dict.fromkeys((run, part) for run in experiment.runs for part in (None, *experiment.evaluations))
    for claim in load_claims(SCALE, seeds):
        needed |= dict.fromkeys((run, part) for run in claim.all_runs() for part in (None, *claim.evaluations))
    samples = 0
    for run, dataset in sorted(needed, key=lambda pair: pair[0].seed):
        if run.seed >= DISTINCT:
            path, same = (_file(results, each, dataset) for each in (run, replace(run, seed=run.seed % DISTINCT)))
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(same, path)
        elif dataset is None:
            synthetic_results.write_metrics(results, run, steps=STEPS)
        else:
            synthetic_results.write_evaluation(results, run, dataset)
        samples += 0 if dataset is None else SAMPLES[dataset]
    return len({run for run, _ in needed if run.method != BASE}), samples


def _file(results: Path, run: Run, dataset: str | None) -> Path:
    return run.metrics_file(results) if dataset is None else run.evaluation_file(results, dataset)


def run_command(command: list[str], folder: Path | str = ROOT) -> dict[str, float]:
    """CPU and wall seconds and the peak memory of one command. Raises CalledProcessError if it fails."""
    start = time.perf_counter()
    # In a separate process, so that the peak is not that of an earlier child of this one.
    probe = "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL); "
    probe += "u = resource.getrusage(resource.RUSAGE_CHILDREN); print(u.ru_utime + u.ru_stime, u.ru_maxrss)"
    spent = subprocess.run(
        [sys.executable, "-c", probe, *command], cwd=folder, check=True, text=True, stdout=subprocess.PIPE
    ).stdout.split()
    kib = 1 if sys.platform == "linux" else 1024  # macOS counts in bytes
    return {
        "cpu_seconds": round(float(spent[0]), 2),
        "wall_seconds": round(time.perf_counter() - start, 2),
        "peak_mib": round(int(spent[1]) / kib / 1024, 1),
    }


def as_table(sizes: list[dict]) -> str:
    """CPU seconds and peak MiB of each command at each size."""
    heads = ["command", *(f"{size['runs']:,} runs, {size['samples']:,} samples" for size in sizes)]
    rows = [[name, *(_spent(size["commands"][name]) for size in sizes)] for name in sizes[0]["commands"]]
    return tabulate(rows, heads, "pipe")


def _spent(of: dict[str, float]) -> str:
    return f"{of['cpu_seconds']:.1f} s, {of['peak_mib']:.0f} MiB"


if __name__ == "__main__":
    main()
