"""Errors that the user can fix, printed as one line by the command line, and the early end of a run."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in a config, a data file or a command. The message says where, what is wrong and how to fix it."""


class NotFiniteError(UserError):
    """A loss, gradient, log p or token weight is not finite. Raised on all ranks; no optimizer step used it."""


class Unfinished(Exception):
    """A run ended at a checkpoint before its last step; the same command resumes it. Raised on all ranks."""

    EXIT_CODE = 75  # EX_TEMPFAIL in sysexits.h: try again


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that `word` is most likely meant to be, or None if none is near. Case and - for _ do not count."""
    plain = {each.casefold().replace("-", "_"): each for each in known}
    close = difflib.get_close_matches(word.casefold().replace("-", "_"), plain, n=1)
    return plain[close[0]] if close else None


def nearest(word: str, known: Iterable[str]) -> str:
    """Suffix for an 'unknown ...' message: the closest known word, or all known words."""
    known = sorted(known)
    close = closest(word, known)
    return f"; did you mean {close!r}?" if close else f"; known: {', '.join(known)}"
