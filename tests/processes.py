"""Processes of this machine, as tests look at them."""

from pathlib import Path


def alive(pid: int) -> bool:
    """The process runs and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
