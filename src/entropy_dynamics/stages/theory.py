"""Theorems 1 and 2 on a real policy: predicted and realized entropy change of exact updates of the logits.

Positions come from the base model's own rollouts, so the distributions are those seen in training. At each position the
logits are updated for the sampled token k, by epsilon e_k (Theorem 1) and by alpha (e_k - p) (Theorem 2), and the
entropy is recomputed in float64.
"""

from pathlib import Path

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from entropy_dynamics.config import TRAIN, StageConfig, settings_of
from entropy_dynamics.core.dynamics import entropy_change_gradient_step, entropy_change_single_logit
from entropy_dynamics.distributed.ranks import device_of
from entropy_dynamics.models.storage import load_policy
from entropy_dynamics.results.layout import FACTS, Layout
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling import end_tokens, prompts_hash
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.stages.common import check_inputs, check_replaceable, make_prompts, write_table
from entropy_dynamics.tasks.files import load_problems
from entropy_dynamics.training.batch import RolloutBatch

Logits = Float[Tensor, "position vocabulary"]
Tokens = Int[Tensor, " position"]

PROMPTS = 64
SAMPLES = 8
AT_A_TIME = 64  # sequences per batch
LONGEST = 256  # maximum tokens per response, as the theorems do not need complete solutions
ELEMENTS = 1 << 26  # maximum positions x vocabulary: half a GiB in float64
STEP_SIZES = (1e-3, 1e-2, 1e-1)  # epsilon and alpha; the theorems are first-order, and the largest shows their limits


def check_logit_steps(config: StageConfig, layout: Layout, seed: int) -> Path:
    """Write `theory/logit_steps.parquet`: one row per token, theorem and step size.

    Columns: theorem (1 or 2), step_size, predicted, realised (nats), probability of the token, entropy before.
    """
    name, device = config.model.name, device_of(config.hardware)
    base = layout.model(name, seed)
    needed = {layout.problems(TRAIN): "problems", base: f"model --model {name} --seed {seed}"}
    check_inputs(layout, layout.logit_steps, needed)
    check_replaceable(layout.logit_steps, "theory", config)
    model, tokenizer = load_policy(base)
    model = model.to(device)
    sampler = NativeSampler(model, end_tokens=end_tokens(base, tokenizer), batch_size=AT_A_TIME)
    problems = load_problems(layout.problems(TRAIN))[:PROMPTS]
    prompts = make_prompts(config, tokenizer, problems, drop_long=True)
    temperature, limit = config.sampling.temperature, min(config.sampling.max_new_tokens, LONGEST)
    settings = {"samples": SAMPLES, "temperature": temperature, "max_new_tokens": limit, "stream": "theory"}
    batch = RolloutBatch.collate(prompts, sampler.sample(prompts, **settings)).to(device)
    logits, tokens = _response_logits(model, batch, temperature)
    frame = pd.concat([_steps(logits, tokens, theorem, size) for theorem in (1, 2) for size in STEP_SIZES])
    record = provenance([base / FACTS, layout.problems(TRAIN)]) | {"prompts": prompts_hash(prompts)}
    write_table(layout.logit_steps, frame, {"config": settings_of("theory", config), **record})
    return layout.logit_steps


@torch.no_grad()
def _response_logits(model, batch: RolloutBatch, temperature: float) -> tuple[Logits, Tokens]:
    """Logits that predict response tokens, float64, and these tokens; a seeded subset if the vocabulary is large."""
    row, place = batch.mask.nonzero(as_tuple=True)
    chosen = torch.randperm(len(row), generator=torch.Generator().manual_seed(0))[: ELEMENTS // model.config.vocab_size]
    row, place = (index[chosen.sort().values.to(index.device)] for index in (row, place))
    position = batch.prompt_lengths[row] + place
    hidden = [model.model(input_ids=ids, use_cache=False).last_hidden_state for ids in batch.sequences.split(AT_A_TIME)]
    logits = model.lm_head(torch.cat(hidden)[row, position - 1])
    return logits.double() / temperature, batch.sequences[row, position]


def _steps(logits: Logits, tokens: Tokens, theorem: int, size: float) -> pd.DataFrame:
    p = logits.softmax(-1)
    one_hot = torch.nn.functional.one_hot(tokens, logits.shape[-1]).double()
    step = one_hot if theorem == 1 else one_hot - p
    predict = entropy_change_single_logit if theorem == 1 else entropy_change_gradient_step
    before = _entropy(logits)
    return pd.DataFrame(
        {
            "theorem": theorem,
            "step_size": size,
            "predicted": predict(p, tokens, size).cpu().numpy(),
            "realised": (_entropy(logits + size * step) - before).cpu().numpy(),
            "probability": p.gather(-1, tokens[:, None]).squeeze(-1).cpu().numpy(),
            "entropy": before.cpu().numpy(),
        }
    )


def _entropy(logits: Logits) -> Float[Tensor, " position"]:
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)
