"""Theorems 1 and 2 on a real policy: predicted against realised entropy change of exact steps on the logits.

Positions come from the base model's own rollouts, so the distributions are those that training meets. At each of them
the sampled token gets a step on the logits, dz = epsilon e_k (Theorem 1) and dz = alpha (e_k - p) (Theorem 2), and the
entropy is computed anew in float64.
"""

from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from entropy_dynamics.config import Config
from entropy_dynamics.core.dynamics import entropy_change_gradient_step, entropy_change_single_logit
from entropy_dynamics.files import write_parquet
from entropy_dynamics.layout import Layout
from entropy_dynamics.models.loading import load_policy
from entropy_dynamics.responses import make_prompts, make_sampler
from entropy_dynamics.tasks.problems import load_problems
from entropy_dynamics.training.batch import RolloutBatch

PROMPTS = 64
SAMPLES = 8
STEP_SIZES = (1e-3, 1e-2, 1e-1)  # epsilon and alpha; the theorems are of first order, the largest shows their limit


def check_logit_steps(config: Config, layout: Layout) -> Path:
    """Write `theory/logit_steps.parquet`: a row a token, theorem and step size.

    Columns: theorem (1 or 2), step_size, predicted, realised (nats), probability of the token, entropy before.
    """
    model, tokenizer = load_policy(layout.model(config.model.name))
    prompts = make_prompts(config, tokenizer, load_problems(layout.problems("train"))[:PROMPTS])
    rollouts = make_sampler(config, model, tokenizer).sample(
        prompts,
        samples=SAMPLES,
        temperature=config.sampling.temperature,
        max_new_tokens=config.sampling.max_new_tokens,
        stream="theory",
    )
    batch = RolloutBatch.collate(prompts, rollouts, tokenizer.pad_token_id)
    logits, tokens = _response_logits(model, batch, config.sampling.temperature)
    frame = pd.concat([_steps(logits, tokens, theorem, size) for theorem in (1, 2) for size in STEP_SIZES])
    write_parquet(layout.logit_steps, frame)
    return layout.logit_steps


@torch.no_grad()
def _response_logits(model, batch: RolloutBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Logits [N, V] in float64 before each response token, and the tokens [N]."""
    row, place = batch.mask_BT.nonzero(as_tuple=True)
    position = batch.prompt_lengths_B[row] + place
    logits = model(input_ids=batch.sequences_BL, use_cache=False).logits[row, position - 1]
    return logits.double() / temperature, batch.sequences_BL[row, position]


def _steps(logits: Tensor, tokens: Tensor, theorem: int, size: float) -> pd.DataFrame:
    p = logits.softmax(-1)
    one_hot = torch.nn.functional.one_hot(tokens, logits.shape[-1]).double()
    step = one_hot if theorem == 1 else one_hot - p
    predict = entropy_change_single_logit if theorem == 1 else entropy_change_gradient_step
    before = _entropy(logits)
    return pd.DataFrame(
        {
            "theorem": theorem,
            "step_size": size,
            "predicted": predict(p, tokens, size).numpy(),
            "realised": (_entropy(logits + size * step) - before).numpy(),
            "probability": p.gather(-1, tokens[:, None]).squeeze(-1).numpy(),
            "entropy": before.numpy(),
        }
    )


def _entropy(logits: Tensor) -> Tensor:
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)
