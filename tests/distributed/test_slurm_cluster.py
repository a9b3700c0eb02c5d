"""The profile on a real SLURM without accounting (slurm_cluster.py): `make test-slurm`."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pandas as pd
import pytest

from entropy_dynamics.client import SERVER
from entropy_dynamics.config import load_config
from entropy_dynamics.planning.plan import Job, make_plan
from fault_harness import heed_interrupts, kill, paused
from preloaded import program
from project_copy import ROOT, copy_project
from slurm_cluster import NODES, SECONDS, SlurmCluster, missing

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(find_spec("snakemake_executor_plugin_slurm") is None, reason="the extra slurm is missing"),
]

BIN = Path(sys.executable).parent
RUN = "runs/qwen2.5-7b-instruct/grpo/seed0"
PAGE = ROOT / "docs" / "paper-scale.md"
STEPS = 3
CHECKPOINT = "checkpoints/*/*/*/*/step2"  # where runs pause
EVALUATED = "evaluations/*/*/*/dapo500.provenance.json"  # or here, when all is written
SCALE = f"""
extends: laptop
scale: cluster
seeds: {{tables: 1, extras: 1, pilot: 1}}
experiments: [table2, figure3, theory_check]
data:
  train: {{size: 24}}
  evaluation:
    aime24: {{size: 4}}
    aime25: {{size: 4}}
    dapo500: {{size: 8}}
    validation: {{size: 8}}
sampling: {{max_new_tokens: 8}}
pass_rates: {{samples: 2, low: null, high: null}}
toy_models:
  qwen2.5-7b-instruct: {{warm_start: {{steps: 2}}}}
  distill-llama-8b: {{warm_start: {{steps: 2}}}}
training:
  steps: {STEPS}
  prompts_per_step: 2
  checkpoint_every: 1
  validation_every: 0
  entropy_change_every: 0
evaluation:
  samples: {{aime24: 2, aime25: 2, dapo500: 2, validation: 2}}
"""
# The `sitecustomize` of all programs: a run waits where a test can act on it, however busy the machine is; and nodes
# differ in name, as two machines do.
CUSTOM = f"""
import os, sys
if sys.orig_argv[2:3] == ["train"]:
    sys.path.append({str(ROOT / "tests")!r})
    if "PAUSE_FROM" in os.environ:
        from preloaded import pause
        sys.addaudithook(pause)
    if "SLURMD_NODENAME" in os.environ:
        import socket
        socket.gethostname = lambda: os.environ["SLURMD_NODENAME"]
