"""The warm start: supervised learning on solutions of mixed habits, so that RL has something to choose from."""

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from entropy_dynamics.config import WarmStartConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks.arithmetic import problem_stream, write_solution
from entropy_dynamics.tasks.prompts import render_prompt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

IGNORED = -100  # the label that cross-entropy leaves out
POOL = 8  # batches whose solutions are written together and then sorted by length
WARM_UP = 0.05  # fraction of the steps in which the learning rate rises
WEIGHT_DECAY = 0.01
BETAS = (0.9, 0.98)


def warm_start(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerFast",
    config: WarmStartConfig,
    *,
    seed: int,
    exclude: set[str],
    max_new_tokens: int,
    progress: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train `model` in place by cross-entropy on the response tokens of freshly written solutions.

    No problem of `exclude` (texts) is used, whatever the order of its numbers. AdamW, linear warm-up, cosine
    decay. The same seed gives the same weights on the same machine and number of threads. `progress(step, loss)` is
    called after every step. Returns the loss of every step in nats a token. Raises UserError if it is not finite.
    """
    import torch
    from torch.nn.functional import cross_entropy

    def rate(step: int) -> float:
        rising = (step + 1) / max(1.0, WARM_UP * config.steps)
        return min(1.0, rising, 0.5 + 0.5 * math.cos(math.pi * step / config.steps))

    optimizer = torch.optim.AdamW(model.parameters(), config.learning_rate, betas=BETAS, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    batches = solution_batches(tokenizer, config, seed=seed, exclude=exclude, max_new_tokens=max_new_tokens)
    losses = []
    model.train()
    for step in range(config.steps):
        tokens_BT, labels_BT, response_tokens = next(batches)
        # Padding stands on the right and attention looks to the left, so no attention mask is needed.
        logits_BTV = model(tokens_BT[:, :-1], use_cache=False).logits
        loss = cross_entropy(
            logits_BTV.flatten(0, 1), labels_BT[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
        )
        # Every token weighs the same: a mean over each batch would favour the short solutions.
        loss = loss / response_tokens
        if not math.isfinite(loss.item()):
            raise UserError(f"warm start: the loss is {loss.item()} at step {step}; lower its learning_rate")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if progress is not None:
            progress(step, losses[-1])
    model.eval()
    return losses


def solution_batches(
    tokenizer: "PreTrainedTokenizerFast",
    config: WarmStartConfig,
    *,
    seed: int,
    exclude: set[str],
    max_new_tokens: int,
) -> Iterator[tuple["torch.Tensor", "torch.Tensor", float]]:
    """Endless batches (tokens [B, T], labels [B, T], response tokens of an average batch), padded on the right.

    Labels are IGNORED outside the response.
    """
    import torch

    problems = problem_stream(terms=tuple(config.terms), seed=seed, exclude=exclude)
    rng = np.random.default_rng([seed, 1])
    # What a prompt has around its problem is the same for all of them.
    before, after = render_prompt(tokenizer, "<problem>", "chat").split("<problem>")
    while True:
        # Rows of similar length share a batch: half of a batch cut at random would be padding.
        drawn = [next(problems) for _ in range(POOL * config.batch_size)]
        solutions = [write_solution(problem, config.habits, rng) for problem in drawn]
        texts = [f"{before}{problem}{after}" for problem in drawn]
        prompts = tokenizer(texts, add_special_tokens=False)["input_ids"]
        responses = tokenizer([text + tokenizer.eos_token * ends for text, ends in solutions], add_special_tokens=False)
        rows = [
            (len(prompt), prompt + response[:max_new_tokens])
            for prompt, response in zip(prompts, responses["input_ids"], strict=True)
        ]
        response_tokens = sum(len(row) - start for start, row in rows) / POOL
        rows.sort(key=lambda row: len(row[1]))
        for index in rng.permutation(POOL):
            chosen = rows[index * config.batch_size : (index + 1) * config.batch_size]
            tokens = np.full((len(chosen), len(chosen[-1][1])), tokenizer.pad_token_id)
            labels = np.full_like(tokens, IGNORED)
            for place, (start, row) in enumerate(chosen):
                tokens[place, : len(row)] = row
                labels[place, start : len(row)] = row[start:]
            yield torch.from_numpy(tokens), torch.from_numpy(labels), response_tokens
