"""The native engine: a plain decoding loop around a transformers model."""

from typing import ClassVar, Literal

from pydantic import NonNegativeFloat

from entropy_dynamics.engines import Engine


class Native(Engine):
    in_trainer: ClassVar[bool] = True

    name: Literal["native"]
    logit_noise: NonNegativeFloat = 0.0
    """Standard deviation of Gaussian noise added to the logits before sampling; 0: none."""


SETTINGS = Native
