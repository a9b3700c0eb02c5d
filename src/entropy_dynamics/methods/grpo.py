"""GRPO (paper, Section 2, eq. 1): every response token counts alike."""

from entropy_dynamics.methods import Method, method


@method("grpo")
class GRPO(Method):
    """The baseline of every comparison; identical to the base class."""
