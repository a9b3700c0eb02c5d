"""Is the entropy that a trainer logs right? A batch with known entropies, and the value that each known mistake gives.

Each distribution has one token whose logit is raised above the others', so its entropy has a closed form. Lengths,
logits and temperature were searched for such that no mistake, and no pair of mistakes, gives the value of another one.
bf16 represents the logits exactly, before and after the temperature.
"""

from itertools import product
from pathlib import Path

import numpy as np
from jaxtyping import Float
from scipy.special import entr, log_softmax, softmax

from entropy_dynamics.results.files import written_whole

VOCABULARY, TEMPERATURE = 64, 0.5
PROMPTS, RESPONSES = (4, 3, 3), (4, 5, 13)
"""Numbers of prompt and response tokens of the sequences, which are right-padded."""
RAISED = (1.5390625, 2.046875, 5.28125)  # logits of the likely token, for each response
AFTER, PROMPT, PADDING = 10.125, 0.8203125, 1.6484375  # and after its last token, within prompts, within padding
TOLERANCE = 0.0007  # relative; less than half of the smallest distance between two known values
CORRECT = "the mean over response tokens"
SUMS = "the mean over sequences of their sums"
BY_LONGEST = f"{SUMS}, divided by the longest response (verl's seq-mean-token-sum-norm)"
MISTAKES = 2  # maximum number at a time

Positions = Float[np.ndarray, "sequence position"]


def golden_batch() -> dict[str, np.ndarray]:
    """The batch: logits [3, length, 64]; input_ids, attention_mask, response_mask [3, length]; temperature [].

    Logits are as a model returns them: before the temperature, and predicting the token at the next position.
    """
    length = max(map(sum, zip(PROMPTS, RESPONSES, strict=True))) + 1  # no sequence is full, so roll and slice agree
    place, prompts, ends = np.arange(length), np.array(PROMPTS)[:, None], np.add(PROMPTS, RESPONSES)[:, None]
    raised = np.where(place < prompts - 1, PROMPT, PADDING)
    raised = np.where((place >= prompts - 1) & (place < ends - 1), np.array(RAISED)[:, None], raised)
    raised[np.arange(len(ends)), ends[:, 0] - 1] = AFTER
    ids = (7 * place + np.arange(len(PROMPTS))[:, None]) % VOCABULARY
    logits = np.zeros((*ids.shape, VOCABULARY))
    np.put_along_axis(logits, np.roll(ids, -1, axis=1)[..., None], raised[..., None], axis=-1)
    return {
        "logits": logits.astype(np.float32),
        "input_ids": ids,
        "attention_mask": place < ends,
        "response_mask": (place >= prompts) & (place < ends),
        "temperature": np.array(TEMPERATURE),
    }


def write_golden(path: Path) -> str:
    """Write the batch as .npz, and return instructions for its use."""
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **golden_batch())
    return (
        f"{path}: logits {golden_batch()['logits'].shape} in fp32, input_ids, attention_mask, response_mask. Have your "
        f"trainer's function compute the entropy that it logs, at temperature {TEMPERATURE}, and call: "
        "entropy-dynamics entropy-check VALUE"
    )


def known_values() -> dict[str, float]:
    """The values on the batch, nats, of the right way, of each known mistake and of each pair of them.

    A mistake that makes no difference in addition to another one is left out.
    """
    batch = golden_batch()
    temperatures = {
        "": TEMPERATURE,
        "without the temperature": 1.0,
        "with the temperature applied twice": TEMPERATURE**2,
        "with the logits multiplied by the temperature": 1 / TEMPERATURE,
    }
    shifts = {
        "": 1,
        "shifted by one: each token has the distribution of the token after it": 0,
        "shifted the other way: each token has the distribution of the token before it": 2,
    }
    measures = {"": _entropies, "-log p of the sampled tokens: an estimate": _surprisals}
    scales = {"": 1.0, "in bits, not nats": 1 / np.log(2), "with the sign of a loss": -1.0}
    reductions = _reductions(batch)
    values: dict[str, float] = {}
    ways = product(temperatures, shifts, measures, reductions, scales)
    for way in sorted(ways, key=lambda way: -way.count("")):  # the fewest mistakes first
        temperature, shift, measure, mean, scale = way
        names = [name for name in (mean, temperature, shift, measure, scale) if name]
        if len(names) <= MISTAKES:
            measured = measures[measure](batch, temperatures[temperature], shifts[shift])
            value = float(scales[scale] * (measured * reductions[mean]).sum())
            if not np.isclose(list(values.values()), value, rtol=1e-6, atol=0).any():
                values["; ".join(names) or CORRECT] = value
    return values


