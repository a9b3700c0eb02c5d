"""The log of a workflow: which tables are ready, the time left, the record of jobs."""

import json
import logging
import signal
import subprocess
import sys
from datetime import datetime
from types import SimpleNamespace

import pytest
from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake.exceptions import LockException
from snakemake_interface_logger_plugins.common import LogEvent

import snakemake_logger_plugin_progress as progress
from entropy_dynamics.distributed.attempts import ended_early

RUN = {"model": "m", "method": "grpo", "seed": "0"}


class Log:
    """A log whose clock is set by hand."""

    def __init__(self, monkeypatch, folder):
        self.folder = folder
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "time", lambda: self.now)
        self.handler = progress.LogHandler(SimpleNamespace(quiet=None, dryrun=False), None)

    def emit(self, event, level=logging.INFO, message="", **more):
        self.handler.handle(logging.makeLogRecord({"event": event, "levelno": level, "msg": message, **more}))

    def start(self, id, rule, output=(), log=None, **wildcards):
        of_job = {"output": output, "log": [log or str(self.folder / f"{rule}.log")], "local": False}
        self.emit(LogEvent.JOB_INFO, jobid=id, rule_name=rule, wildcards=wildcards, **of_job)

    def finish(self, id, at):
        self.now = 1000.0 + at
        self.emit(LogEvent.JOB_FINISHED, job_id=id)


@pytest.fixture
def log(monkeypatch, tmp_path):
    monkeypatch.setattr(progress, "expected", progress.Expectation())
    return Log(monkeypatch, tmp_path)


def test_without_a_record_the_time_left_follows_from_the_jobs_so_far(log, capsys):
    log.emit(LogEvent.RUN_INFO, stats={"pass_rates": 1, "train": 3, "total": 4})
    log.start(1, "pass_rates")
    log.finish(1, at=60)
    log.start(2, "train", **RUN)
    log.emit(LogEvent.SHELLCMD, message="not shown")
    log.finish(2, at=180)
    log.emit(None, logging.WARNING, "a warning")
    there = (
        "Warning: the following output files of rule report were not present when the DAG was created: {'report.html'}"
    )
    log.emit(None, logging.WARNING, there)  # the page is rewritten before its rule runs
    assert capsys.readouterr().err.splitlines() == [
        "4 jobs, 3 of them training runs",
        "[1/4] pass_rates  3 min left",
        "[2/4] train grpo seed 0 m  4 min left",
        "a warning",
    ]


@pytest.mark.parametrize(
    ("stats", "line"),
    [
        ({"train": 1}, "1 job, a training run  < 1 min left"),
        ({"draw": 1}, "1 job  < 1 min left"),
        ({"draw": 2}, "2 jobs  < 1 min left"),
        ({"draw": 1, "train": 1}, "2 jobs, 1 of them a training run  < 1 min left"),
        ({"draw": 4, "train": 4}, "8 jobs, 4 of them training runs  2 min left"),
    ],
)
def test_the_first_line_counts_as_people_do(log, capsys, tmp_path, stats, line):
    progress.expect(tmp_path / "jobs.jsonl", [], {"train": 25, "draw": 2}, threads=1)
    log.emit(LogEvent.RUN_INFO, stats=stats | {"total": sum(stats.values())})
    assert capsys.readouterr().err == f"{line}\n"


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (NOTHING_TO_BE_DONE_MSG, NOTHING_TO_BE_DONE_MSG),
        ("Unlocked working directory.", "Unlocked working directory."),
        (f"LockException:\n{LockException()}", progress.UNLOCK),
    ],
    ids=["nothing", "unlocked", "locked"],
)
def test_what_snakemake_says_of_the_whole_is_one_line(log, capsys, message, line):
    log.emit(None, message=message)
    assert capsys.readouterr().err == f"{line}\n"


