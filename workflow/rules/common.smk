# Shared by all rules: the selected scale, the layout of its results, and the settings that a result depends on.
import re
import shlex
import sys
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from entropy_dynamics import preload

# Not `parse` itself, a name that Snakemake uses here.
from entropy_dynamics import sections
from entropy_dynamics.experiments import claims
from entropy_dynamics.experiments.load import (
    FIRST,
    FURTHER,
    PAPER,
    THEORY,
    experiment_files,
    load_experiment,
)
from entropy_dynamics.config import (
    BASE,
    TRAIN,
    configured_shorter_runs,
    Selection,
    known_names,
    load_config,
    method_label,
    read_config,
    read_yaml,
    settings_of,
    shorter_runs,
    split_method,
)
from entropy_dynamics.errors import UserError, closest, nearest
from entropy_dynamics.planning.plan import resources
from entropy_dynamics.results.layout import CONFIG, PROBLEMS_REPORT, PROVENANCE, Layout
from entropy_dynamics.results.provenance import fingerprint
from entropy_dynamics.stages.inputs import new_settings
from snakemake_logger_plugin_progress import expect


@contextmanager
def one_line():
    """Exit with a one-line message on a UserError, for which Snakemake would print a traceback."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")


if set("{}") & set(workflow.basedir):
    sys.exit(f"error: Snakemake takes braces for wildcards: rename {workflow.basedir}")

# snakemake --config scale=smoke seeds=5 extra_seeds=3: more seeds, without editing a file
with one_line():
    selection = sections.parse(Selection, config, "--config")
    SCALE = selection.scale
    SCALE_CONFIG = load_config(SCALE, overrides=selection.overrides)
SEEDS = dict(SCALE_CONFIG.seeds)
SET_SEEDS = " ".join(f"--set seeds.{group}={count}" for group, count in SEEDS.items())
LAYOUT = Layout.of(SCALE)
RUN = ("{model}", "{method}", "{seed}")
UNTRAINED = ("{model}", BASE, "{seed}")
PASS_RATE_MODEL = SCALE_CONFIG.pass_rates.model
KEPT_RATES = [SCALE_CONFIG.pass_rates.low, SCALE_CONFIG.pass_rates.high]
# Models that are only downloaded, as compute nodes often have no network; a warm or cold start is a training.
DOWNLOADED = not SCALE_CONFIG.toy_models and SCALE_CONFIG.cold_start is None
LOCAL_CPU = (
    SCALE_CONFIG.hardware.device == "cpu" and SCALE_CONFIG.hardware.ranks is None
)
EVALUATION_SETS = list(SCALE_CONFIG.data.evaluation)

FOLDER = Path(SCALE_CONFIG.experiments_folder)
NAMED = SCALE_CONFIG.experiments or []
PAPER_VALUES = [path for path in [FOLDER / "paper_values.yaml"] if path.is_file()]
TEMPERATURES = {
    name: values
    for name in ("temperatures", "control_temperatures")
    if (values := getattr(SCALE_CONFIG.evaluation, name))
}
with one_line():
    FILES = experiment_files(FOLDER)
    EXPERIMENTS = {
        name: load_experiment(name, SCALE, SEEDS)
        for name in dict.fromkeys([*FILES, *NAMED, THEORY])
    }
    files = [Path("workflow/Snakefile"), *sorted(Path("workflow/rules").iterdir())]
    rules_of_workflow = re.findall(
        r"^ *rule\s(\w+):", "\n".join(file.read_text() for file in files), re.M
    )
    if taken := EXPERIMENTS.keys() & {
        *rules_of_workflow,
        *claims.JUDGED,
        *TEMPERATURES,
    }:
        raise UserError(
            f"{FILES[min(taken)]}: the workflow has a rule of that name; rename the file"
        )
TABLES = [name for name in EXPERIMENTS if EXPERIMENTS[name].spec.kind == "scores"]
FIGURES = [name for name in EXPERIMENTS if name not in TABLES]
((THEORY_MODEL, THEORY_SEED),) = EXPERIMENTS[THEORY].untrained.items()
# built by `all`; every name is a target at every scale
WANTED = NAMED or [name for name in EXPERIMENTS if EXPERIMENTS[name].by_default]

# Jobs run in the order of the tables and figures that need them; jobs that only draw, or that all runs need, go first.
URGENCY = {}
ORDER = [*(name for name in FIRST if name in EXPERIMENTS), *WANTED]
for position, name in enumerate(reversed(ORDER)):
    for run in EXPERIMENTS[name].runs:
        key = tuple(map(str, run.path))
        URGENCY[key] = position
        if EXPERIMENTS[name].temperatures:
            URGENCY["temperatures", *key] = position
        for model in (run.model, PASS_RATE_MODEL):
            untrained = str(SCALE_CONFIG.untrained(model, run.seed))
            URGENCY[model, untrained] = URGENCY[(untrained,)] = position
MOST_URGENT = len(ORDER)

PAGE = f"report --scale {SCALE} {SET_SEEDS}"


def no_rule_for(target):
    """The message about a target that no rule makes."""
    results, scale, *_ = *Path(target).parts, "", ""
    if results == "results" and scale != SCALE and scale in known_names("scale"):
        return f"{target} is of another scale than {SCALE}: add --config scale={scale}"
    name, _, value = target.partition("=")
    if value and name in Selection.model_fields:
        return f"no rule makes {target!r}; did you mean --config {target}?"
    if "/" not in target:
        names = [rule.name for rule in workflow.rules if not rule.has_wildcards()]
        return f"no rule makes {target!r}{nearest(target, names)}"
    files = [str(file) for rule in workflow.rules for file in rule.output]
    close = closest(target, files) or LAYOUT.metrics(*RUN).as_posix()
    return f"no rule makes {target!r}; did you mean {close!r}?"


COSTS = read_yaml(Path("workflow/costs.yaml")).get(SCALE, {})
expect(
    record=LAYOUT.jobs,
    results=[*EXPERIMENTS, "claims"],
    seconds=COSTS | {name: COSTS["draw"] for name in EXPERIMENTS if COSTS},
    threads=SCALE_CONFIG.threads if SCALE_CONFIG.hardware.device == "cpu" else None,
    no_rule_for=no_rule_for,
    changes=lambda *new: changes(*new),  # defined below
    page=[Path(sys.executable).with_name("entropy-dynamics").as_posix(), *PAGE.split()],
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


@cache
@one_line()
def config_of(*run):
    return load_config(SCALE, *run)


for model in (PASS_RATE_MODEL, THEORY_MODEL):
    config_of(model)


SETTINGS = {}  # fingerprint -> the stage and its settings


@cache
def fingerprint_of(stage, *run):
    own = settings_of(stage, config_of(*run))
    SETTINGS[name := fingerprint(own)] = stage, own
    return name


def changes(name, outputs):
    """What is new in a job's settings, if `name` is their fingerprint: 'key old -> new' each."""
    if name not in SETTINGS:
        return []
    records = [file for file in outputs if Path(file).name in (CONFIG, PROBLEMS_REPORT)]
    stage, own = SETTINGS[name]
    result = Path((records or outputs)[0])
    return new_settings(result, own) or [f"settings of {stage}"]


