"""Recurring shapes as jaxtyping annotations: `batch` counts rollouts, `token` response tokens (right-padded)."""

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Scalar = Float[Tensor, ""]
PerPosition = Float[Tensor, "*position"]
PerToken = Float[Tensor, "batch token"]
PerRollout = Float[Tensor, " batch"]
Chosen = Bool[Tensor, "batch token"]
Mask = Shaped[Tensor, "batch token"]
"""Non-zero on response tokens; other tensors are arbitrary where it is zero."""
Groups = Int[Tensor, " batch"]
"""Group of every rollout: rollouts of one prompt share a number."""
Divisors = Float[Tensor, "batch 1"]
"""Divisor of the loss of every token of a rollout."""
Rows = Int[Tensor, " rows"]
"""Indices of rollouts in the batch."""
