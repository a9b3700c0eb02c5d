"""Reads claims.json, of this version and of those that published folders are from."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, model_validator

from entropy_dynamics.errors import UserError
from entropy_dynamics.sections import parse


class _Judged(BaseModel):
    """A verdict, and the numbers that it rests on."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    verdict: Literal["holds", "does not hold", "inconclusive"]
    effect: float | None
    low: float | None
    high: float | None
    reason: str = ""

    @model_validator(mode="after")
    def _ends_in_order(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low is {self.low:g}; it should be at most high, {self.high:g}")
        if (self.low is None) != (self.high is None) or (self.effect is None and self.low is not None):
            raise ValueError("low and high should be null together, and if effect is null")
        return self


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


def verdicts_of(path: Path, subject: str = "this run") -> dict[str, dict[str, Any]]:
    """The entries of claims.json, by id. Raises UserError if the file is missing or damaged.

    Args:
        path: the file, or the folder that holds it.
        subject: "this run", or "paper" for the gains that the paper prints.
    """
    file = path if path.is_file() or path.suffix == ".json" else path / "claims.json"
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file.name != "claims.json" or not file.parent.is_dir():
            raise UserError(f"no file or folder {path}") from None
        raise UserError(f"no file {file}; make it with: entropy-dynamics claims") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not a list of verdicts ({' '.join(str(error).split())})") from None
    if not isinstance(entries, list):
        raise UserError(f"{file} is not a list of verdicts")
    claims: dict[str, _Entry] = {}
    for number, entry in enumerate(entries, 1):
        claim = parse(_Entry, entry, f"{file}, entry {number}")
        if claims.setdefault(claim.id, claim) is not claim:
            raise UserError(f"{file}, entry {number}: {claim.id} is there already")
    return {id: claim.model_dump() for id, claim in claims.items() if claim.subject == subject}
