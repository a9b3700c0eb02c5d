"""Made-up batches for the tests of the methods."""

import torch

from entropy_dynamics.core.objective import loss_weights
from entropy_dynamics.core.token_stats import TokenStats


def stats_of(logp=None, entropy=None) -> TokenStats:
    given = logp if entropy is None else entropy
    zero = torch.zeros_like(torch.as_tensor(given, dtype=torch.float32))
    columns = [zero if x is None else torch.as_tensor(x, dtype=torch.float32) for x in (logp, entropy)]
    return TokenStats(*columns, zero, zero)


def random_batch(seed, rows=12, tokens=30):
    """Log-probabilities, entropies, advantages of all three signs, and a mask that ends elsewhere in every row."""
    generator = torch.Generator().manual_seed(seed)
    logp = -(torch.randn(rows, tokens, generator=generator) ** 2)
    entropy = torch.rand(rows, tokens, generator=generator)
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, tokens).clone()
    advantages[rows // 2] = 0.0
    mask = torch.arange(tokens) < torch.randint(1, tokens + 1, (rows, 1), generator=generator)
    return logp, entropy, advantages, mask


def seeded(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def shares(method, weights, mask) -> torch.Tensor:
    """What every token counts for in the loss, for the method's own denominator."""
    return loss_weights(weights, mask, torch.zeros(len(mask), dtype=torch.long), denominator=method.denominator)
