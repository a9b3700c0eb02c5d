"""The command `entropy-dynamics`: handed to a process that has its imports already (preload.py), else run here."""

import os
import sys

SERVER = "ENTROPY_DYNAMICS_SERVER"
"""The environment variable with the address of that process."""
MESSAGE_BYTES = 1 << 20


def program() -> None:
    """Run the command of this process and exit with its code."""
    if SERVER in os.environ and "RANK" not in os.environ:
        code = hand_over(os.environ[SERVER], sys.argv[1:])
        if code is not None:
            sys.stdout.flush()
            os._exit(code)
    from entropy_dynamics.cli import program

    program()


def python() -> list[str]:
    """What decides which modules an import finds."""
    return [sys.prefix, *(f"{name}={value}" for name, value in sorted(os.environ.items()) if name[:6] == "PYTHON")]


def hand_over(address: str, arguments: list[str]) -> int | None:
    """Have the server run a command with the arguments, environment, folder and files of this process.

    Signals are passed on to it. If a signal ends it, this process ends by the same one; if this process is killed, the
    server kills it.

    Returns:
        The exit code; None if no server is there, it has other modules, or it was killed. Nothing is running then.
    """
    import json
    import select
    import signal
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ), "python": python()}
        try:
            server.connect(address)
            server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES)
            socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
            answer = server.recv(64)
        except OSError:
            return None
        if not answer:
            return None
        command = os.pidfd_open(int(answer))
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGURG):
            signal.signal(number, lambda number, _: signal.pidfd_send_signal(command, number))
        try:
            status = server.recv(64)
        except ConnectionResetError:
            status = b""
        if not status:
            select.select([command], [], [])  # it dies with the server
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGURG):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            return None
        code = os.waitstatus_to_exitcode(int(status))
        if code < 0:
            if -code != signal.SIGKILL:
                signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        return code
