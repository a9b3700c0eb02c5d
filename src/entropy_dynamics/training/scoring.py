"""The choice of how a batch gets its token statistics, and so whether a scoring pass is needed."""

from enum import Enum

from entropy_dynamics.methods import Method


class Scoring(Enum):
    SINGLE_FORWARD = "the scoring pass keeps its graphs, and the update continues from them"
    SCORING_PASS = "a forward pass without gradients, then the update"
    DURING_UPDATE = "the update's own forward passes"


def choose_scoring(method: Method, updates_per_batch: int, *, fits_single_forward: bool) -> Scoring:
    """The cheapest way that gives `method` the statistics that it needs.

    Args:
        method: weights that depend on the whole batch, or a denominator that does, need statistics of all tokens
            before the first backward pass.
        updates_per_batch: later updates need log p under the policy that sampled.
        fits_single_forward: the graphs of the whole batch can be kept (training.single_forward_tokens).
    """
    if updates_per_batch == 1 and fits_single_forward:
        return Scoring.SINGLE_FORWARD
    if updates_per_batch == 1 and not method.needs_batch and method.denominator == "all":
        return Scoring.DURING_UPDATE
    return Scoring.SCORING_PASS
