"""A real SLURM on this machine: slurmctld and a slurmd per node, run by the user who runs the tests.

Only installing its packages needs root. The nodes claim GPUs, CPUs and memory that only SLURM believes in; there is no
accounting database. Nothing outside the cluster's folder is written.
"""

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

DAEMONS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sacct", "sacctmgr", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun", "sshare")
PACKAGES = ("slurm-wlm", "munge")
NODES = ("g1", "g2")  # these names resolve nowhere: ranks on several nodes meet at the address that SLURM knows
GPUS, CPUS, MEGABYTES = 8, 64, 2_000_000
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
KillWait=5
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
# On a busy machine nothing answers in time, and jobs take minutes to start and to end. No test waits for any of these.
BatchStartTimeout=3600
MessageTimeout=100
MinJobAge=3600
OverTimeLimit=60
SlurmdTimeout=3600
TCPTimeout=60
UnkillableStepTimeout=3600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName=DEFAULT CPUs={cpus} Sockets=2 CoresPerSocket=32 ThreadsPerCore=1 RealMemory={memory} Gres=gpu:{gpus}
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
NodeName=b[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[3]}-{ports[6]}]
PartitionName=gpu Nodes={nodes[0]},{nodes[1]} Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes={nodes[0]},{nodes[1]} MaxTime=INFINITE State=UP PriorityTier=9
PartitionName=big Nodes=b[1-4] MaxTime=INFINITE State=UP
"""
# SLURM_CONF in the environment would not do: the executor clears SLURM_*.
PROGRAM = """\
#!/bin/sh
SLURM_CONF={folder}/slurm.conf exec {program} "$@"
"""
# The executor asks how its jobs are at intervals of up to three minutes. Here its question waits for another job's end,
# for less than the minute after which it would give up.
SQUEUE = """\
#!/bin/sh
export SLURM_CONF={folder}/slurm.conf
case "$*" in *--states=all*--name*) ;; *) exec {program} "$@" ;; esac
for run; do :; done
touch {folder}/"$run".asked
limit=$(($(date +%s) + 40))
while
    answer=$({program} "$@") || exit
    ended=$(echo "$answer" | grep -Ec 'COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL')
    [ "$ended" = "$(cat {folder}/"$run".ended 2> /dev/null)" ] && [ "$(date +%s)" -lt $limit ]
do
    sleep 0.2
done
echo "$ended" > {folder}/"$run".ended
echo "$answer"
"""
SECONDS = 3600  # until a test gives up waiting for what takes seconds on an idle machine


def missing() -> str | None:
    """Why there can be no cluster here, or None."""
    if absent := [name for name in (*DAEMONS, *CLIENTS) if shutil.which(name) is None]:
        return (
            f"no {absent[0]}: install {' and '.join(PACKAGES)}, as `make test-slurm` does with root or sudo and apt-get"
        )
    return None


def install() -> None:
    """SLURM's packages, where that is possible."""
    if missing() is None or shutil.which("apt-get") is None:
        return
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    apt = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "Dpkg::Use-Pty=0"]
    for arguments in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        with suppress(OSError):  # no sudo
            subprocess.run([*apt, *arguments], stdout=subprocess.DEVNULL)


def free_ports(count: int) -> range:
    """Consecutive ports on which nothing listens, below Linux's ephemeral ones. Workers of pytest-xdist begin apart."""
    for first in range(16_000 + 10 * (os.getpid() % 400), 30_000, 10):
        ports = range(first, first + count)
        with ExitStack() as stack, suppress(OSError):
            for port in ports:
                stack.enter_context(socket.socket()).bind(("", port))
            return ports
    raise AssertionError("no free ports")


