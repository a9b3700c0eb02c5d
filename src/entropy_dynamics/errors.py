"""Errors that the user can fix, which the command line prints as one line; and the early end of a run."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in a config, a data file or a command: the message names the place, the fault and the fix."""


class NotFiniteError(UserError):
    """A loss, a gradient or a log p is not finite, on all ranks together; no optimizer step was taken with it."""


class EngineMismatchError(UserError):
    """The engine's log p are not the trainer's, on all ranks together: it does not hold the trainer's weights."""


class Unfinished(Exception):
    """A run ended at a checkpoint before its last step, on all ranks together: the same command resumes it."""

    EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an 'unknown ...' message: the nearest known word, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
