"""Results as an RO-Crate: a zip file of everything that `verify` reads, described in JSON-LD.

The standards (RO-Crate 1.1, Process Run Crate 0.5) require so few terms that no library is needed.
"""

import json
import mimetypes
import os
import zipfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path, PurePath
from typing import Any

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import files_below, read_json, read_parquet, sha256, written_whole
from entropy_dynamics.results.layout import CONFIG, FACTS, PROVENANCE, Layout

METADATA = "ro-crate-metadata.json"
CRATE = "https://w3id.org/ro/crate/1.1"
PROCESS_RUN = "https://w3id.org/ro/wfrun/process/0.5"
TERMS = {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}  # RO-Crate's own context has no checksum
PAPER = "https://arxiv.org/abs/2602.03392"
LICENSE = "https://spdx.org/licenses/Apache-2.0"
WORKING = ("checkpoints", "failures", "logs", "shards")  # folders that only the run itself needs
TYPES = {".parquet": "application/vnd.apache.parquet", ".yaml": "application/yaml", ".md": "text/markdown"}


def of_policy(name: PurePath) -> bool:
    """Whether a file belongs to the weights or the tokenizer of a model or policy, which an archive may leave out."""
    return name.name != FACTS and (name.parts[0] == "models" or "policy" in name.parts)


def write_archive(layout: Layout, target: Path, policies: bool = False) -> Path:
    """Write `results/<scale>` into a zip file.

    Args:
        policies: include the weights and tokenizers, which only training and sampling need.

    Raises:
        UserError: the folder has no results, a file in it is damaged, or a link in it leads nowhere or in a circle.
    """
    root = layout.root
    names = sorted(path.relative_to(root) for path in files_below(root))
    names = [name for name in names if not any(part[0] == "." for part in name.parts) and name.parts[0] not in WORKING]
    names = [name for name in names if name != PurePath(METADATA) and (policies or not of_policy(name))]
    names = [name for name in names if (root / name).resolve() != target.resolve()]
    for name in names:
        if not (root / name).is_file():
            raise UserError(
                f"{root / name} is not a file but a broken link or a device; remove it or restore its target"
            )
    if not any(name.name.endswith(PROVENANCE) for name in names):
        raise UserError(f"{root} holds no results; the folder of a scale is needed, such as results/laptop")
    for name in names:
        if name.suffix == ".json":
            read_json(root / name)
        elif name.suffix == ".parquet":
            read_parquet(root / name)  # every page has a checksum
    with (
        written_whole(target) as temporary,
        zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,  # dates before 1980
    ):
        archive.writestr(METADATA, json.dumps(_metadata(root, names), indent=1, ensure_ascii=False) + "\n")
        for name in names:
            archive.write(root / name, name.as_posix())
    return target


def archived_hashes(metadata: Path) -> dict[str, str]:
    """Hashes of the files of an unpacked archive, by name."""
    graph = read_json(metadata)["@graph"]
    return {entity["@id"]: entity["sha256"] for entity in graph if entity["@type"] == "File"}


def _metadata(root: Path, names: list[Path]) -> dict[str, Any]:
    records = [read_json(root / name) for name in names if name.name.endswith(PROVENANCE)]
    commits = sorted({str(record["git"]["commit"]) for record in records})
    software = [
        {
            "@id": f"#entropy-dynamics-{commit[:12]}",
            "@type": "SoftwareApplication",
            "name": "entropy-dynamics",
            "softwareVersion": f"{version('entropy-dynamics')}, commit {commit}",
        }
        for commit in commits
    ]
    end = max(os.stat(root / name).st_mtime for name in names)
    graph = [
        {"@id": METADATA, "@type": "CreativeWork", "conformsTo": {"@id": CRATE}, "about": {"@id": "./"}},
        {
            "@id": "./",
            "@type": "Dataset",
            "name": f"entropy-dynamics, scale {root.name}",
            "description": "Metrics, samples, tables, figures and verdicts of a reproduction, with the provenance and "
            "the resolved config of every run.",
            "datePublished": datetime.now(UTC).date().isoformat(),
            "license": {"@id": LICENSE},
            "conformsTo": {"@id": PROCESS_RUN},
            "isBasedOn": {"@id": PAPER},
            "hasPart": [{"@id": name.as_posix()} for name in names],
            "mentions": [{"@id": "#run"}],
        },
        {
            "@id": "#run",
            "@type": "CreateAction",
            "name": f"snakemake --config scale={root.name}",
            "instrument": [{"@id": code["@id"]} for code in software],
            "object": [{"@id": name.as_posix()} for name in names if name.name == CONFIG],
            "result": [{"@id": name.as_posix()} for name in names if name.name != CONFIG],
            "endTime": datetime.fromtimestamp(end, UTC).isoformat(timespec="seconds"),
        },
        {
            "@id": PAPER,
            "@type": "ScholarlyArticle",
            "name": "On the Entropy Dynamics in Reinforcement Fine-Tuning of Large Language Models",
        },
        {"@id": LICENSE, "@type": "CreativeWork", "name": "Apache License 2.0"},
        {"@id": PROCESS_RUN, "@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"},
        *software,
        *(_file(root, name) for name in names),
    ]
    return {"@context": [f"{CRATE}/context", TERMS], "@graph": graph}


def _file(root: Path, name: Path) -> dict[str, str]:
    media = TYPES.get(name.suffix) or mimetypes.guess_type(name.name)[0] or "application/octet-stream"
    entity = {"@id": name.as_posix(), "@type": "File", "name": name.name, "encodingFormat": media}
    return entity | {"contentSize": str((root / name).stat().st_size), "sha256": sha256(root / name)}