def settings(stage, *run):
    """A parameter of a job: a hash of the settings that it uses, by which Snakemake decides whether to rerun it.

    Here and below, `run` is the model and the method of a job if they are not among its wildcards.
    """
    return lambda wildcards: fingerprint_of(stage, *named(wildcards), *run)


def named(wildcards):
    """The model and the method in a job's wildcards."""
    return [wildcards[key] for key in ("model", "method") if key in wildcards.keys()]


def untrained(wildcards):
    """The inputs of a run: the untrained model and the pass rates of its seed."""
    model, filtered = (
        SCALE_CONFIG.untrained(name, int(wildcards.seed))
        for name in (wildcards.model, PASS_RATE_MODEL)
    )
    return [LAYOUT.facts(wildcards.model, BASE, model), LAYOUT.pass_rates(filtered)]


@one_line()
def longer(wildcards):
    """The metrics of the run that leaves its policy to this one, if there is one (`training.keep_steps`).

    The config of a finished run tells what it left, so that other `keep_steps` later on rerun nothing.
    """
    run = (wildcards.model, wildcards.method.partition("@")[0], wildcards.seed)
    if "@training.steps=" not in wildcards.method:
        return []
    if (file := LAYOUT.run(*run) / CONFIG).is_file():
        shorter = shorter_runs(run[1], read_config(file)["training"])
    else:
        shorter = configured_shorter_runs(SCALE, *run[:2])
    return [LAYOUT.metrics(*run)] * (wildcards.method in shorter)


