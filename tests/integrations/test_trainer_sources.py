"""The page's lines fit the newest wheels of the trainers that cannot run here: `make test-trainer-sources`.

ENTROPY_DYNAMICS_WHEELS names a folder with the wheels; without it the tests are skipped.
"""

import ast
import os
import re
import zipfile
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "integrations" / "others.md").read_text()
WHEELS = Path(os.environ.get("ENTROPY_DYNAMICS_WHEELS", "no folder"))
# wheel -> section of the page, function, and what stands in the line before or after which the page's lines go
TRAINERS = {
    "openrlhf": ("OpenRLHF", "training_step", "self.actor_loss_fn("),
    "ms_swift": ("ms-swift", "_compute_loss_and_metrics", "advantages = grpo_batch.advantages"),
    "skyrl": ("SkyRL", "_forward_backward_micro", "= current_loss_fn("),
}


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def wheel(name: str) -> zipfile.ZipFile:
    found = [*WHEELS.glob(f"{name}-*.whl")]
    if not found:
        pytest.skip(f"no wheel of {name}: make test-trainer-sources downloads the newest ones")
    return zipfile.ZipFile(found[0])


def read(archive: zipfile.ZipFile, path: str) -> str:
    [name] = [name for name in archive.namelist() if f"/{name}".endswith(f"/{path}")]
    return archive.read(name).decode()


def names(tree: ast.AST, kind: type[ast.expr_context]) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, kind)}


@pytest.mark.parametrize("name", TRAINERS)
def test_the_lines_of_the_page_fit_the_newest_wheel(name):
    page, function, place = TRAINERS[name]
    text, archive = section(page), wheel(name)
    source = read(archive, re.search(r"`([\w/]+\.py)`", text)[1])
    [found] = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and node.name == function and place in ast.get_source_segment(source, node)
    ]
    lines = ast.parse(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[1])
    known = names(found, ast.Store) | {argument.arg for argument in found.args.args}
    assert names(lines, ast.Load) - {"weighted"} <= known
    inside = range(found.lineno, found.end_lineno + 1)
    at = [number for number, line in enumerate(source.splitlines(), 1) if place in line and number in inside]
    assert int(re.search(r"line (\d+)", text)[1]) in at, f"{archive.filename}: line {at}"


def test_unsloth_still_returns_hidden_states_where_the_page_says():
    place = re.search(r"`(unsloth/models/llama\.py):(\d+)`", section("Unsloth"))
    assert "UNSLOTH_RETURN_HIDDEN_STATES" in read(wheel("unsloth"), place[1]).splitlines()[int(place[2]) - 1]
