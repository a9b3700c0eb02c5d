"""Whether the engine samples from the weights that are trained."""

from jaxtyping import Float
from torch import Tensor

from entropy_dynamics.errors import EngineMismatchError


def engine_agreement(
    engine_logp: Float[Tensor, " tokens"], trainer_logp: Float[Tensor, " tokens"], tolerance: float
) -> dict[str, float]:
    """Difference between the engine's and the trainer's log p of the sampled tokens, nats.

    The rollouts were generated with the weights pushed last, so this verifies that push, over every token and before
    the policy is updated. `engine_kl` is the mean of log p(engine) - log p(trainer) over sampled
    tokens, an estimate of KL(engine | trainer).

    Raises EngineMismatchError if the mean absolute difference is above `tolerance` (`engine.tolerance`): the engine
    does not hold the trainer's weights.
    """
    difference = (engine_logp - trainer_logp).double()
    mean, largest = difference.abs().mean().item(), difference.abs().max().item()
    if not mean <= tolerance:  # NaN counts as disagreement
        raise EngineMismatchError(
            f"engine and trainer disagree: log p differs by {mean:.3g} nats on average and {largest:.3g} at most over "
            f"{len(difference)} tokens, engine.tolerance is {tolerance:g}; the engine's weights are not the trainer's, "
            "unless engine.dtype or training.precision explain it"
        )
    return {
        "engine_logp_difference": mean,
        "engine_logp_difference_max": largest,
        "engine_kl": difference.mean().item(),
    }
