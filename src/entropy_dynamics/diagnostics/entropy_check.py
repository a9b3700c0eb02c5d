"""Is the entropy that a trainer logs right? A batch with known entropies, and what each mistake gives on it.

Each distribution has one token of probability p, the others sharing the rest, so its entropy has a closed form. Short
responses are sure and long ones are not, prompts and padding are uniform, and what follows a response is sure: each
mistake gives another number.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from entropy_dynamics.results.files import written_whole

VOCABULARY, TEMPERATURE = 64, 0.7
PROMPTS, RESPONSES = (2, 4, 3), (3, 6, 13)
"""Tokens of the sequences, which are right-padded."""
LIKELY = (0.98, 0.8, 0.3)  # p of the likely token, in each response
TOLERANCE = 0.005  # relative: what bf16 logits may cost
CORRECT = "the mean over response tokens"

Positions = Float[np.ndarray, "sequence position"]


def golden_batch() -> dict[str, np.ndarray]:
    """logits [3, length, 64] as a model gives them, before the temperature; input_ids, attention_mask and response_mask
    [3, length]; temperature []. The logits at a position are of the token after it."""
    length = max(map(sum, zip(PROMPTS, RESPONSES, strict=True)))
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
    """Write the batch as .npz, and say what to do with it."""
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **golden_batch())
    return (
        f"{path}: logits {golden_batch()['logits'].shape} in fp32, input_ids, attention_mask, response_mask. Have your "
        f"trainer's function compute the entropy that it logs, at temperature {TEMPERATURE}, and call: "
        "entropy-dynamics entropy-check VALUE"
    )


def known_values() -> dict[str, float]:
    """What the right way and each mistake give on the batch, nats."""
    batch = golden_batch()
    response, attention = batch["response_mask"], batch["attention_mask"]
    tokens, shifted = _of_next(batch["logits"], TEMPERATURE), _entropies(batch["logits"], TEMPERATURE)
    longest = np.arange(response.shape[1]) >= np.array(PROMPTS)[:, None]  # responses with their padding
    sums = np.where(response, tokens, 0).sum(axis=1)
    return {
        CORRECT: tokens[response].mean(),
        "the mean over sequences of their means: long responses count too little": (sums / response.sum(axis=1)).mean(),
        "the mean over sequences of their sums: it grows with the length": sums.mean(),
        "the sum over all tokens": sums.sum(),
        "the mean over prompts and responses": tokens[:, 1:][attention[:, 1:]].mean(),
        "the mean over responses and their padding": tokens[longest].mean(),
        "the padding counted in the divisor": sums.sum() / longest.sum(),
        "shifted by one: each token has the distribution of the token after it": shifted[response].mean(),
        "without the temperature": _of_next(batch["logits"], 1.0)[response].mean(),
        "with the temperature applied twice": _of_next(batch["logits"], TEMPERATURE**2)[response].mean(),
        "in bits, not nats": tokens[response].mean() / np.log(2),
        "-log p of the sampled tokens: an estimate": _surprisal(batch)[response].mean(),
        "with the sign of a loss": -tokens[response].mean(),
    }


def diagnose(value: float) -> str:
    """What a trainer did that got this value on the batch."""
    values = known_values()
    right = values.pop(CORRECT)
    if abs(value - right) <= TOLERANCE * right:
        return f"{value:g} nats is right: {CORRECT}."
    wrong = [mistake for mistake, known in values.items() if abs(value - known) <= TOLERANCE * abs(known)]
    said = f"{value:g} is {wrong[0]}" if wrong else f"{value:g} is none of {len(values)} known mistakes"
    return f"{said}; {CORRECT} is {right:.4g} nats."


def _entropies(logits: np.ndarray, temperature: float) -> Positions:
    """Entropy of the distribution at each position."""
    scaled = logits.astype(np.float64) / temperature
    logp = scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True)
    return -(np.exp(logp) * logp).sum(axis=-1)


def _of_next(logits: np.ndarray, temperature: float) -> Positions:
    """Entropy of the distribution that each token was sampled from, which is at the position before it."""
    return np.roll(_entropies(logits, temperature), 1, axis=1)


def _surprisal(batch: dict[str, np.ndarray]) -> Positions:
    scaled = batch["logits"].astype(np.float64) / TEMPERATURE
    logp = np.roll(scaled - np.logaddexp.reduce(scaled, axis=-1, keepdims=True), 1, axis=1)
    return -np.take_along_axis(logp, batch["input_ids"][..., None], axis=-1)[..., 0]
