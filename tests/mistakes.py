"""Mistakes of a user: each is a UserError of one line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError


@contextmanager
def mistake(*parts: str, match: str | None = None) -> Iterator[pytest.ExceptionInfo[UserError]]:
    """The block raises a UserError, whose one line has all `parts` and a match of the pattern `match`."""
    with pytest.raises(UserError, match=match) as error:
        yield error
    line = str(error.value)
    assert "\n" not in line
    for part in parts:
        assert part in line


def message_of(configs, *arguments, **named) -> str:
    """The message that `load_config` gives for a mistake in a config."""
    with mistake() as error:
        load_config(*arguments, configs=configs, **named)
    return str(error.value)