def test_a_dry_run_says_what_repeats_how_many_jobs(log, capsys, tmp_path, monkeypatch):
    """A job that follows from others has their causes; a job that two changes repeat counts for each."""

    def job(id, rule, reason, input=(), output=()):
        of_job = {"rule_name": rule, "reason": reason, "input": input, "output": output, "wildcards": {}}
        log.emit(LogEvent.JOB_INFO, message="not shown", jobid=id, **of_job)

    def changes(word, outputs):
        return [f"mu of {outputs[0]} 2.0 -> 2.1"] if word == "b2" else []

    monkeypatch.setattr(progress.os, "cpu_count", lambda: 2)
    progress.expect(tmp_path / "jobs.jsonl", ["table1"], {"train": 60, "table1": 2}, threads=1, changes=changes)
    log.handler.common_settings.dryrun, log.handler.common_settings.verbose = True, False
    log.handler.setFormatter(logging.Formatter("%(message)s"))
    stats = {"stats": {"train": 4, "table1": 1, "total": 5}}
    log.emit(LogEvent.RUN_INFO, message="Job stats", **stats)
    changed = "Params have changed since last execution: Union of exclusive params before and now across all output: "
    job(1, "train", f"{changed}before: 'a1','x' now: 'b2' ", output=["one"])
    job(2, "train", f"Updated input files: data; {changed}before: 'a3' now: 'b2' ", output=["two"])
    job(3, "train", "Missing output files: three", output=["three"])  # as a dry run of Snakemake gives reasons
    job(4, "train", "Input files updated by another job: three", ["three"], ["four"])
    job(5, "table1", "Input files updated by another job: one, four", ["one", "four", "claims"], ["table1.md"])
    lists = "before: '--set n=1 --set m=1',['A', 'B'] now: '--set n=1 --set m=2',['A', 'C c'] "
    job(6, "figure1", f"{changed}{lists}", output=["x"])
    job(7, "figure2", "Set of input files has changed since last execution", output=["y"])
    job(8, "default", "Input files updated by another job: table1.md", ["table1.md"])
    log.emit(None, message="Reasons: ...")
    log.emit(LogEvent.RUN_INFO, message="Job stats", **stats)
    assert capsys.readouterr().err.splitlines() == [
        "Job stats",
        "mu of one 2.0 -> 2.1: 2 jobs, 1 of them a training run  1 min",
        "data has changed: 1 job, a training run  < 1 min",
        "mu of two 2.0 -> 2.1: 1 job, a training run  < 1 min",
        "not there yet: 3 jobs, 2 of them training runs  1 min",
        "m=1, 'B' -> m=2, 'C c': 1 job  < 1 min",
        "made from other files: 1 job  < 1 min",
        "in all: 7 jobs, 4 of them training runs  2 min",
    ]


def test_costs_and_the_speed_so_far_give_the_time_left_and_the_next_call_knows_it_at_once(log, capsys, tmp_path):
    record = tmp_path / "logs" / "jobs.jsonl"
    costs = {"model": 60, "train": 30, "table1": 2}
    steps = "m grpo seed 0 {}/50  entropy 0.{}  accuracy 0.{}  0 s left\n"
    (tmp_path / "train.log").write_text(steps.format(1, "413", "090") + steps.format(50, "304", "241") + "written\n")
    for finished in (False, True):
        progress.expect(record, ["table1"], costs, threads=1)
        log.handler.__post_init__()
        log.emit(LogEvent.RESOURCES_INFO, cores=2)
        log.emit(LogEvent.RUN_INFO, stats={"model": 2, "train": 8, "table1": 1, "total": 11})
        if not finished:
            log.start(1, "model", model="m")
            log.start(2, "model", model="n")
            log.finish(1, at=120)  # half as fast as expected, and another model that should be done
            log.start(3, "train", **RUN)
            log.finish(2, at=120)
            log.finish(3, at=150)  # 30 s, as expected
            log.start(4, "table1", ["results/laptop/tables/table1.csv", "results/laptop/tables/table1.md"])
            log.finish(4, at=154)
    assert capsys.readouterr().err.splitlines() == [
        "11 jobs, 8 of them training runs  3 min left",
        # 362 s expected, so 36.2 s count as done: (8 x 30 + 2) / 2 x (120 + 36.2) / (60 + 36.2) s
        "[1/11] model m  0/1 tables and figures  3 min left",
        "[2/11] model n  0/1 tables and figures  4 min left",  # 121 x (240 + 36.2) / (120 + 36.2) s
        "[3/11] train grpo seed 0 m  entropy 0.30  accuracy 24%  0/1 tables and figures  3 min left",
        "[4/11] table1 is ready: results/laptop/tables/table1.md  1/1 tables and figures  3 min left",
        "11 jobs, 8 of them training runs  4 min left",  # (2 x 120 + 8 x 30 + 4) / 2
    ]
    jobs = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(job["rule"], job["seconds"]) for job in jobs] == [
        ("model", 120),
        ("model", 120),
        ("train", 30),
        ("table1", 4),
    ]


