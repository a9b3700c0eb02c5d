"""Is the entropy that a trainer logs right? A batch with known entropies, and the value that each known mistake gives.

Each distribution has one token of probability p, and the others share the rest equally, so its entropy has a closed
form. Short responses have low entropy and long ones high entropy, prompts and padding are uniform, and the token after
a response is almost certain, so that every mistake gives a different number.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from entropy_dynamics.results.files import written_whole

VOCABULARY, TEMPERATURE = 64, 0.7
PROMPTS, RESPONSES = (2, 4, 4), (3, 6, 13)
"""Numbers of prompt and response tokens of the sequences, which are right-padded."""
LIKELY = (0.98, 0.8, 0.3)  # p of the likely token, for each response
TOLERANCE = 0.005  # relative; allows for bf16 logits
CORRECT = "the mean over response tokens"

Positions = Float[np.ndarray, "sequence position"]


def golden_batch() -> dict[str, np.ndarray]:
    """The batch: logits [3, length, 64]; input_ids, attention_mask, response_mask [3, length]; temperature [].

    Logits are as a model returns them: before the temperature, and predicting the token at the next position.
    """
    length = max(map(sum, zip(PROMPTS, RESPONSES, strict=True))) + 1  # no sequence is full, so roll and slice agree
    place, prompts, ends = np.arange(length), np.array(PROMPTS)[:, None], np.add(PROMPTS, RESPONSES)[:, None]
    likely = np.full((len(PROMPTS), length), 1 / VOCABULARY)
    likely = np.where((place >= prompts - 1) & (place < ends - 1), np.array(LIKELY)[:, None], likely)
    likely[np.arange(len(ends)), ends[:, 0] - 1] = 0.999  # after the last token
    ids = (7 * place + np.arange(len(PROMPTS))[:, None]) % VOCABULARY
    logits = np.zeros((*ids.shape, VOCABULARY))
    raised = TEMPERATURE * np.log(likely * (VOCABULARY - 1) / (1 - likely))
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
    """The values on the batch, nats, of the right way and of each known mistake."""
    batch = golden_batch()
    response, attention = batch["response_mask"], batch["attention_mask"]
    tokens, cold = _entropies(batch, TEMPERATURE), _entropies(batch, 1.0)
    after, before = (_entropies(batch, TEMPERATURE, shift) for shift in (0, 2))
    padded = np.arange(response.shape[1]) >= np.array(PROMPTS)[:, None]  # responses including padding
    sums = np.where(response, tokens, 0).sum(axis=1)
    return {
        CORRECT: tokens[response].mean(),
        "the mean over sequences of their means: long responses count too little": _mean_of_means(tokens, response),
        "the mean over sequences of their means, without the temperature": _mean_of_means(cold, response),
        "the mean over sequences of their sums: it grows with the length": sums.mean(),
        "the sum over all tokens": sums.sum(),
        "the mean over prompts and responses": tokens[:, 1:][attention[:, 1:]].mean(),
        "the mean over responses and their padding": tokens[padded].mean(),
        "the mean over all positions, prompts and padding included": tokens.mean(),
        "the mean over all positions but the last, prompts and padding included": tokens[:, 1:].mean(),
        "the padding counted in the divisor": sums.sum() / padded.sum(),
        "prompts and padding counted in the divisor": sums.sum() / response.size,
        "prompts and padding but the last position counted in the divisor": sums.sum() / response[:, 1:].size,
        "shifted by one: each token has the distribution of the token after it": after[response].mean(),
        "shifted the other way: each token has the distribution of the token before it": before[response].mean(),
        "without the temperature": cold[response].mean(),
        "with the temperature applied twice": _entropies(batch, TEMPERATURE**2)[response].mean(),
        "with the logits multiplied by the temperature": _entropies(batch, 1 / TEMPERATURE)[response].mean(),
        "in bits, not nats": tokens[response].mean() / np.log(2),
        "-log p of the sampled tokens: an estimate": _surprisal(batch)[response].mean(),
        "with the sign of a loss": -tokens[response].mean(),
    }


def diagnose(value: float) -> str:
    """Explain how a trainer got this value (nats) on the batch."""
    values = known_values()
    right = values.pop(CORRECT)
    if abs(value - right) <= TOLERANCE * right:
        return f"{value:g} nats is right: {CORRECT}."
    wrong = [mistake for mistake, known in values.items() if abs(value - known) <= TOLERANCE * abs(known)]
    none = f"none of {len(values)} known mistakes, or several at once"
    return f"{value:g} is {wrong[0] if wrong else none}; {CORRECT} is {right:.4g} nats."


def _mean_of_means(values: Positions, mask: np.ndarray) -> float:
    return (np.where(mask, values, 0).sum(axis=1) / mask.sum(axis=1)).mean()


def _entropies(batch: dict[str, np.ndarray], temperature: float, before: int = 1) -> Positions:
    """Entropy of the distribution `before` positions before each token, nats; 1 is the one it was sampled from."""
    logp = _log_softmax(batch["logits"], temperature)
    return np.roll(-(np.exp(logp) * logp).sum(axis=-1), before, axis=1)


def _surprisal(batch: dict[str, np.ndarray]) -> Positions:
    logp = np.roll(_log_softmax(batch["logits"], TEMPERATURE), 1, axis=1)
    return -np.take_along_axis(logp, batch["input_ids"][..., None], axis=-1)[..., 0]


def _log_softmax(logits: np.ndarray, temperature: float) -> np.ndarray:
    scaled = logits.astype(np.float64) / temperature
    return scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True)
