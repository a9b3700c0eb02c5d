"""What a method declares of itself, found by running it on a grid of batches: for built-in methods and for your own.

    found = contracts(load_method("my_method"))
    assert found == declared(load_method("my_method"))

The batches span probabilities from 1e-5 to 0.9999, entropies from 0.005 to 6 nats, advantages of all signs, and
importance ratios from 0.05 to 20. A method that acts outside of these ranges only needs a test of its own.
"""

import itertools
from collections import defaultdict
from typing import Any

import torch

from batches import of_the_vocabulary, second_pass, seeded
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method

PROBABILITIES = torch.cat([torch.logspace(-5, -1, 20), torch.linspace(0.11, 0.9999, 40)])
ENTROPIES = (0.01, 0.1, 0.3, 0.55, 1.0, 4.0)  # means of the batches
LOG_RATIOS = (0.0, -3.0, -0.3, 0.3, 3.0)
ADVANTAGES = ((1.0, -1.0, 0.0, 0.0), (1.0, 1.0, 0.0, 0.0), (-1.0, -1.0, 0.0, 0.0))  # batches of four rows
OBSERVED = 2  # steps of a stateful method, which observes metrics of 0


def declared(method: Method) -> dict[str, bool]:
    return {name: getattr(method, name) for name in ("acts_without_advantage", "uses_s_expected")}


def contracts(method: Method) -> dict[str, bool]:
    """Whether some token with A = 0 has a gradient, and whether weights or coefficients read E[S]."""
    acts, reads = False, False
    for step, entropy, of_rows in itertools.product(range(OBSERVED), ENTROPIES, ADVANTAGES):
        stats, read = _recorded(entropy, len(of_rows))
        advantages, mask = torch.tensor(of_rows)[:, None].expand(stats.logp.shape), torch.ones_like(stats.logp)
        method.token_weights(stats, advantages, mask, generator=seeded())
        coefficients = method.loss_coefficients(stats, advantages, mask)
        reads |= "s_expected" in read
        acts |= any(_acts(method, stats, advantages, mask, coefficients, ratio) for ratio in LOG_RATIOS)
        method.observe(defaultdict(float, step=step))
    return {"acts_without_advantage": acts, "uses_s_expected": reads}


def _recorded(entropy: float, rows: int) -> tuple[TokenStats, set[str]]:
    """The statistics of a batch, and the set of names that are read of them."""
    read: set[str] = set()

    class Recorded(TokenStats):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    logp = PROBABILITIES.log().expand(rows, -1).clone()
    entropies = entropy * torch.linspace(0.5, 1.5, logp.shape[1]).expand_as(logp)
    s_star = logp.exp() * (entropies + logp)
    return Recorded(logp, entropies, s_star, 0.1 * entropies, **second_pass(logp)), read


def _acts(method, stats, advantages, mask, coefficients, log_ratio) -> bool:
    logp, entropy = (values.detach().clone().requires_grad_() for values in (stats.logp, stats.entropy))
    losses = method.token_loss(
        *(logp, logp.detach() - log_ratio, advantages, mask),
        **({"entropy": entropy} if method.uses_entropy() else {}),
        coefficients=coefficients,
        **of_the_vocabulary(method, logp),
    )
    if not losses.requires_grad:
        return False
    gradients = torch.autograd.grad(losses.sum(), (logp, entropy), allow_unused=True, materialize_grads=True)
    return any(bool(gradient[advantages == 0].any()) for gradient in gradients)
