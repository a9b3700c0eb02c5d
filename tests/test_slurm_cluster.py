"""The profile on a real SLURM without accounting (slurm_cluster.py): `make test-slurm`."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import psutil
import pytest

from entropy_dynamics.client import SERVER
from entropy_dynamics.config import load_config
from entropy_dynamics.planning.plan import make_plan
from fault_harness import heed_interrupts
from preloaded import program
from project_copy import copy_project
from slurm_cluster import NODES, SlurmCluster, missing

pytest.importorskip("snakemake_executor_plugin_slurm", reason="the extra `slurm` is not installed")
pytestmark = pytest.mark.slurm

BIN = Path(sys.executable).parent
RUN = "runs/qwen2.5-7b-instruct/grpo/seed0"
SCALE = """
extends: laptop
scale: cluster
seeds: {tables: 1, extras: 1, pilot: 1}
experiments: [table2, figure3, theory_check]
data:
  train: {size: 24}
  evaluation:
    aime24: {size: 4}
    aime25: {size: 4}
    dapo500: {size: 8}
    validation: {size: 8}
sampling: {max_new_tokens: 8}
pass_rates: {samples: 2, low: null, high: null}
toy_models:
  qwen2.5-7b-instruct: {warm_start: {steps: 2}}
  distill-llama-8b: {warm_start: {steps: 2}}
training: {prompts_per_step: 2, checkpoint_every: 1, validation_every: 0, entropy_change_every: 0}
evaluation:
  samples: {aime24: 2, aime25: 2, dapo500: 2, validation: 2}
