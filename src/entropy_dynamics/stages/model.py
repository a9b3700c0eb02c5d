"""The base model: a pretrained one, or a toy model that is built and warm-started from random weights."""

from pathlib import Path
from statistics import fmean

import numpy as np

from entropy_dynamics.config import StageConfig
from entropy_dynamics.distributed.ranks import device_of
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import save_policy, write_facts
from entropy_dynamics.models.pretrained import prepare_pretrained
from entropy_dynamics.models.toy import build_toy_model
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.models.warm_start import POOL, solution_batches, warm_start
from entropy_dynamics.results.files import written_whole
from entropy_dynamics.results.layout import FACTS, Layout
from entropy_dynamics.stages.common import check_inputs, check_replaceable
from entropy_dynamics.tasks.files import load_problems
from entropy_dynamics.training.progress import Progress


def prepare_model(config: StageConfig, layout: Layout, seed: int = 0) -> Path:
    """Write the untrained model `config.model.name` and its `model.json` into `layout.model(...)`.

    A model in the scale's `toy_models` is built, with separate weights and demonstrations for each seed; any other is
    pretrained (see `prepare_pretrained`).

    Raises:
        UserError: a pretrained model with a seed other than 0.
    """
    name = config.model.name
    if seed != config.untrained(name, seed):
        raise UserError(f"--seed {seed}: {name} is pretrained, so it exists once, with seed 0")
    out = layout.model(name, seed)
    check_inputs(layout, out / FACTS, {layout.problems(dataset): "problems" for dataset in config.data.sets})
    check_replaceable(out / FACTS, "model", config)
    texts = {problem.text for dataset in config.data.sets for problem in load_problems(layout.problems(dataset))}
    if name not in config.toy_models:
        prepare_pretrained(config, out, sorted(texts))
        return out
    family = config.toy_models[name]
    own_seed = int(np.random.SeedSequence([family.seed, seed]).generate_state(1)[0])
    spec = family.model_copy(update={"seed": own_seed})
    tokenizer = build_tokenizer(spec.tokenizer)
    model = build_toy_model(spec, tokenizer).to(device_of(config.hardware))
    with Progress(f"warm start {name} seed {seed}", spec.warm_start.steps) as progress:
        limit = config.sampling.max_new_tokens
        batches = solution_batches(tokenizer, spec.warm_start, seed=spec.seed, exclude=texts, max_new_tokens=limit)
        losses = warm_start(model, spec.warm_start, batches, lambda loss: progress.step(loss=loss))
    with written_whole(out) as directory:
        save_policy(model, tokenizer, directory)
        loss = fmean(losses[-POOL:])
        write_facts(directory, config, model, seed=seed, warm_start_loss=loss, warm_start_steps=len(losses))
    return out