def diagnose(value: float) -> str:
    """Explain how a trainer got this value (nats) on the batch."""
    values = known_values()
    right = values.pop(CORRECT)
    if abs(value - right) <= TOLERANCE * right:
        return f"{value:g} nats is right: {CORRECT}."
    wrong = [mistake for mistake, known in values.items() if abs(value - known) <= TOLERANCE * abs(known)]
    divided: list[str] = []
    for name in (SUMS, f"{SUMS}; without the temperature"):
        limit = values[name] / value if value > 0 and not wrong else 0
        # Only round limits, as any large one is within the tolerance of an integer.
        units = (1,) if limit < 64 else (2 ** int(np.log2(limit)) // 16, 10 ** int(np.log10(limit)) // 10)
        nearest = {unit * round(limit / unit) for unit in units}
        divided += [
            f"{name}; divided by a limit of {integer}"
            for integer in nearest
            if limit > max(RESPONSES) and abs(limit - integer) <= TOLERANCE * limit
        ]
    none = f"none of {len(values)} known mistakes and pairs of them"
    return f"{value:g} is {wrong[0] if wrong else ' or '.join(divided) or none}; {CORRECT} is {right:.4g} nats."


def _reductions(batch: dict[str, np.ndarray]) -> dict[str, Positions]:
    """Ways to reduce the values of all positions to a number; each is a sum with these weights."""
    response, attention = batch["response_mask"], batch["attention_mask"]
    lengths, positions = response.sum(axis=1, keepdims=True), np.ones_like(response)
    padded = np.arange(response.shape[1]) >= np.array(PROMPTS)[:, None]  # responses including padding
    inner = positions & (np.arange(response.shape[1]) > 0)
    weights = {
        "": response / response.sum(),
        "the mean over sequences of their means: long responses count too little": response / lengths / len(lengths),
        SUMS: response / len(lengths),
        BY_LONGEST: response / len(lengths) / lengths.max(),
        "the sum over all tokens": 1.0 * response,
        "the mean over prompts and responses": (attention & inner) / (attention & inner).sum(),
        "the mean over responses and their padding": padded / padded.sum(),
        "the mean over all positions, prompts and padding included": positions / positions.size,
        "the mean over all positions but the last, prompts and padding included": inner / inner.sum(),
        "the padding counted in the divisor": response / padded.sum(),
        "the prompts counted in the divisor": response / attention.sum(),
        "prompts and padding counted in the divisor": response / positions.size,
        "prompts and padding but the last position counted in the divisor": response / inner.sum(),
    }
    for alone in range(len(lengths)):
        of_micro_batch = np.where(np.arange(len(lengths)) == alone, lengths[:, 0], lengths.sum() - lengths[alone, 0])
        others = " and ".join(str(number + 1) for number in range(len(lengths)) if number != alone)
        name = f"the mean over micro-batches of their means, of sequence {alone + 1} and of {others}"
        weights[name] = response / of_micro_batch[:, None] / 2
    return weights


def _entropies(batch: dict[str, np.ndarray], temperature: float, before: int) -> Positions:
    """Entropy of the distribution `before` positions before each token, nats; 1 is the one it was sampled from."""
    probabilities = softmax(batch["logits"].astype(np.float64) / temperature, axis=-1)
    return np.roll(entr(probabilities).sum(axis=-1), before, axis=1)


def _surprisals(batch: dict[str, np.ndarray], temperature: float, before: int) -> Positions:
    """-log p of each token under the distribution `before` positions before it, nats."""
    logp = log_softmax(batch["logits"].astype(np.float64) / temperature, axis=-1)
    return -np.take_along_axis(np.roll(logp, before, axis=1), batch["input_ids"][..., None], axis=-1)[..., 0]
