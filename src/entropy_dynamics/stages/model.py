"""The step that makes a base model ready: a pretrained one, or a stand-in built and warm-started from nothing."""

import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from entropy_dynamics.config import Config
from entropy_dynamics.models.loading import FACTS, other_hashes, save_policy, weight_hashes
from entropy_dynamics.models.pretrained import prepare_pretrained
from entropy_dynamics.models.toy import build_stand_in
from entropy_dynamics.models.toy_tokenizer import build_tokenizer
from entropy_dynamics.models.warm_start import warm_start
from entropy_dynamics.results.files import write_json, written_whole
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.tasks.problems import load_problems
from entropy_dynamics.training.progress import Progress


def prepare_model(config: Config, layout: Layout) -> Path:
    """Write the base model `config.model.name` into `layout.model(...)`, with `model.json` saying what it is.

    A model that the scale has in `stand_ins` is built; any other is a pretrained one (see `prepare_pretrained`).
    """
    out = layout.model(config.model.name)
    sets = ["train", *config.data.evaluation]
    texts = {problem.problem for one in sets for problem in load_problems(layout.problems(one))}
    if config.model.name in config.stand_ins:
        _build(config, out, texts)
    else:
        prepare_pretrained(config, out, sorted(texts))
    return out


def _build(config: Config, out: Path, texts: set[str]) -> None:
    name = config.model.name
    spec = config.stand_ins[name]
    exclude = {text for text in texts if re.fullmatch(r"\d+(\+\d+)+", text)}  # problems from a file may be no sums
    tokenizer = build_tokenizer(spec.tokenizer)
    model = build_stand_in(spec, tokenizer)
    with Progress(f"warm start {name}", spec.warm_start.steps) as progress:
        losses = warm_start(
            model,
            tokenizer,
            spec.warm_start,
            seed=spec.seed,
            exclude=exclude,
            max_new_tokens=config.sampling.max_new_tokens,
            progress=lambda _, loss: progress.step(loss=loss),
        )
    with written_whole(out) as directory:
        save_policy(model, tokenizer, directory)
        facts: dict[str, Any] = {
            "name": name,
            "label": config.model.label,
            "stand_in": True,
            "pretrained": None,
            "revision": None,
            "architecture": spec.architecture,
            "parameters": model.num_parameters(),
            "warm_start_loss": losses[-1],
            "spec": OmegaConf.to_container(spec),
            "weights_sha256": weight_hashes(directory),
            "outputs": other_hashes(directory),
        }
        write_json(directory / FACTS, facts)
