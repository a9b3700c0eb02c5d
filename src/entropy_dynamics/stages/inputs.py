"""The results that a stage starts from: whether they were made with the settings, the code and the inputs of now.

No torch is imported here, so that a mistake is reported at once.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from entropy_dynamics.config import BASE, EVALUATED, Config, differences, is_within, settings_of, settings_of_run
from entropy_dynamics.config.schema import marked_keys
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_json, sha256
from entropy_dynamics.results.layout import CONFIG, FACTS, PROVENANCE, Layout, record_of
from entropy_dynamics.sections import LOCATION


def made_with(result: Path) -> Any:
    """The settings in the record of a stage's result; None if it has none."""
    if not (record := record_of(result)).is_file():
        return None
    return settings_of_run(record.parent) if record.name == CONFIG else read_json(record).get("config")


def new_settings(layout: Layout, result: Path, settings: Mapping[str, Any]) -> list[str]:
    """The `differences` of a stage's settings from those of its existing result."""
    was = made_with(result)
    if was and (place := layout.parse(result)) and place.temperature is not None:
        was = was | {"evaluation.temperature": settings["evaluation.temperature"]}
    return differences(was, settings) if was else []


def check_chain(
    layout: Layout, load: Callable[..., Config], stage: str, model: str, method: str = BASE, seed: int = 0
) -> None:
    """Raise UserError if a result that the stage depends on was made from something else than it would be now.

    `load` returns the config of the scale, of a model or of a run. Missing results are left to the stage.
    """
    config = load()

    def check(result: Path, command: str, *run: str) -> None:
        if changes := _changes(layout, result, command.split()[0], load(*run)):
            more = f" and {len(changes) - 1} more" * (len(changes) > 1)
            made = result.parent if result.name in (FACTS, CONFIG) else result
            remedy = f"delete it, and make it again with: {layout.command(command)}"
            raise UserError(f"{made} was made from something else: {changes[0]}{more}; {remedy}")

    check(layout.problems_report, "problems")
    if stage == "model":
        return
    trained, filtered = stage == "train" or method != BASE, config.pass_rates.model
    for name in dict.fromkeys([filtered, model] if trained else [model]):
        number = config.untrained(name, seed)
        check(layout.model(name, number) / FACTS, f"model --model {name} --seed {number}", name)
    if trained:
        number = config.untrained(filtered, seed)
        check(layout.pass_rates(number), f"pass_rates --seed {number}", filtered)
    if trained and stage != "train":
        run = f"train --model {model} --method {method} --seed {seed}"
        check(layout.run(model, method, seed) / CONFIG, run, model, method)


def _changes(layout: Layout, result: Path, stage: str, config: Config) -> list[str]:
    """How the settings and the inputs of a result differ from those of now; none without a record."""
    if (was := made_with(result)) is None:
        return []
    # Other samples of a policy are no reason to train it again.
    free = [*marked_keys(LOCATION), *(EVALUATED if stage == "train" else ())]
    both = was, settings_of(stage, config)
    kept = [{key: value for key, value in each.items() if not is_within(key, free)} for each in both]
    listing = result.with_name(PROVENANCE) if stage == "train" else record_of(result)
    inputs = read_json(listing).get("inputs", {}) if listing.is_file() else {}
    files = {layout.here(name, config.scale): digest for name, digest in inputs.items()}
    changed = [file for file, digest in files.items() if file.is_file() and sha256(file) != digest]
    return [*differences(*kept), *(f"{file} has changed since" for file in changed)]