def test_on_a_cluster_pending_jobs_are_not_running_and_queue_time_is_no_duration(log, capsys, tmp_path):
    """A job runs from the time in the first line of its log, if that is not of the attempt before it."""

    def began(seed, at):
        stamp = datetime.fromtimestamp(1000 + at).astimezone().isoformat()
        (tmp_path / f"{seed}.log").write_text(f"note: SLURM job 7 on g1, from {stamp}\n")

    log.emit(LogEvent.RESOURCES_INFO, nodes=16)
    log.emit(LogEvent.RUN_INFO, stats={"train": 4, "total": 4})
    began(1, at=-500)  # an attempt before
    for seed in range(4):
        log.start(seed, "train", log=str(tmp_path / f"{seed}.log"), **RUN | {"seed": seed})
    began(0, at=600)
    began(2, at=660)
    log.finish(0, at=720)
    (tmp_path / "2.log.ended_early").touch()
    log.emit(LogEvent.JOB_ERROR, logging.ERROR, "long text", jobid=2)
    log.start(2, "train", log=str(tmp_path / "2.log"), **RUN | {"seed": 2})
    for seed, at in ((1, 780), (2, 790), (3, 800)):
        began(seed, at)
    log.finish(1, at=900)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "[1/4] train grpo seed 0 m  1 running, 2 pending  2 min left",  # of 3 x 2, 1 done; two at a time
        "train grpo seed 2 m: ends early, at a checkpoint; the same command resumes it",
        "[2/4] train grpo seed 1 m  2 running, 0 pending  < 1 min left",  # of 2 x 2, nearly all done
    ]


ENDS = """
import sys
from entropy_dynamics import cli, commands
from entropy_dynamics.errors import Unfinished
def ends(options): raise Unfinished
commands.config = ends
sys.exit(cli.main(["config", "--scale", "smoke"]))
"""


def test_a_run_that_ends_early_says_so_beside_its_log_until_the_next_attempt(tmp_path):
    log = tmp_path / "run.log"
    for code, marked in ((ENDS, True), (ENDS.replace("commands.config = ends", ""), False)):
        with log.open("w") as file:
            done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=file)
        assert (done.returncode, ended_early(str(log))) == ((75, True) if marked else (0, False))


class Page:
    """A command that takes down when it has written the page, and the file in which it does."""

    def __init__(self, log, folder, *steps):
        self.log, self.file = log, folder / "page"
        self.file.touch()
        command = ["sh", "-c", "; ".join([*steps, f"echo written >> {self.file}"])]
        progress.expect(folder / "jobs.jsonl", ["table1"], {}, threads=1, page=command)

    @property
    def times(self):
        return len(self.file.read_text().splitlines())

    def times_after(self, rule, id):
        """How often it was written when a job of the rule has ended, and the command with it."""
        self.log.start(id, rule)
        self.log.finish(id, at=id)
        if self.log.handler.page is not None:
            self.log.handler.page.wait()
        return self.times


def test_the_page_is_rewritten_after_a_table_and_every_few_minutes_until_its_rule_begins(log, tmp_path):
    page = Page(log, tmp_path)
    log.emit(LogEvent.RUN_INFO, stats={"train": 3, "table1": 2, "report": 1, "total": 6})
    assert page.times_after("train", 10) == 0
    assert page.times_after("table1", 20) == 1
    assert page.times_after("train", 30) == 1
    assert page.times_after("train", 200) == 2
    log.start(7, "report")
    assert page.times_after("table1", 310) == 2
    log.handler.close()
    assert page.times == 2


@pytest.mark.parametrize("ending", ["exit 1", "kill $$"])
def test_a_page_whose_command_failed_is_rewritten_at_the_end(log, tmp_path, ending):
    """Ctrl-C's signal goes to it, too."""
    page = Page(log, tmp_path, f"[ -e {tmp_path / 'failed'} ] || {{ touch {tmp_path / 'failed'}; {ending}; }}")
    log.emit(LogEvent.RUN_INFO, stats={"table1": 1, "total": 1})
    assert page.times_after("table1", 1) == 0
    log.handler.close()
    assert page.times == 1


def test_the_rule_of_the_page_ends_a_command_that_is_not_repeated(log, tmp_path):
    """Else it would replace the page of all results."""
    page = Page(log, tmp_path, f"[ -e {tmp_path / 'gate'} ] || exec sleep 60")
    log.emit(LogEvent.RUN_INFO, stats={"table1": 1, "report": 1, "total": 2})
    log.start(1, "table1")
    log.finish(1, at=1)
    command = log.handler.page
    log.start(2, "report")
    assert command.wait() == -signal.SIGTERM
    (tmp_path / "gate").touch()
    log.handler.close()
    assert page.times == 0