"""
SECONDS = 600  # for what takes some tens of seconds on an idle machine


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


class Project:
    """A copy of the project, edited as docs/paper-scale.md says for a cluster without accounts."""

    def __init__(self, folder: Path, cluster: SlurmCluster, steps: int = 3):
        self.folder, self.cluster, self.started = folder, cluster, []
        folder.mkdir()
        copy_project(folder)
        self.results = folder / "results" / "cluster"
        self.said = folder / "snakemake.txt"  # by the latest call
        self.configure(steps)
        profile = folder / "profiles/slurm/config.yaml"
        text = profile.read_text()
        assert text.count("slurm_account: my_account") == 1
        profile.write_text(re.sub(r"\n *slurm_account: .*", "", text))
        self.environment = {key: value for key, value in os.environ.items() if key != SERVER and "SLURM" not in key}
        self.environment |= cluster.environment | {"TMPDIR": str(folder)}

    def configure(self, steps: int, **machine: object) -> None:
        settings = f"{SCALE}overrides:\n  - for: {{scale: cluster}}\n    training: {{steps: {steps}}}\n"
        (self.folder / "configs/scale/cluster.yaml").write_text(settings)
        if machine:
            entry = {"for": {"scale": "cluster"}, **machine}
            (self.folder / "configs/machine.yaml").write_text(json.dumps({"overrides": [entry]}))

    def prepare(self) -> None:
        """What a run starts from, without SLURM."""
        for stage in (["problems"], ["model", "--model", "qwen2.5-7b-instruct"], ["pass_rates"]):
            command = [program("entropy-dynamics"), *stage, "--scale", "cluster"]
            subprocess.run(command, cwd=self.folder, check=True, capture_output=True)

    def start(self, *arguments: str, retries: int = 0) -> subprocess.Popen:
        quick = ("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "20", "--retries", str(retries))
        command = [BIN / "snakemake", *arguments, "--workflow-profile", "profiles/slurm", *quick]
        if "--config" not in arguments:
            command += ["--config", "scale=cluster"]
        with self.said.open("wb") as said:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=heed_interrupts,
            )
        self.started.append(process)
        return process

    def train(self, retries: int = 0) -> subprocess.Popen:
        return self.start(f"results/cluster/{RUN}/metrics.parquet", retries=retries)

    def finish(self, process: subprocess.Popen, code: int = 0) -> str:
        """Wait for its end; what it said."""
        process.wait(SECONDS)
        said = self.said.read_text()
        assert process.returncode == code, said
        return said

    def running_job(self, after_step: int = 2) -> str:
        """The id of the job that trains, once it has a checkpoint of a step from `after_step` on."""
        self.cluster.wait(lambda: self.steps_saved() >= after_step, SECONDS)
        job = self.cluster.output("squeue", "-h", "-t", "running", "-o", "%i")
        assert job.isdecimal(), job
        return job

    def steps_saved(self) -> int:
        folders = self.results.glob("checkpoints/*/*/*/*/step*")
        return max((int(folder.name.removeprefix("step")) for folder in folders), default=0)

    def jobs(self) -> int:
        """How many jobs were submitted, this cluster's other tests' included."""
        return int(self.cluster.output("scontrol", "show", "config").partition("NEXT_JOB_ID")[2].split()[1]) - 1

    def attempts(self) -> list[str]:
        logs = sorted((self.results / "logs" / RUN).parent.glob("seed0.log.*"))
        return [log.read_text() for log in logs]

    def metrics(self) -> pd.DataFrame:
        return pd.read_parquet(self.results / RUN / "metrics.parquet").filter(regex="^(?!seconds)")

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.cluster.cancel_all()


def test_a_scale_to_its_end(project):
    said = project.finish(project.start())
    report = project.results / "report.html"
    assert report.is_file()
    assert {"table2", "figure3", "theory_check"} <= set(re.findall(r"^(\w+) is ready: ", said, re.M))
    assert "run 4 of 4" in said
    assert project.jobs() >= 9
    assert project.cluster.output("squeue", "-h") == ""
    verified = subprocess.run([BIN / "entropy-dynamics", "verify", project.results], cwd=project.folder)
    assert verified.returncode == 0


def test_a_run_meets_its_time_limit_and_resumes(project):
    """A limit of two minutes leaves no time for another step, so each job takes one of the three."""
    project.configure(3, plan={"max_job_hours": 2 / 60})
    project.prepare()
    before = project.jobs()
    said = project.finish(project.train(retries=3))
    assert project.jobs() - before == 3
    assert [line for line in said.splitlines() if "ends early" in line] == [
        f"train qwen2.5-7b-instruct grpo 0: ends early, at a checkpoint after step {step}; the same command resumes it"
        for step in (1, 2)
    ]
    assert "Error in rule" not in said
    assert "run 1 of 1" in said
    assert project.metrics()["step"].tolist() == [0, 1, 2]
    first, second, third = project.attempts()
    assert "ends early, at a checkpoint after step 1" in first
    assert "resumes from the checkpoint after step 1" in second
    assert "resumes from the checkpoint after step 2" in third
    assert (project.results / "logs" / f"{RUN}.log").read_text() == third


def test_two_nodes_train_as_one(project):
    """Their names do not resolve: the ranks meet at the address that SLURM has for the first node."""
    project.prepare()
    project.configure(3, hardware={"ranks": 2, "nodes": 2})
    job = project.jobs() + 1
    project.finish(project.train())
    shown = project.cluster.output("scontrol", "show", "job", str(job))
    assert "NumNodes=2 " in shown
    assert f"NodeList=g[1-{len(NODES)}]" in shown
    of_a_node = int(re.search(r"MinMemoryNode=(\d+)M", shown)[1])
    two_nodes = project.metrics()

    project.configure(3, hardware={"ranks": 2, "nodes": 1})
    run = ("train", "--scale", "cluster", "--model", "qwen2.5-7b-instruct", "--method", "grpo", "--seed", "0")
    subprocess.run([BIN / "entropy-dynamics", *run], cwd=project.folder, env=project.environment, check=True)
    pd.testing.assert_frame_equal(project.metrics(), two_nodes, rtol=1e-5, atol=1e-6)
    assert of_a_node == 4295  # 4 GiB a rank: half of what one node with both would get


def test_a_canceled_job_is_submitted_again(project):
    project.configure(100)
    project.prepare()
    before, snakemake = project.jobs(), project.train(retries=1)
    project.cluster.run("scancel", project.running_job()).check_returncode()
    said = project.finish(snakemake)
    assert "SLURM status is: 'CANCELLED'" in said
    assert project.jobs() - before == 2
    _, resumed = project.attempts()
    assert "resumes from the checkpoint after step" in resumed
    assert len(project.metrics()) == 100


@pytest.mark.parametrize("fault", ["requeue", "node failure"])
def test_a_requeued_job_is_not_submitted_again(project, fault):
    project.configure(100)
    project.prepare()
    before, snakemake = project.jobs(), project.train(retries=1)
    job = project.running_job()
    node = project.cluster.output("squeue", "-h", "-j", job, "-o", "%N")
    if fault == "requeue":
        project.cluster.run("scontrol", "requeue", job).check_returncode()
    else:
        processes = [process for process in psutil.process_iter() if of_job(process, job, project)]
        project.cluster.stop(node)
        for process in processes:
            process.kill()
    try:
        state = ["squeue", "-h", "-j", job, "-o", "%T"]
        project.cluster.wait(lambda: project.cluster.output(*state) == "PENDING", SECONDS)
        project.cluster.wait(  # SLURM lets it wait for two minutes
            lambda: project.cluster.run("scontrol", "update", f"job={job}", "StartTime=now").returncode == 0
        )
        project.finish(snakemake)
    finally:
        if fault == "node failure":
            project.cluster.start(node)
            project.cluster.wait(project.cluster.idle)
    assert project.jobs() - before == 1
    assert len(project.metrics()) == 100
    _, again = project.attempts()
    assert f"note: SLURM job {job} on" in again
    assert "resumes from the checkpoint after step" in again
    assert not list(project.results.glob("locks/*/*/*/*"))


def of_job(process: psutil.Process, job: str, project: Project) -> bool:
    """Whether it is one of the job's on its node, or the daemon of the job there."""
    try:
        daemon = process.name() == "slurmstepd" and f"[{job}." in " ".join(process.cmdline())
        environment = process.environ()
        return daemon or (environment.get("SLURM_JOB_ID") == job and environment.get("TMPDIR") == str(project.folder))
    except psutil.Error:
        return False


