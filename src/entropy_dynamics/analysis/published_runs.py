"""run.yaml of a published run: what no file beside it says, such as its processor and its earlier name."""

from pathlib import Path

from pydantic import Field

from entropy_dynamics.config import read_yaml
from entropy_dynamics.errors import UserError
from entropy_dynamics.sections import Section, parse

RUN = "run.yaml"


class PublishedRun(Section):
    """The content of run.yaml. Other runs are named by their path below docs/reference."""

    was: list[str] = Field(default_factory=list)
    """Earlier names of the folder, which frozen texts and commands still use."""
    shows: str
    page: str | None = None
    """What describes its results, as a link from docs/reference/README.md."""
    processor: str | None = None
    """null: not recorded."""
    commits: list[str] = Field(default_factory=list)
    """Of the code that ran, the first and further ones."""
    protocol: list[str] = Field(default_factory=list)
    """Commits with its predictions, made before its seeds ran."""
    of: list[str] = Field(default_factory=list)
    """What a pooled run is made of, runs beside it; `restore` restores these."""
    same_models_as: list[str] = Field(default_factory=list)
    """Runs from the same untrained models: only these may be compared run by run."""
    compare_with: list[str] = Field(default_factory=list)
    """The runs that "Does it replicate?" compares it with."""
    verdicts: dict[str, int] = Field(default_factory=dict)
    """File of verdicts -> number of its claims that have an interval, at least."""
    not_restored: str | None = None
    """Why `restore` cannot recreate it."""


def read_run(folder: Path) -> PublishedRun | None:
    """None for a folder that `archive` wrote: it has no run.yaml."""
    file = folder / RUN
    return parse(PublishedRun, read_yaml(file), str(file)) if file.is_file() else None


def parts_of(folder: Path) -> list[Path]:
    """The folders to restore for `folder`: itself or, if it is pooled, those that it is made of.

    Raises UserError if there is no such folder, and says where it is now, or if it cannot be restored.
    """
    check_not_moved(folder)
    run = read_run(folder)
    if run and run.not_restored:
        raise UserError(f"{folder} cannot be restored: {run.not_restored}")
    return [folder.parent / name for name in run.of] if run and run.of else [folder]


def check_not_moved(folder: Path) -> None:
    """Raise UserError if there is no `folder`, but a run below its parent was called so."""
    files = [] if folder.exists() else [*folder.parent.glob(f"*/*/{RUN}"), *folder.parent.glob(f"*/*/*/{RUN}")]
    for file in files:
        if folder.name in parse(PublishedRun, read_yaml(file), str(file)).was:
            raise UserError(f"no folder {folder}: its name is {file.parent} now")
