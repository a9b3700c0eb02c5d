"""The base model: a pretrained one, after a cold start if the scale has one, or a toy model from random weights."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from filelock import FileLock

from entropy_dynamics.config import StageConfig, settings_of
from entropy_dynamics.distributed.ranks import Ranks, device_of
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.families import check_family
from entropy_dynamics.models.pretrained import prepare_pretrained
from entropy_dynamics.models.storage import load_policy, load_tokenizer, save_policy, write_facts
from entropy_dynamics.models.toy import build_toy_model
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.models.warm_start import POOL, solution_batches, warm_start
from entropy_dynamics.results.files import read_json, written_whole
from entropy_dynamics.results.layout import FACTS, Layout
from entropy_dynamics.results.progress import Progress
from entropy_dynamics.results.provenance import fingerprint
from entropy_dynamics.stages.common import check_inputs, check_replaceable
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.files import load_problems
from entropy_dynamics.tasks.prompts import turn_end_note


def prepare_model(config: StageConfig, layout: Layout, seed: int = 0) -> Path:
    """Write the untrained model `config.model.name` and its `model.json` into `layout.model(...)`.

    A model in the scale's `toy_models` is built from random weights; any other is pretrained (see
    `prepare_pretrained`). A toy model's warm start and a pretrained one's cold start have their own demonstrations for
    each seed. Raises UserError for a pretrained model without a cold start, with a seed other than 0.
    """
    name = config.model.name
    if seed != config.untrained(name, seed):
        raise UserError(f"--seed {seed}: {name} is pretrained, so it exists once, with seed 0")
    out = layout.model(name, seed)
    check_inputs(layout, out / FACTS, {layout.problems(dataset): "problems" for dataset in config.data.sets})
    check_replaceable(out / FACTS, "model", config)
    problems = [problem for dataset in config.data.sets for problem in load_problems(layout.problems(dataset))]
    texts = {problem.text for problem in problems}
    if family := config.toy_models.get(name):
        own_seed = int(np.random.SeedSequence([family.seed, seed]).generate_state(1)[0])
        start, tokenizer, about, prompts = family.warm_start, build_tokenizer(family.tokenizer), {}, {}
        model = build_toy_model(family.model_copy(update={"seed": own_seed}), tokenizer)
        check_family(model.config, f"toy_models[{name}]")
    elif start := config.cold_start:
        own_seed, base = seed, _pretrained(config, layout, problems)
        model, tokenizer = load_policy(base)
        about = {"pretrained_sha256": read_json(base / FACTS)["weights_sha256"]}
        prompts = {"prompt_format": config.model.prompt_format, "variables": config.model.chat_template_kwargs}
    else:
        prepare_pretrained(config, out, problems)
        if note := turn_end_note(load_tokenizer(out), config.model.prompt_format):
            Ranks().note(note)
        return out
    model = model.to(device_of(config.hardware))
    progress = Progress(f"{'warm' if family else 'cold'} start {name} seed {seed}", start.steps)
    limit = config.sampling.max_new_tokens
    batches = solution_batches(tokenizer, start, seed=own_seed, exclude=texts, max_new_tokens=limit, **prompts)
    losses = warm_start(model, start, batches, lambda loss: progress.step(loss=loss), pretrained=family is None)
    with written_whole(out) as directory:
        save_policy(model, tokenizer, directory)
        loss = fmean(losses[-POOL:])
        write_facts(directory, config, model, seed=seed, warm_start_loss=loss, warm_start_steps=len(losses), **about)
    return out


def _pretrained(config: StageConfig, layout: Layout, problems: Sequence[Problem]) -> Path:
    """The pretrained model from which the cold starts of all seeds start, made once; other jobs wait meanwhile."""
    name = config.model.name
    source = {key: value for key, value in settings_of("model", config).items() if key.startswith("model.")}
    if config.model.path is not None:  # its files may be replaced
        source |= {file.name: file.stat().st_mtime_ns for file in Path(config.model.path).glob("*")}
    base = layout.model(name, 0).with_name(f".{fingerprint(source)}")  # so that sources never mix
    base.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(base.with_name(f"{base.name}.lock")):
        if not (base / FACTS).is_file():
            prepare_pretrained(config, base, problems)
    return base
