"""The one line of a mistake in a config."""

import pytest

from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError


def message_of(configs, *arguments, **named) -> str:
    with pytest.raises(UserError) as error:
        load_config(*arguments, configs=configs, **named)
    message = str(error.value)
    assert "\n" not in message
    return message