"""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    if reason := missing():
        pytest.skip(reason)
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def project(cluster, tmp_path):
    project = Project(tmp_path / "project", cluster)
    yield project
    project.end()


@pytest.fixture(scope="session")
def prepared(cluster, tmp_path_factory) -> Path:
    """What a run starts from, without SLURM."""
    project = Project(tmp_path_factory.mktemp("prepared") / "project", cluster)
    for stage in (["problems"], ["model", "--model", "qwen2.5-7b-instruct"], ["pass_rates"]):
        command = [program("entropy-dynamics"), *stage, "--scale", "cluster"]
        subprocess.run(command, cwd=project.folder, check=True, capture_output=True)
    return project.results


@pytest.fixture
def one_run(project, prepared):
    """A project in which only training is left to be done."""
    shutil.copytree(prepared, project.results)
    return project


class Project:
    """A copy of the project, edited as docs/paper-scale.md says for a cluster without accounts."""

    def __init__(self, folder: Path, cluster: SlurmCluster):
        self.folder, self.cluster, self.started = folder, cluster, []
        folder.mkdir()
        copy_project(folder)
        self.results = folder / "results" / "cluster"
        self.said = folder / "snakemake.txt"  # by the latest call
        self.go_on = folder / "go on"  # a file for which paused runs wait
        (folder / "configs/scale/cluster.yaml").write_text(SCALE)
        profile = folder / "profiles/slurm/config.yaml"
        text = profile.read_text()
        assert text.count("slurm_account: my_account") == 1
        profile.write_text(re.sub(r"\n *slurm_account: .*", "", text))
        modules = folder / "modules"
        modules.mkdir()
        (modules / "sitecustomize.py").write_text(CUSTOM)
        for node in NODES:
            (modules / node).write_text(f"the boot of {node}")
        paths = [str(modules), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {key: value for key, value in os.environ.items() if key != SERVER and "SLURM" not in key}
        self.environment |= cluster.environment | {"TMPDIR": str(folder), "PYTHONPATH": os.pathsep.join(paths)}
        self.submitted_before = self.submitted()

    def configure(self, **machine: object) -> None:
        entry = {"for": {"scale": "cluster"}, **machine}
        (self.folder / "configs/machine.yaml").write_text(json.dumps({"overrides": [entry]}))

    def start(self, *arguments: str, retries: int = 0, pause: str | None = None) -> subprocess.Popen:
        """`snakemake`. pause: runs wait, once there is a file that matches it, for the file `go_on`."""
        quick = ("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "60", "--retries", str(retries))
        command = [BIN / "snakemake", *arguments, "--workflow-profile", "profiles/slurm", *quick]
        if "--config" not in arguments:
            command += ["--config", "scale=cluster"]
        waits = paused(self.results / pause, self.go_on) if pause else {}
        with self.said.open("wb") as said:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment | waits,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=heed_interrupts,
            )
        self.started.append(process)
        return process

    def train(self, *, retries: int = 0, pause: str | None = None) -> subprocess.Popen:
        return self.start(f"results/cluster/{RUN}/metrics.parquet", retries=retries, pause=pause)

    def train_to_pause(self, retries: int = 0, at: str = CHECKPOINT) -> tuple[subprocess.Popen, str]:
        """Snakemake, and the id of the job that waits: after its second step, or elsewhere."""
        snakemake = self.train(retries=retries, pause=at)
        self.cluster.wait(lambda: list(self.results.glob(at)) or snakemake.poll() is not None)
        assert snakemake.returncode is None, self.said.read_text()
        job = self.cluster.output("squeue", "-h", "-t", "running", "-o", "%i")
        assert job.isdecimal(), job
        return snakemake, job

    def finish(self, snakemake: subprocess.Popen, code: int = 0) -> str:
        """Wait for its end; what it said."""
        snakemake.wait(SECONDS)
        said = self.said.read_text()
        assert snakemake.returncode == code, said
        return said

    def submitted(self) -> int:
        """How many jobs the cluster has had, those of other tests included."""
        return int(self.cluster.output("scontrol", "show", "config").partition("NEXT_JOB_ID")[2].split()[1]) - 1

    def jobs(self) -> int:
        """How many jobs were submitted."""
        return self.submitted() - self.submitted_before

    def state(self, job: str) -> str:
        return self.cluster.output("squeue", "-h", "-j", job, "-t", "all", "-o", "%T")

    def attempts(self) -> list[str]:
        logs = sorted((self.results / "logs" / RUN).parent.glob("seed0.log.*"))
        return [log.read_text() for log in logs]

    def metrics(self) -> pd.DataFrame:
        return pd.read_parquet(self.results / RUN / "metrics.parquet").filter(regex="^(?!seconds)")

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                kill(process)
        self.cluster.cancel_all()


def test_a_scale_to_its_end(project):
    said = project.finish(project.start())
    assert (project.results / "report.html").is_file()
    assert {"table2", "figure3", "theory_check"} <= set(re.findall(r"\] (\w+) is ready: ", said))
    [(jobs, runs)] = re.findall(r"^(\d+) jobs, (\d+) of them training runs", said, re.M)
    assert (runs, said.count("] train ")) == ("4", 4)
    assert f"[{jobs}/{jobs}] " in said
    assert project.jobs() >= 9
    assert project.cluster.output("squeue", "-h") == ""
    verified = subprocess.run([program("entropy-dynamics"), "verify", project.results], cwd=project.folder)
    assert verified.returncode == 0


def test_a_run_meets_its_time_limit_and_resumes(one_run):
    """A limit of two minutes leaves no time for another step, so each job takes one of the three."""
    one_run.configure(plan={"max_job_hours": 2 / 60})
    said = one_run.finish(one_run.train(retries=3))
    assert one_run.jobs() == 3
    run = "train grpo seed 0 qwen2.5-7b-instruct"
    ends = f"{run}: ends early, at a checkpoint; the same command resumes it"
    assert [line for line in said.splitlines() if "ends early" in line] == [ends, ends]
    assert "Error in rule" not in said
    assert said.count(f"[1/1] {run}  ") == 1
    assert one_run.metrics()["step"].tolist() == [0, 1, 2]
    first, second, third = one_run.attempts()
    assert "ends early, at a checkpoint after step 1" in first
    assert "resumes from the checkpoint after step 1" in second
    assert "resumes from the checkpoint after step 2" in third
    assert (one_run.results / "logs" / f"{RUN}.log").read_text() == third


@pytest.mark.parametrize("status", ["TIMEOUT", "CANCELLED"])
def test_a_run_that_slurm_ends_at_its_limit_or_on_demand_resumes(one_run, status):
    """Between two steps there is no time for a checkpoint: here the run waits."""
    snakemake, job = one_run.train_to_pause(retries=1)
    if status == "TIMEOUT":
        one_run.cluster.time_out(job)
    else:
        one_run.cluster.run("scancel", job).check_returncode()
        one_run.cluster.wait(lambda: one_run.state(job) == "CANCELLED")  # its processes are gone
    one_run.go_on.touch()
    said = one_run.finish(snakemake)
    assert f"SLURM status is: '{status}'" in said
    assert one_run.jobs() == 2
    _, resumed = one_run.attempts()
    assert "resumes from the checkpoint after step 2" in resumed
    assert len(one_run.metrics()) == STEPS


def test_a_cluster_without_accounting_takes_any_account(one_run):
    """`sacctmgr` fails, `sshare` answers nothing. No node starts the job."""
    profile = "profiles/slurm/config.yaml"
    (one_run.folder / profile).write_text((ROOT / profile).read_text().replace("partition: gpu", "partition: big"))
    snakemake = one_run.train()
    pending = ["squeue", "-h", "-t", "pending", "-o", "%a"]
    one_run.cluster.wait(lambda: one_run.cluster.output(*pending) or snakemake.poll() is not None)
    assert one_run.cluster.output(*pending) == "my_account"
    interrupt(one_run, snakemake)
    [documented] = re.findall(r"no accounting database \| the executor says `(.+?)`", PAGE.read_text())
    assert documented in one_run.said.read_text()


def test_two_nodes_train_as_one(one_run):
    """Their names do not resolve: the ranks meet at the address that SLURM has for the first node."""
    one_run.configure(hardware={"ranks": 2, "nodes": 2})
    one_run.finish(one_run.train())
    shown = one_run.cluster.output("scontrol", "show", "job", str(one_run.submitted()))
    assert "NumNodes=2 " in shown
    assert f"NodeList=g[1-{len(NODES)}]" in shown
    of_a_node = int(re.search(r"MinMemoryNode=(\d+)M", shown)[1])
    two_nodes = one_run.metrics()
    one_run.configure(hardware={"ranks": 2, "nodes": 1})
    run = ("train", "--scale", "cluster", "--model", "qwen2.5-7b-instruct", "--method", "grpo", "--seed", "0")
    subprocess.run([program("entropy-dynamics"), *run], cwd=one_run.folder, check=True, capture_output=True)
    pd.testing.assert_frame_equal(one_run.metrics(), two_nodes, rtol=1e-5, atol=1e-6)
    assert of_a_node == 4295  # 4 GiB a rank: half of what one node with both would get


@pytest.mark.parametrize("fault", ["requeue", "node failure"])
def test_a_requeued_job_takes_its_run_over_on_another_node_and_is_not_submitted_again(one_run, fault):
    cluster = one_run.cluster
    snakemake, job = one_run.train_to_pause(retries=1)
    node = cluster.output("squeue", "-h", "-j", job, "-o", "%N")
    if fault == "requeue":
        cluster.run("scontrol", "requeue", job).check_returncode()
    else:
        cluster.lose(node, job)
    try:
        cluster.wait(lambda: one_run.state(job) == "PENDING")
        one_run.go_on.touch()
        cluster.wait(  # SLURM lets it wait for two minutes
            lambda: (
                cluster.run("scontrol", "update", f"job={job}", f"ExcNodeList={node}", "StartTime=now").returncode == 0
            )
        )
        one_run.finish(snakemake)
    finally:
        if fault == "node failure":
            cluster.start(node)
            cluster.wait(cluster.idle)
    assert one_run.jobs() == 1
    assert len(one_run.metrics()) == STEPS
    _, again = one_run.attempts()
    [other] = set(NODES) - {node}
    assert again.startswith(f"note: SLURM job {job} on {other}, ")
    assert "resumes from the checkpoint after step 2" in again
    assert not list(one_run.results.glob("locks/*"))


def test_ctrl_c_cancels_the_job_and_the_same_command_resumes_it(one_run):
    """While Snakemake asks how the job is, which here takes longer than the test."""
    for asked in one_run.cluster.folder.glob("*.asked"):
        asked.unlink()
    snakemake, job = one_run.train_to_pause()
    one_run.cluster.wait(lambda: list(one_run.cluster.folder.glob("*.asked")))
    interrupt(one_run, snakemake)
    assert one_run.state(job) == "CANCELLED"
    one_run.finish(one_run.train())
    assert "resumes from the checkpoint after step 2" in (one_run.results / "logs" / f"{RUN}.log").read_text()


def interrupt(project: Project, snakemake: subprocess.Popen) -> None:
    """Ctrl-C, after which no job is left; again if Python lost it, which came just before it waited for a lock."""
    os.killpg(snakemake.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        snakemake.wait(120)  # its executor asks once more, which takes up to 40 s here
    if snakemake.returncode is None:
        os.killpg(snakemake.pid, signal.SIGINT)
    project.finish(snakemake, code=1)
    project.cluster.wait(lambda: project.cluster.output("squeue", "-h") == "")


@pytest.mark.parametrize("at", [CHECKPOINT, EVALUATED])
def test_a_second_job_of_a_run_is_refused_while_the_first_one_runs(one_run, at):
    """After SIGKILL of Snakemake its job goes on; the user unlocks, and starts the same command.

    Snakemake removes what the first one had written. That notices it, and keeps its checkpoints for a third one.
    """
    snakemake, job = one_run.train_to_pause(at=at)
    kill(snakemake)
    one_run.finish(one_run.start("--unlock"))
    said = one_run.finish(one_run.train(), code=1)
    assert re.search(rf"^ *error: another job is writing this run: SLURM job {job}, process \d+ on ", said, re.M), said
    assert one_run.state(job) == "RUNNING"
    one_run.go_on.touch()
    one_run.cluster.wait(lambda: one_run.state(job) not in ("RUNNING", "COMPLETING"))
    if at == EVALUATED:
        first, _ = one_run.attempts()
        assert re.search(r"^error: \S+ is gone: another job of this run has begun", first, re.M)
        one_run.finish(one_run.train())
        assert f"resumes from the checkpoint after step {STEPS}" in one_run.attempts()[-1]
    assert len(one_run.metrics()) == STEPS


def test_jobs_of_the_papers_scale_ask_for_what_is_planned_and_ctrl_c_cancels_all(project):
    """Submitted to nodes that never start."""
    config = load_config("paper")
    files = [f"data/{name}.parquet" for name in ("train", *config.data.evaluation)] + ["data/problems.json"]
    files += [f"models/{model}/seed0/model.json" for model in config.models] + ["pass_rates/seed0.parquet"]
    for name in files:
        file = project.folder / "results" / "paper" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    plan = make_plan("paper")
    expected = sorted(
        (job.gpus, math.ceil(job.host / 1e6), min(config.plan.max_job_hours, config.plan.safety * job.hours))
        for kind in plan.jobs
        if kind.stage != "pass_rates"
        for job in (Job(kind.stage, (each,)) for each in kind.configs)  # each with its own method
    )
    snakemake = project.start(
        "--jobs", "100", "--default-resources", "slurm_partition=big", "nodes=1", "cpus_per_gpu=8",
        "--rerun-triggers", "mtime", "--config", "scale=paper",
    )  # fmt: skip
    ids = ["squeue", "-h", "-t", "pending", "-o", "%i"]
    project.cluster.wait(lambda: len(project.cluster.output(*ids).split()) == len(expected) + 1)  # and theory
    submitted = []
    for job in project.cluster.output(*ids).split():
        shown = project.cluster.output("scontrol", "show", "job", job)
        found = dict(re.findall(r"(\w+)=(\S+)", shown))
        if "rule_theory" not in found["Comment"]:
            gpus = int(re.search(r"TresPerJob=gres[:/]gpu[:=](\d+)", shown)[1])
            assert re.search(r"CpusPerTres=gres[:/]gpu[:=]8\b", shown), shown
            submitted.append((gpus, int(found["MinMemoryNode"].removesuffix("M")), minutes(found["TimeLimit"])))
    assert sorted(submitted) == [(gpus, megabytes, math.ceil(60 * hours)) for gpus, megabytes, hours in expected]
    interrupt(project, snakemake)


def minutes(limit: str) -> float:
    """SLURM's [days-]hours:minutes:seconds in minutes."""
    days, _, clock = limit.rpartition("-")
    hours, within, seconds = map(int, clock.split(":"))
    return 60 * (24 * int(days or 0) + hours) + within + seconds / 60
