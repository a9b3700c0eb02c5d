"""The log of a workflow: which tables are ready, the time left, the record of jobs."""

import json
import logging
import os
from datetime import datetime
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

import snakemake_logger_plugin_progress as progress

RUN = {"model": "m", "method": "grpo", "seed": "0"}


class Log:
    """A log whose clock is set by hand."""

    def __init__(self, monkeypatch):
        self.handler = progress.LogHandler(SimpleNamespace(quiet=None, dryrun=False), None)
        self.now = 1000.0
        self.times = os.times_result((0.0,) * 5)
        monkeypatch.setattr(progress.time, "time", lambda: self.now)
        monkeypatch.setattr(progress.os, "times", lambda: self.times)

    def emit(self, event, level=logging.INFO, message="", **more):
        self.handler.emit(logging.makeLogRecord({"event": event, "levelno": level, "msg": message, **more}))

    def start(self, id, rule, output=(), log="results/laptop/logs/{}.log", **wildcards):
        of_job = {"output": output, "log": [log.format(rule)], "local": False}
        self.emit(LogEvent.JOB_INFO, jobid=id, rule_name=rule, wildcards=wildcards, **of_job)

    def finish(self, id, at):
        self.now = 1000.0 + at
        self.emit(LogEvent.JOB_FINISHED, job_id=id)


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(progress, "expected", progress.Expectation())
    return Log(monkeypatch)


def test_without_a_record_the_time_left_follows_from_the_jobs_so_far(log, capsys):
    log.emit(LogEvent.RUN_INFO, stats={"pass_rates": 1, "train": 3, "total": 4})
    log.start(1, "pass_rates")
    log.finish(1, at=60)
    log.start(2, "train", **RUN)
    log.emit(LogEvent.SHELLCMD, message="not shown")
    log.finish(2, at=180)
    log.emit(None, logging.WARNING, "a warning")
    assert capsys.readouterr().err.splitlines() == [
        "4 jobs, 3 of them training runs",
        "pass_rates  3 min left",
        "train m grpo 0  run 1 of 3  4 min left",
        "a warning",
    ]


def test_a_retried_job_counts_once(log, capsys):
    log.emit(LogEvent.RUN_INFO, stats={"train": 2, "total": 2})
    log.start(1, "train", **RUN)
    log.emit(LogEvent.JOB_ERROR, logging.ERROR, "failed", jobid=1)
    log.start(1, "train", **RUN)
    log.finish(1, at=60)
    assert capsys.readouterr().err.splitlines()[-1] == "train m grpo 0  run 1 of 2  1 min left"


def test_costs_and_the_speed_so_far_give_the_time_left_and_the_next_call_knows_it_at_once(log, capsys, tmp_path):
    record = tmp_path / "logs" / "jobs.jsonl"
    costs = {"model": 60, "train": 30, "table1": 2}
    for finished in (False, True):
        progress.expect(record, ["table1"], costs, threads=1)
        log.handler.__post_init__()
        log.emit(LogEvent.RESOURCES_INFO, cores=2)
        log.emit(LogEvent.RUN_INFO, stats={"model": 2, "train": 8, "table1": 1, "total": 11})
        if not finished:
            log.start(1, "model", model="m")
            log.start(2, "model", model="n")
            log.times = os.times_result((2.0, 1.0, 200.0, 30.0, 120.0))  # user, system, children's user and system
            log.finish(1, at=120)  # half as fast as expected, and another model that should be done
            log.start(3, "train", **RUN)
            log.finish(2, at=120)
            log.finish(3, at=150)  # 30 s, as expected
            log.start(4, "table1", ["results/laptop/tables/table1.csv", "results/laptop/tables/table1.md"])
            log.finish(4, at=154)
    assert capsys.readouterr().err.splitlines() == [
        "11 jobs, 8 of them training runs  3 min left",
        "model m  0 of 1 tables and figures  3 min left",  # (8 x 30 + 2) / 2 x (120 + 60) / (60 + 60) s
        "model n  0 of 1 tables and figures  3 min left",
        "train m grpo 0  run 1 of 8  0 of 1 tables and figures  2 min left",
        "table1 is ready: results/laptop/tables/table1.md  1 of 1 tables and figures  2 min left",
        "11 jobs, 8 of them training runs  4 min left",  # (2 x 120 + 8 x 30 + 4) / 2
    ]
    jobs = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(job["rule"], job["seconds"]) for job in jobs] == [
        ("model", 120),
        ("model", 120),
        ("train", 30),
        ("table1", 4),
    ]
    assert [job["jobs_cpu_seconds"] for job in jobs] == [230, 0, 0, 0]  # since the record before
    assert [job["snakemake_cpu_seconds"] for job in jobs] == [3, 0, 0, 0]


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
    (tmp_path / "2.log").write_text(
        "note: ...\nnote: ends early, at a checkpoint after step 3; the same command resumes it\n"
    )
    log.emit(LogEvent.JOB_ERROR, logging.ERROR, "long text", jobid=2)
    log.start(2, "train", log=str(tmp_path / "2.log"), **RUN | {"seed": 2})
    for seed, at in ((1, 780), (2, 790), (3, 800)):
        began(seed, at)
    log.finish(1, at=900)
    assert capsys.readouterr().err.splitlines()[1:] == [
        "train m grpo 0  run 1 of 4  1 running, 2 pending  2 min left",  # of 3 x 2, 1 done; two at a time
        "train m grpo 2: ends early, at a checkpoint after step 3; the same command resumes it",
        "train m grpo 1  run 2 of 4  2 running, 0 pending  0 min left",  # of 2 x 2, nearly all done
    ]
