"""Reads claims.json, of this version and of those that published folders are from."""

from pathlib import Path
from typing import Any

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_json

# The keys that files of older versions lack.
DEFAULTS: dict[str, Any] = {"label": "", "topic": "", "unit": "", "ours": False, "scale": None, "range": None}
DEFAULTS |= {"detectable": None, "paper": None, "by_seed": {}, "reason": "", "statement": "", "place": ""}
JUDGED = ("verdict", "effect", "low", "high", "seeds")
REMEDY = "make it again with: entropy-dynamics claims"


def verdicts_of(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of claims.json about this run, by id. Raises UserError if the file is missing or damaged.

    Args:
        path: the file, or the folder that holds it.
    """
    file = path if path.is_file() or path.suffix == ".json" else path / "claims.json"
    if not file.is_file():
        raise UserError(f"no file {file}; make it with: entropy-dynamics claims")
    content = read_json(file, REMEDY)
    try:
        own = [entry for entry in content if entry["subject"] == "this run"]
        return {entry["id"]: DEFAULTS | {key: entry[key] for key in JUDGED} | entry for entry in own}
    except (TypeError, KeyError) as error:
        raise UserError(f"{file} holds no verdicts: {REMEDY}") from error
