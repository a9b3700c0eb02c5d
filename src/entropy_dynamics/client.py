"""The command `entropy-dynamics`: run by a process that already has its imports (preload.py), or else in this one."""

import os
import sys

SERVER = "ENTROPY_DYNAMICS_SERVER"  # environment variable with the address of that process
MESSAGE_BYTES = 1 << 20


def program() -> None:
    """Run the command of this process and exit with its code."""
    if SERVER in os.environ and "RANK" not in os.environ:
        try:
            code = hand_over(os.environ[SERVER], sys.argv)
        except KeyboardInterrupt:  # before the command has started
            print("interrupted; no partial file was left behind", file=sys.stderr)
            code = 130
        if code is not None:
            sys.stdout.flush()
            os._exit(code)
        end_with_starter(os.environ[SERVER])
    from entropy_dynamics.cli import program

    program()


def end_with_starter(address: str) -> None:
    """Kill this process when the one that started the server ends; the server, which usually does so, may be gone."""
    import fcntl
    import signal
    from threading import Thread

    try:
        folder = os.open(os.path.dirname(address), os.O_RDONLY)
    except FileNotFoundError:  # no server was started here, or it has ended normally
        return

    def wait() -> None:
        fcntl.flock(folder, fcntl.LOCK_SH)  # blocks until the starter, which has locked it, ends
        os.kill(os.getpid(), signal.SIGKILL)

    Thread(target=wait, daemon=True).start()


def python() -> list[str]:
    """The settings that determine which modules an import finds."""
    return [sys.prefix, *(f"{name}={value}" for name, value in sorted(os.environ.items()) if name[:6] == "PYTHON")]


def hand_over(address: str, command: list[str]) -> int | None:
    """Let the server run a command with the environment, working directory and standard files of this process.

    Signals are forwarded to the command. If a signal ends it, this process ends by the same signal; if this process is
    killed, the server kills the command. Returns the exit code; None if there is no server, it has different modules,
    or it was killed. In that case nothing is running anymore.
    """
    import contextlib
    import json
    import select
    import signal
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        request = {"command": command, "folder": os.getcwd(), "environment": dict(os.environ), "python": python()}
        try:
            server.connect(address)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
            socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
            _, processes, *_ = socket.recv_fds(server, 64, 1)
        except OSError:
            return None
        if not processes:
            return None
        (command,) = processes  # a pidfd, which remains valid after the command has ended

        def pass_on(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(command, number)

        passed = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGURG)
        before = {number: signal.signal(number, pass_on) for number in passed}
        try:
            status = server.recv(64)
        except ConnectionResetError:
            status = b""
        if not status:
            select.select([command], [], [])  # the command dies with the server
            for number, handler in before.items():
                signal.signal(number, handler)
            return None
        code = os.waitstatus_to_exitcode(int(status))
        if code < 0:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        return code
