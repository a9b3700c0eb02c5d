"""Commands in forks of a preloaded process: as if each had run by itself, whoever is killed."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from conftest import ROOT, SmallResults
from entropy_dynamics import preload
from entropy_dynamics.client import SERVER
from fault_harness import wait_until
from project_copy import copy_project, without_server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="pidfd and prctl are Linux's")
WAIT = 120  # seconds after which a test gives up
COMMAND = [sys.executable, "-c", "from entropy_dynamics.client import program; program()"]
STARTER = f"""
import os, sys
from entropy_dynamics import preload
preload.start()
print(os.environ[{SERVER!r}], flush=True)
sys.stdin.read()
"""


@dataclass
class Preloaded:
    """A process that has started a server, as Snakemake does."""

    starter: subprocess.Popen
    address: Path
    server: psutil.Process

    def run(self, *arguments: object, **more: str) -> subprocess.CompletedProcess:
        process = self.start(*arguments, **more)
        output = process.communicate(timeout=WAIT)
        return subprocess.CompletedProcess(arguments, process.returncode, *output)

    def start(self, *arguments: object, cwd: Path | None = None, **more: str) -> subprocess.Popen:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        environment = os.environ | {SERVER: str(self.address)} | more
        return subprocess.Popen([*COMMAND, *map(str, arguments)], cwd=cwd, env=environment, **pipes)

    def commands(self) -> list[psutil.Process]:
        return self.server.children()


def running() -> Iterator[Preloaded]:
    # Not in pytest's folders: the path of a socket is short.
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/errors", "w") as errors:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        command, environment = [sys.executable, "-c", STARTER], without_server(TMPDIR=folder)
        with subprocess.Popen(command, env=environment, cwd=ROOT, text=True, **pipes) as starter:
            address = Path(starter.stdout.readline().strip())
            [server] = psutil.Process(starter.pid).children()
            yield Preloaded(starter, address, server)
            starter.kill()


preloaded = pytest.fixture(running, scope="module", name="preloaded")
own = pytest.fixture(running, name="own")  # a server of the test's own, to be killed


def has_ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def endless_run(server: Preloaded, results: SmallResults) -> subprocess.Popen:
    """A training run of many steps that has begun."""
    run = server.start(*results.train("grpo"), "--set", "training.steps=100000")
    wait_until(lambda: "1/100000" in run.stderr.readline())
    return run


@pytest.fixture
def endless(preloaded, small_results) -> subprocess.Popen:
    return endless_run(preloaded, small_results)


# ---------------------------------------------------------------- as if it had run by itself
def test_a_run_is_the_same_to_the_byte(preloaded, small_results):
    """But for metrics.parquet, which has seconds in it, and the provenance, which has its hash."""
    contents = []
    for server in (preloaded.address, "none"):
        run = preloaded.run(*small_results.train("clip_b"), **{SERVER: str(server)})
        assert run.returncode == 0, run.stderr
        folder = small_results.run("clip_b")
        differing = {folder / "metrics.parquet", folder / "provenance.json"}
        files = [path for path in folder.rglob("*") if path.is_file() and path not in differing]
        contents.append({path: path.read_bytes() for path in files})
        shutil.rmtree(folder)
        shutil.rmtree(small_results.folder / "smoke" / "evaluations")
    assert len(contents[0]) > 4
    assert contents[0] == contents[1]


def test_output_and_exit_codes(preloaded, small_results, tmp_path):
    for arguments in (["no-such-command"], ["config", "--model", "qwen3-4b-base"]):
        by_itself = preloaded.run(*arguments, **{SERVER: "none"})
        handed_over = preloaded.run(*arguments)
        assert handed_over.stdout == by_itself.stdout
        assert handed_over.stderr == by_itself.stderr
        assert handed_over.returncode == by_itself.returncode


def test_it_runs_in_a_fork_with_the_clients_folder_and_environment(preloaded, tmp_path):
    """The folder decides where configs are read: from another one there are none."""
    process = preloaded.run("config", cwd=tmp_path)
    assert process.returncode == 2
    assert "configs" in process.stderr
    assert preloaded.commands() == []
    assert preloaded.server.num_threads() == 1


def test_the_client_imports_next_to_nothing(preloaded):
    program = "import os, sys; from entropy_dynamics.client import SERVER, hand_over;"
    program += "code = hand_over(os.environ[SERVER], ['', 'config']); print('MODULES', *sys.modules); sys.exit(code)"
    environment = os.environ | {SERVER: str(preloaded.address)}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert run.returncode == 0
    modules = run.stdout.rpartition("MODULES")[2].split()
    assert "socket" in modules
    assert not {"numpy", "pydantic", "torch", "omegaconf", "argparse", "pathlib", "typing"} & set(modules)


LOADS = """
import os, sys
from entropy_dynamics import preload
for stage in preload.STAGES:
    preload.load(["", stage])
    print(stage, f"entropy_dynamics.stages.{stage}" in sys.modules, len(os.listdir("/proc/self/task")))