def checked(wildcards):
    """Returns no input files, but ends the workflow before anything runs if a model, method or setting is invalid."""
    config_of(*named(wildcards))
    return []


def urgency(wildcards):
    """The priority of a job for a model or a run."""
    return URGENCY.get(tuple(wildcards), 0)


def urgency_of_temperatures(wildcards):
    """The priority of the evaluation of a run's policy at further temperatures, which few tables and figures need."""
    return URGENCY.get(("temperatures", *wildcards), 0)


def problem_files(wildcards):
    """The files from which problems are read: those named by the sets, and those in `data.folder`."""
    data = SCALE_CONFIG.data
    files = [source.path for source in data.sets.values() if source.source == "file"]
    if data.folder is not None:
        names = [f"{name}{end}" for name in data.sets for end in (".jsonl", ".parquet")]
        files += [path for name in names if (path := Path(data.folder, name)).is_file()]
    return files


@cache
def resources_of(stage, *run):
    return resources(config_of(*run), stage)


def of_job(resource, stage, *run):
    """A resource that depends on a job's model and method; None leaves it unset."""
    return lambda wildcards: resources_of(stage, *named(wildcards), *run).get(resource)


def needs(stage, *run):
    """The resources of a rule's jobs, as `entropy-dynamics plan` estimates them."""
    return {name: of_job(name, stage, *run) for name in ("gpu", "mem_mb", "runtime")}


def needs_of_ranks(stage, *run):
    """Like `needs`, for a stage on ranks, with the additional resources of jobs on several nodes."""
    names = ("nodes", "mpi", "tasks", "tasks_per_gpu", "slurm_extra")
    return needs(stage, *run) | {name: of_job(name, stage, *run) for name in names}


def inputs_of(name):
    """The inputs of a table or figure."""
    files = EXPERIMENTS[name].input_files(LAYOUT.root)
    return [FILES[name], *PAPER_VALUES, *files]


@one_line()
def labels_in(name):
    """The labels of its methods, from their configs."""
    methods = sorted({split_method(run.method)[0] for run in EXPERIMENTS[name].runs})
    return [method_label(method) for method in methods]


def files_of(names):
    """One file of each table and figure in `names`, as a rule makes all of its files."""
    return [
        LAYOUT.table(name, "csv") if name in TABLES else LAYOUT.figure(name, "png")
        for name in names
    ]


def of_target(target):
    return [name for name in EXPERIMENTS if EXPERIMENTS[name].folder == target]


def in_report(experiment):
    """Category and label in the report, which sorts categories by name."""
    title = experiment.spec.title
    kind = "table" if experiment.name in TABLES else "figure"
    label = f"{experiment.heading}. {title}" if experiment.is_numbered else title
    paper = {"table": "2 Tables", "figure": "3 Figures"}[kind]
    category = paper if experiment.folder == PAPER else "4 Further"
    return {"category": category, "labels": {kind: label}}


@one_line()
def claim_inputs(wildcards):
    """The results needed by the claims: all of them, or only those that the scale's list of experiments makes."""
    files = claims.input_files(LAYOUT.root, claims.load_claims(SCALE, SEEDS))
    if SCALE_CONFIG.experiments is None:
        return files
    made = {
        file for name in WANTED for file in EXPERIMENTS[name].input_files(LAYOUT.root)
    }
    return [file for file in files if file in made]


@one_line()
def inputs_of_claims(folder):
    """The results needed by the claims of a target, and its tables and figures."""
    judged = claims.load_claims(SCALE, SEEDS, folder=folder)
    return claims.input_files(LAYOUT.root, judged) + files_of(of_target(folder))