class SlurmCluster:
    """Partition `gpu` has two nodes; those of `big` never start, so that its jobs stay pending."""

    def __init__(self, folder: Path):
        self.folder, self.daemons = folder, {}
        self.ports = free_ports(7)
        self.environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}

    def __enter__(self) -> "SlurmCluster":
        folder = self.folder
        for name in ("state", *(f"spool.{node}" for node in NODES)):
            (folder / name).mkdir(parents=True)
        folder.chmod(0o755)  # munged wants no folder that others may write to
        (folder / "bin").mkdir()
        for name in (*DAEMONS, *CLIENTS):
            program, text = folder / "bin" / name, SQUEUE if name == "squeue" else PROGRAM
            program.write_text(text.format(folder=folder, program=shutil.which(name)))
            program.chmod(0o755)
        gpus = [folder / f"nvidia{number}" for number in range(GPUS)]  # SLURM gives them out by these names
        for gpu in gpus:
            gpu.symlink_to(os.devnull)  # a character device without root
        (folder / "gres.conf").write_text(f"NodeName=g[1-2],b[1-4] Name=gpu File={folder}/nvidia[0-{GPUS - 1}]\n")
        (folder / "slurm.conf").write_text(
            CONFIG.format(
                folder=folder,
                host=socket.gethostname().partition(".")[0],
                user=getpass.getuser(),
                ports=self.ports,
                nodes=NODES,
                cpus=CPUS,
                memory=MEGABYTES,
                gpus=GPUS,
            )
        )
        key = folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        where = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        try:
            self._start("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *where)
            self.wait(lambda: (folder / "munge.socket").exists())
            self._start("slurmctld", "-D")
            self.wait(lambda: self.run("scontrol", "ping").returncode == 0)
            for node in NODES:
                self.start(node)
            self.wait(self.idle)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if "slurmctld" in self.daemons:
            self.cancel_all()
        for name in reversed(list(self.daemons)):
            self._stop(name)

    def idle(self) -> bool:
        """Both nodes wait for jobs."""
        return self.output("sinfo", "-h", "-p", "gpu", "-t", "idle", "-o", "%D") == str(len(NODES))

    def cancel_all(self) -> None:
        self.run("scancel", "--user", getpass.getuser())
        self.wait(lambda: self.output("squeue", "-h") == "")

    def start(self, node: str) -> None:
        self._start(f"slurmd.{node}", "-D", "-N", node)

    def lose(self, node: str, job: str) -> None:
        """The node of a job loses power: its daemon and the job's processes are gone, and SLURM is told so."""
        processes = [process for process in psutil.process_iter() if self._runs(process, job)]
        daemons = [parent for process in processes if (parent := process.parent()).name() == "slurmstepd"]
        self._stop(f"slurmd.{node}", signal.SIGKILL)
        for process in (*daemons, *processes):  # the daemons first: they would tell SLURM how the others end
            with suppress(psutil.NoSuchProcess):  # some end by themselves then
                process.kill()
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=lost").check_returncode()

    def _runs(self, process: psutil.Process, job: str) -> bool:
        """Whether it is one of the job's; other clusters may have a job of that number, too."""
        try:
            environment = process.environ()
        except psutil.Error:
            return False
        here = f"{self.folder}/bin" in environment.get("PATH", "").split(":")  # the rules put their environment first
        return here and environment.get("SLURM_JOB_ID") == job

    def _start(self, name: str, *arguments: str) -> None:
        with (self.folder / f"{name}.out").open("wb") as log:
            self.daemons[name] = subprocess.Popen(
                [self.folder / "bin" / name.partition(".")[0], *arguments],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _stop(self, name: str, by: signal.Signals = signal.SIGTERM) -> None:
        daemon = self.daemons.pop(name)
        daemon.send_signal(by)
        daemon.wait(SECONDS)

    def run(self, *command: str) -> subprocess.CompletedProcess:
        return subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True)

    def output(self, *command: str) -> str:
        return self.run(*command).stdout.strip()

    def time_out(self, job: str) -> None:
        """SLURM ends a job at its time limit, now a minute, and not OverTimeLimit later as all others."""
        partition = ("scontrol", "update", "PartitionName=gpu")
        self.run(*partition, "OverTimeLimit=0").check_returncode()
        self.run("scontrol", "update", f"job={job}", "TimeLimit=1").check_returncode()
        self.wait(lambda: self.output("squeue", "-h", "-j", job, "-t", "all", "-o", "%T") == "TIMEOUT")
        self.run(*partition, "OverTimeLimit=60").check_returncode()

    def wait(self, true: Callable[[], bool]) -> None:
        end = time.monotonic() + SECONDS
        while not true():
            ended = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            assert not ended, f"{ended[0]} ended; logs in {self.folder}"
            assert time.monotonic() < end, f"not within {SECONDS} s; logs in {self.folder}"
            time.sleep(0.1)


if __name__ == "__main__":
    install()
