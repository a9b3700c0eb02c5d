"""The step that makes a base model ready: builds and warm-starts the stand-in of a model."""

import re
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from entropy_dynamics.config import Config
from entropy_dynamics.errors import UserError
from entropy_dynamics.files import sha256, write_json, written_whole
from entropy_dynamics.layout import Layout
from entropy_dynamics.models.loading import save_policy
from entropy_dynamics.models.stand_ins import build_stand_in
from entropy_dynamics.models.tokenizer import build_tokenizer
from entropy_dynamics.models.warm_start import warm_start
from entropy_dynamics.tasks.problems import load_problems
from entropy_dynamics.training.progress import Progress


def prepare_model(config: Config, layout: Layout) -> Path:
    """Write the base model `config.model.name` into `layout.model(...)`, with `model.json` saying what it is.

    Raises UserError if the scale has no stand-in of that model.
    """
    name = config.model.name
    if name not in config.stand_ins:
        raise UserError(f"scale {config.scale} has no stand-in of {name}: add it to `stand_ins` of the scale's config")
    spec = config.stand_ins[name]
    sets = ["train", *config.data.evaluation]
    texts = {problem.problem for one in sets for problem in load_problems(layout.problems(one))}
    exclude = {text for text in texts if re.fullmatch(r"\d+(\+\d+)+", text)}  # problems from a file may be no sums
    tokenizer = build_tokenizer()
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
    out = layout.model(name)
    with written_whole(out) as directory:
        save_policy(model, tokenizer, directory)
        facts: dict[str, Any] = {
            "name": name,
            "label": config.model.label,
            "stand_in": True,
            "architecture": spec.architecture,
            "parameters": model.num_parameters(),
            "warm_start_loss": losses[-1],
            "spec": OmegaConf.to_container(spec),
            "weights_sha256": {file.name: sha256(file) for file in sorted(directory.glob("*.safetensors"))},
        }
        write_json(directory / "model.json", facts)
    return out
