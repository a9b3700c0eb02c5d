"""Writes a folder that is ready for a data repository or the Hugging Face Hub; uploading it is left to the user."""

import shutil
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.errors import UserError
from entropy_dynamics.reporting.published import MODELS, write_data
from entropy_dynamics.reporting.report import what_ran
from entropy_dynamics.reporting.summary import summary_line
from entropy_dynamics.reporting.templates import fill
from entropy_dynamics.results.files import sha256, write_json, write_text, written_whole

COPIED = ("claims.json", "claims.md", "tables/*.csv", "tables/*.md", "figures/*.csv")
SUMS = "SHA256SUMS"


def publish(results: Results, folder: Path, doi: str | None = None) -> list[Path]:
    """Write counts.parquet, metrics.parquet, samples.parquet and, if runs kept token samples, tokens.parquet.

    Also writes existing verdicts, tables and the numbers of figures, the data card README.md, LICENSE, CITATION.cff,
    and SHA256SUMS of all files in the format of `sha256sum -c`. Without the DOI that the repository has reserved, the
    card and the citation say how to get one.

    Raises UserError if there are no evaluations or no runs, a file is damaged, the installed package lacks its license,
    or the folder is not empty.
    """
    license_text = distribution("entropy-dynamics").read_text("licenses/LICENSE")
    if license_text is None:
        raise UserError("the installed package has no license file; install it again: pip install -e .")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; name a new folder")
    with written_whole(folder.resolve()) as temporary:
        temporary.mkdir()
        paths = _write(results, temporary, license_text, doi)
        return [folder / path.relative_to(temporary) for path in paths]


def _write(results: Results, folder: Path, license_text: str, doi: str | None) -> list[Path]:
    rows = write_data(results, folder)
    for source in (path for pattern in COPIED for path in results.root.glob(pattern)):
        copy = folder / source.relative_to(results.root)
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(source, copy)
    models = {name: model.model_dump() for name, model in results.models.items()}
    write_json(folder / MODELS, {"scale": results.scale, "models": models})
    about = {"scale": results.scale, "doi": doi, "version": version("entropy-dynamics")}
    write_text(folder / "README.md", fill("data_card.md", rows=rows, **_facts(results), **about))
    write_text(folder / "CITATION.cff", fill("data_citation.cff", **about))
    write_text(folder / "LICENSE", license_text)
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    sums = [f"{sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in paths]
    write_text(folder / SUMS, "".join(sums))
    return [*paths, folder / SUMS]


def _facts(results: Results) -> dict[str, Any]:
    """The facts about the runs for the data card, as far as they are known."""
    layout, models = results.layout, results.models
    return {
        "models": {name: model.ran_with_size for name, model in models.items()},
        "toy": any(model.toy for model in models.values()),
        "datasets": {name: results.dataset_label(name) for name in results.config.data.evaluation},
        "verdicts": summary_line(list(verdicts_of(results.root).values())) if layout.claims("json").is_file() else None,
        "ran": what_ran(layout),
    }
