"""Reads claims.json, of this version and of those that published folders are from."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, RootModel

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_json
from entropy_dynamics.sections import parse


class _Judged(BaseModel):
    """A verdict, and the numbers that it rests on."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    verdict: Literal["holds", "does not hold", "inconclusive"]
    effect: float | None
    low: float | None
    high: float | None
    reason: str = ""


class _Entry(_Judged):
    """An entry of claims.json; keys with a default are missing in those of older versions."""

    id: str
    subject: Literal["this run", "paper"]
    label: str = ""
    statement: str = ""
    place: str = ""
    ours: bool = False
    topic: str = ""
    scale: str | None = None
    unit: str = ""
    claimed: str = ""
    range: Annotated[list[float | None], Field(min_length=2, max_length=2)] | None = None
    why: str = ""
    test: str = ""
    detectable: float | None = None
    seeds: NonNegativeInt | None
    by_seed: dict[str, float] = Field(default_factory=dict)
    seeds_needed: int | None = None
    paper: _Judged | None = None


def verdicts_of(path: Path) -> dict[str, dict[str, Any]]:
    """The entries of claims.json about this run, by id. Raises UserError if the file is missing or damaged.

    Args:
        path: the file, or the folder that holds it.
    """
    file = path if path.is_file() or path.suffix == ".json" else path / "claims.json"
    if not file.is_file():
        raise UserError(f"no file {file}; make it with: entropy-dynamics claims")
    claims = parse(RootModel[list[_Entry]], read_json(file, "make it again with: entropy-dynamics claims"), str(file))
    return {claim.id: claim.model_dump() for claim in claims.root if claim.subject == "this run"}
