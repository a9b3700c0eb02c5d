"""Errors that the user can fix, which the command line prints as one line; and the early end of a run."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in a config, a data file or a command: the message names the place, the fault and the fix."""


class NotFiniteError(UserError):
    """A loss, a gradient or a log-probability is not finite; no optimizer step was taken with it.

    All ranks raise it together.
    """


class EngineMismatchError(UserError):
    """The engine's log-probabilities are not the trainer's, so it does not hold the trainer's weights.

    All ranks raise it together.
    """


class Unfinished(Exception):
    """A run ended at a checkpoint before its last step, as it was asked to: the same command resumes it.

    All ranks raise it together.
    """

    EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again


def nearest(word: str, known: Iterable[str]) -> str:
    """The end of an 'unknown ...' message: the nearest known word, or all of them."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