"""


def test_the_modules_of_every_stage_are_imported_in_a_single_thread():
    environment = os.environ | preload.SINGLE_THREADED
    run = subprocess.run([sys.executable, "-c", LOADS], capture_output=True, text=True, env=environment)
    assert run.stdout.splitlines() == [f"{stage} True 1" for stage in preload.STAGES], run.stderr


def test_only_its_owner_reaches_it(preloaded):
    folder = preloaded.address.parent
    assert folder.stat().st_mode & 0o777 == 0o700
    kinds = {(connection.family.name, connection.laddr) for connection in preloaded.server.net_connections("all")}
    assert kinds == {("AF_UNIX", str(preloaded.address))}


@pytest.mark.parametrize("options", [(), ("--no-hooks",), ("--config", "scale=rehearsal")], ids=str)
def test_snakemake_starts_it_for_a_cpu_scale_without_ranks(tmp_path, options):
    project = copy_project(tmp_path)
    selection = () if "--config" in options else ("--config", "scale=smoke")
    scale = "rehearsal" if "--config" in options else "smoke"
    command = [Path(sys.executable).with_name("snakemake"), f"results/{scale}/data/problems.json", *options, *selection]
    with open(tmp_path / "output", "w") as output:
        snakemake = psutil.Popen(command, cwd=project, env=without_server(), stdout=output, stderr=output)
    servers = {}
    while snakemake.poll() is None:
        with suppress(psutil.NoSuchProcess):
            servers |= {
                child.pid: child for child in snakemake.children() if "entropy_dynamics.preload" in child.cmdline()
            }
        time.sleep(0.01)
    if scale == "smoke":
        assert snakemake.returncode == 0, (tmp_path / "output").read_text()
    assert len(servers) == (not options)
    wait_until(lambda: all(has_ended(server) for server in servers.values()))


# ---------------------------------------------------------------- where no server can serve
def children_seconds(server: Preloaded) -> float:
    return server.server.cpu_times().children_user


@pytest.mark.parametrize("reason", ["no server", "another Python"])
def test_a_command_runs_by_itself(preloaded, reason, tmp_path):
    environment = {
        "no server": {SERVER: str(tmp_path / "nowhere" / "socket")},
        "another Python": {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])},
    }
    before = children_seconds(preloaded)
    run = preloaded.run("config", **environment[reason])
    assert (run.returncode, run.stderr) == (0, "")
    assert "training:" in run.stdout
    assert children_seconds(preloaded) == before


def test_commands_run_by_themselves_after_the_code_was_edited(own):
    source = Path(preload.__file__)
    status = source.stat()
    assert own.run("config").returncode == 0  # the server has noted its sources
    before = children_seconds(own)
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    try:
        runs = [own.run("config") for _ in range(2)]
    finally:
        os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [(run.returncode, run.stderr) for run in runs] == [(0, "")] * 2
    assert children_seconds(own) == before


# ---------------------------------------------------------------- signals and kills
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        *((number, -number) for number in (signal.SIGTERM, signal.SIGKILL)),
        (signal.SIGURG, 75),  # a run that is asked to end does so at a checkpoint
    ],
)
def test_a_signal_to_the_client_ends_its_command(preloaded, endless, small_results, number, code):
    (command,) = preloaded.commands()
    endless.send_signal(number)
    assert endless.wait(WAIT) == code
    wait_until(lambda: has_ended(command))
    assert bool(list(small_results.folder.rglob("checkpoint.json"))) == (code == 75)
    assert preloaded.run("config").returncode == 0


def test_a_killed_command_ends_its_client_likewise(preloaded, endless):
    (command,) = preloaded.commands()
    command.kill()
    assert endless.wait(WAIT) == -signal.SIGKILL
    assert preloaded.run("config").returncode == 0


def test_after_the_server_was_killed_commands_run_by_themselves(own, small_results):
    run = own.start(*small_results.train("grpo"), "--set", "training.steps=30")
    commands = []
    wait_until(lambda: commands or commands.extend(own.commands()))
    (command,) = commands
    own.server.kill()
    wait_until(lambda: has_ended(command))
    _, errors = run.communicate(timeout=WAIT)
    assert run.returncode == 0, errors
    assert (small_results.run("grpo") / "metrics.parquet").is_file()
    assert own.run("config").returncode == 0


def test_nothing_is_left_of_a_killed_starter(own, small_results):
    endless = endless_run(own, small_results)
    (command,) = own.commands()
    own.starter.kill()
    wait_until(lambda: has_ended(own.server) and has_ended(command))
    wait_until(lambda: not own.address.parent.exists())
    assert endless.wait(WAIT) == -signal.SIGKILL


def test_a_command_that_runs_by_itself_ends_with_a_killed_starter_too(own, small_results):
    own.server.kill()
    wait_until(lambda: has_ended(own.server))
    endless = endless_run(own, small_results)
    own.starter.kill()
    assert endless.wait(WAIT) == -signal.SIGKILL


def test_output_goes_to_a_pipe_where_the_server_has_a_file(tmp_path):
    """A file can seek, and what Python has learnt of it does not hold for a pipe."""
    said = tmp_path / "log"
    with tempfile.TemporaryDirectory() as folder, said.open("w") as log:
        environment = without_server(TMPDIR=folder)
        command = [sys.executable, "-c", STARTER]
        with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=log):
            wait_until(lambda: said.read_text().endswith("socket\n"))
            environment[SERVER] = said.read_text().splitlines()[-1]  # after a warning, perhaps
            run = subprocess.run([*COMMAND, "config"], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout
