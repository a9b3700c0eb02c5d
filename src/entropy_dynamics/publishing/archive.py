"""Writes a folder that is ready for a data repository or the Hugging Face Hub; uploading it is left to the user."""

import shutil
from importlib.metadata import distribution, version
from pathlib import Path

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claims import JUDGED
from entropy_dynamics.publishing.restore import MODELS, write_data
from entropy_dynamics.report.fill import fill
from entropy_dynamics.report.page import what_ran
from entropy_dynamics.report.summary import summary_line
from entropy_dynamics.results.files import sha256, write_json, write_text, written_whole

COPIED = [f"{judged}.{suffix}" for judged in ("claims", *JUDGED) for suffix in ("json", "md")]
COPIED += ["tables/*.csv", "tables/*.md", "figures/*.csv"]
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
    if folder.resolve().is_relative_to(results.root.resolve()):
        raise UserError(f"{folder} is in the results, {results.root}; name a folder outside")
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} is not an empty folder; name a new one")
    with written_whole(folder.resolve()) as temporary:
        temporary.mkdir()
        rows = write_data(results, temporary)
        models, judged = results.models, results.layout.judged("claims", "json").is_file()
        about = {"scale": results.scale, "doi": doi, "version": version("entropy-dynamics")}
        facts = {
            "models": {name: model.ran_with_size for name, model in models.items()},
            "toy": any(model.toy for model in models.values()),
            "datasets": {name: results.dataset_label(name) for name in results.config.data.evaluation},
            "verdicts": summary_line(verdicts_of(results.root).values()) if judged else None,
            "ran": what_ran(results.layout),
        }
        for source in (path for pattern in COPIED for path in results.root.glob(pattern)):
            copy = temporary / source.relative_to(results.root)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, copy)
        described = {name: model.model_dump() for name, model in models.items()}
        write_json(temporary / MODELS, {"scale": results.scale, "models": described})
        write_text(temporary / "README.md", fill("data_card.md", rows=rows, **facts, **about))
        write_text(temporary / "CITATION.cff", fill("data_citation.cff", **about))
        write_text(temporary / "LICENSE", license_text)
        names = sorted(path.relative_to(temporary).as_posix() for path in temporary.rglob("*") if path.is_file())
        write_text(temporary / SUMS, "".join(f"{sha256(temporary / name)}  {name}\n" for name in names))
        return [folder / name for name in (*names, SUMS)]
