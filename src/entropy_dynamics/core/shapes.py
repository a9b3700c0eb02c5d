"""Shapes that recur, as jaxtyping annotations: `batch` counts rollouts, `token` response tokens (right-padded)."""

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

PerPosition = Float[Tensor, "*position"]
PerToken = Float[Tensor, "batch token"]
PerRollout = Float[Tensor, " batch"]
Chosen = Bool[Tensor, "batch token"]
Mask = Shaped[Tensor, "batch token"]
"""Non-zero on response tokens; other tensors are arbitrary where it is zero."""
Groups = Int[Tensor, " batch"]
"""Rollouts of one prompt share a number."""
Rows = Int[Tensor, " rows"]
"""Numbers of rollouts."""
