"""The SFT warm start: supervised fine-tuning on a task's solutions, among which RL can then choose."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from entropy_dynamics.config.schema.model import WarmStartConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.models import tree
from entropy_dynamics.models.muon import Muon
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.prompts import render_prompt

Tokens = Int[torch.Tensor, "row token"]

IGNORED = -100  # the label of tokens that are not to be learned
POOL = 8  # number of batches whose solutions are written together and sorted by length
WARM_UP = 0.05  # fraction of the steps in which the learning rate rises
DECAY = 0.7  # fraction of the steps in which it falls to 0
WEIGHT_DECAY = 0.3  # of weight matrices; high, to remove their random initial values
BETAS = (0.9, 0.98)
MAX_GRAD_NORM = 1.0  # for pretrained models


def warm_start(
    model: PreTrainedModel,
    config: WarmStartConfig,
    batches: Iterator[tuple[Tokens, Tokens, float]],
    progress: Callable[[float], None],
    *,
    pretrained: bool = False,
) -> list[float]:
    """Train `model` in place, on its device, by cross-entropy on the response tokens of solutions, each used once.

    From random weights: Muon for the matrices of the blocks, AdamW for everything else. Pretrained: AdamW without
    weight decay and with gradient clipping. Both: linear warm-up, linear decay. Deterministic for given batches (see
    `solution_batches`), number of threads and machine. `progress` is called after every step with its loss.

    Returns the loss of every step, nats per token. Raises UserError if it is not finite.
    """

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / (WARM_UP * config.steps), (config.steps - step) / (DECAY * config.steps))

    matrices = [] if pretrained else [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if not any(weight is matrix for matrix in matrices)]
    optimizers = [torch.optim.AdamW(others, config.learning_rate, betas=BETAS, weight_decay=0.0, fused=True)]
    if matrices:
        optimizers.append(Muon(matrices, config.learning_rate, WEIGHT_DECAY))
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, rate) for optimizer in optimizers]
    losses = []
    model.train()
    for step in range(config.steps):
        tokens, labels, response_tokens = next(batches)
        tokens, labels = tokens.to(model.device), labels.to(model.device)
        response = labels[:, 1:] != IGNORED  # elsewhere no logits, which take a vocabulary's size each
        targets = labels[:, 1:][response]
        if pretrained and tree.fits(model):  # chat prompts share a system message, which runs once
            lengths = (response * torch.arange(1, tokens.shape[1], device=model.device)).amax(-1)
            prefixes = tree.Tree.of(tokens, lengths)
            hidden = prefixes.hidden(model.model)[prefixes.nodes]
            response = response[:, : hidden.shape[1]]
        else:  # padding is on the right, which causal attention never sees, so no attention mask is needed
            hidden = model.model(tokens[:, :-1], use_cache=False).last_hidden_state
        loss = cross_entropy(model.lm_head(hidden[response]), targets, reduction="sum")
        # Every token has the same weight: a mean over each batch would favor short solutions.
        loss = loss / response_tokens
        if not math.isfinite(loss.item()):
            raise UserError(f"warm start: the loss is {loss.item()} at step {step}; lower its learning_rate")
        model.zero_grad()
        loss.backward()
        if pretrained:  # from random weights no clipping, as neither optimizer's step depends on the gradient norm
            torch.nn.utils.clip_grad_norm_(others, MAX_GRAD_NORM)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        losses.append(loss.item())
        progress(losses[-1])
    model.eval()
    return losses


def solution_batches(
    tokenizer: PreTrainedTokenizerFast,
    config: WarmStartConfig,
    *,
    seed: int,
    exclude: Collection[str],
    max_new_tokens: int,
    prompt_format: str = "chat",
    variables: Mapping[str, Any] = {},
) -> Iterator[tuple[Tokens, Tokens, float]]:
    """Yield right-padded batches endlessly: tokens, labels, and the mean number of response tokens per batch.

    Labels are IGNORED outside the response. Problems with a text in `exclude` are not used. For `prompt_format` and
    `variables` see `render_prompt`.
    """
    solutions = config.solutions
    problems = solutions.problems(seed, exclude)
    rng = np.random.default_rng([seed, 1])
    while True:
        # Batch rows of similar length: half of a random batch would be padding.
        drawn = [next(problems) for _ in range(POOL * config.batch_size)]
        template = Problem("", drawn[0], "", solutions.task)  # prompts differ only in the problem's text
        before, after = render_prompt(tokenizer, template, prompt_format, variables).split(template.text)
        written = [solutions.solve(problem, rng) for problem in drawn]
        texts = [f"{before}{problem}{after}" for problem in drawn]
        responses = [text + tokenizer.eos_token * ends for text, ends in written]
        prompts = tokenizer(texts, add_special_tokens=prompt_format == "completion")["input_ids"]
        encoded = tokenizer(responses, add_special_tokens=False)["input_ids"]
        both = zip(prompts, encoded, strict=True)
        rows = [(len(prompt), prompt + response[:max_new_tokens]) for prompt, response in both]
        response_tokens = sum(len(row) - start for start, row in rows) / POOL
        rows.sort(key=lambda row: len(row[1]))
        for index in rng.permutation(POOL):
            chosen = rows[index * config.batch_size : (index + 1) * config.batch_size]
            tokens = np.zeros((len(chosen), len(chosen[-1][1])), dtype=int)
            labels = np.full_like(tokens, IGNORED)
            for place, (start, row) in enumerate(chosen):
                tokens[place, : len(row)] = row
                labels[place, start : len(row)] = row[start:]
            yield torch.from_numpy(tokens), torch.from_numpy(labels), response_tokens
