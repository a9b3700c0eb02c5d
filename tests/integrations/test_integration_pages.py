"""The script of docs/integrations/trl.md, copied from the page: `make test-integrations`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("trl", reason="TRL is not installed here: `make test-integrations` runs these tests")

PAGE = (Path(__file__).parents[2] / "docs/integrations/trl.md").read_text()


@pytest.mark.parametrize("method", ["grpo", "clip_b"])
def test_the_script_of_the_trl_page_runs_to_its_end(method, tmp_path):
    (tmp_path / "script.py").write_text(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1])
    done = subprocess.run(
        [sys.executable, "script.py", method, "6"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("reward ")]
    assert len(lines) == 6
    dropped = [float(line.split()[-1]) for line in lines]
    assert any(dropped) == (method == "clip_b")