def test_ctrl_c_cancels_the_job_and_the_same_command_resumes_it(project):
    project.configure(100)
    project.prepare()
    snakemake = project.train()
    job = project.running_job()
    os.killpg(snakemake.pid, signal.SIGINT)
    project.finish(snakemake, code=1)
    project.cluster.wait(lambda: project.cluster.output("squeue", "-h") == "")
    assert job in project.cluster.output("squeue", "-h", "-t", "cancelled", "-o", "%i").split()
    project.finish(project.train())
    assert "resumes from the checkpoint" in (project.results / "logs" / f"{RUN}.log").read_text()


def test_a_second_job_of_a_run_is_refused_while_the_first_one_runs(project):
    """After SIGKILL of Snakemake its job goes on; the user unlocks, and starts the same command."""
    project.configure(10_000)
    project.prepare()
    snakemake = project.train()
    job = project.running_job()
    os.killpg(snakemake.pid, signal.SIGKILL)
    snakemake.wait()
    project.finish(project.start("--unlock"))
    said = project.finish(project.train(), code=1)
    assert re.search(rf"^ *error: another job writes this run: SLURM job {job}, process \d+ on ", said, re.M), said
    assert project.cluster.output("squeue", "-h", "-o", "%i %T") == f"{job} RUNNING"
    assert project.steps_saved() > 2


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
        (job.gpus, job.host / 1e6, 60 * min(config.plan.max_job_hours, config.plan.safety * job.hours))
        for job in plan.jobs
        if job.stage != "pass_rates"
        for _ in job.configs
    )
    snakemake = project.start(
        "--jobs", "100", "--default-resources", "slurm_partition=big", "nodes=1", "cpus_per_gpu=8",
        "--rerun-triggers", "mtime", "--config", "scale=paper",
    )  # fmt: skip
    ids = ["squeue", "-h", "-t", "pending", "-o", "%i"]
    project.cluster.wait(lambda: len(project.cluster.output(*ids).split()) == len(expected) + 1, SECONDS)  # and theory
    submitted = []
    for job in project.cluster.output(*ids).split():
        shown = project.cluster.output("scontrol", "show", "job", job)
        found = dict(re.findall(r"(\w+)=(\S+)", shown))
        if "rule_theory" not in found["Comment"]:
            gpus = int(re.search(r"TresPerJob=gres[:/]gpu[:=](\d+)", shown)[1])
            submitted.append((gpus, float(found["MinMemoryNode"].removesuffix("M")), minutes(found["TimeLimit"])))
    for (gpus, megabytes, limit), wanted in zip(sorted(submitted), expected, strict=True):
        assert gpus == wanted[0]
        assert megabytes == pytest.approx(wanted[1], abs=1)
        assert limit == pytest.approx(wanted[2], abs=60)  # one job's own method beside the mean of its kind
    os.killpg(snakemake.pid, signal.SIGINT)
    project.finish(snakemake, code=1)
    project.cluster.wait(lambda: project.cluster.output("squeue", "-h") == "")


def minutes(limit: str) -> float:
    """SLURM's [days-]hours:minutes:seconds in minutes."""
    days, _, clock = limit.rpartition("-")
    hours, within, seconds = map(int, clock.split(":"))
    return 60 * (24 * int(days or 0) + hours) + within + seconds / 60
