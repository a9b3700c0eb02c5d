# Shared by all rules: the jobs of the selected scale (entropy_dynamics.workflow), and the layout of its results.
import shlex
import sys
from pathlib import Path

from entropy_dynamics import preload
from entropy_dynamics.config import BASE, TRAIN
from entropy_dynamics.experiments import claims
from entropy_dynamics.experiments.load import FURTHER, PAPER
from entropy_dynamics.results.layout import CONFIG, PROVENANCE
from entropy_dynamics.workflow import Jobs, one_line
from snakemake_logger_plugin_progress import expect

if set("{}") & set(workflow.basedir):
    sys.exit(f"error: Snakemake takes braces for wildcards: rename {workflow.basedir}")

# snakemake --config scale=smoke seeds=5 extra_seeds=3: more seeds, without editing a file
with one_line():
    JOBS = Jobs(config)
SCALE = JOBS.scale
SCALE_CONFIG = JOBS.config
LAYOUT = JOBS.layout
RUN = ("{model}", "{method}", "{seed}")
UNTRAINED = ("{model}", BASE, "{seed}")
FILTERING = JOBS.filtering  # the model whose pass rates filter the training problems
EVALUATION_SETS = list(SCALE_CONFIG.data.evaluation)
PAGE = f"report --scale {SCALE} {JOBS.set_seeds}"

expect(
    record=LAYOUT.jobs,
    results=[*JOBS.experiments, "claims"],
    seconds=JOBS.costs(),
    threads=SCALE_CONFIG.threads if SCALE_CONFIG.hardware.device == "cpu" else None,
    no_rule_for=lambda target: JOBS.no_rule_for(target, list(workflow.rules)),
    changes=JOBS.changes,
    page=[sys.executable, "-P", "-m", "entropy_dynamics.cli", *PAGE.split()],
)

# Rules call the `entropy-dynamics` beside this Snakemake, whether its environment is activated or not.
# Snakemake formats the prefix; a path with braces is refused above.
shell.prefix(
    f"export PATH={shlex.quote(Path(sys.executable).parent.as_posix())}:$PATH; "
)


wildcard_constraints:
    model=r"[\w.-]+",
    method=rf"(?!{BASE}(?![\w-]))[\w-]+(@[\w.=+,-]+)?",
    seed=r"0|[1-9]\d{0,17}",
