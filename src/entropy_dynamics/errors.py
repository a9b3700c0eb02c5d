"""Errors that the user can fix, printed as one line by the command line, and the early end of a run."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in a config, a data file or a command. The message says where, what is wrong and how to fix it."""


class NotFiniteError(UserError):
    """A loss, gradient or log p is not finite. Raised on all ranks; no optimizer step was taken with it."""


class EngineMismatchError(UserError):
    """The engine's log p differs from the trainer's: it does not hold the trainer's weights. Raised on all ranks."""


class Unfinished(Exception):
    """A run ended at a checkpoint before its last step; the same command resumes it. Raised on all ranks."""

    EXIT_CODE = 75  # EX_TEMPFAIL in sysexits.h: try again


def nearest(word: str, known: Iterable[str]) -> str:
    """Suffix for an 'unknown ...' message: the nearest known word, or all known words."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
