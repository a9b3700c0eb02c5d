"""Reads claims.json, of this version and of those that published folders are from."""

from pathlib import Path
from typing import Any

from entropy_dynamics.analysis.published_runs import check_not_moved
from entropy_dynamics.config import known_names
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_json
from entropy_dynamics.results.layout import Layout

# The keys that files of older versions lack.
DEFAULTS: dict[str, Any] = {"label": "", "topic": "", "unit": "", "ours": False, "scale": None, "range": None}
DEFAULTS |= {"figures": [], "headline": None, "methods": []}
DEFAULTS |= {"detectable": None, "paper": None, "by_seed": {}, "reason": "", "statement": "", "place": ""}
JUDGED = ("verdict", "effect", "low", "high", "seeds")


def verdicts_of(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of claims.json about this run, by id. Raises UserError if the file is missing or damaged.

    Args:
        path: the file, or the folder that holds it.
    """
    file = path if path.is_file() or path.suffix == ".json" else path / "claims.json"
    is_scale = file.parent.name in known_names("scale")  # not a published folder
    command = Layout(file.parent).command("claims") if is_scale else "entropy-dynamics claims"
    if not file.is_file():
        check_not_moved(file.parent)
        raise UserError(f"no file {file}; make it with: {command}")
    content = read_json(file, remedy := f"make it again with: {command}")
    try:
        own = [entry for entry in content if entry["subject"] == "this run"]
        return {entry["id"]: DEFAULTS | {key: entry[key] for key in JUDGED} | entry for entry in own}
    except (TypeError, KeyError) as error:
        raise UserError(f"{file} holds no verdicts: {remedy}") from error
