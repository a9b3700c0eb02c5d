"""The shape annotations of `core` and `methods` hold at run time: jaxtyping checks every call of other tests."""

import subprocess
import sys

from conftest import ROOT

PACKAGES = ("entropy_dynamics.core", "entropy_dynamics.methods")
TYPECHECKER = "beartype.beartype"
# Every method's training step, and the tests of each module that is annotated; none passes a wrong shape on purpose.
CHECKED = [
    "tests/test_degenerate_batches.py::test_every_response_is_cut_off",
    "tests/test_dynamics.py",
    "tests/test_objective.py",
    "tests/test_critic.py",
]
WRONG = """
import torch
from jaxtyping import install_import_hook
with install_import_hook({packages}, {typechecker!r}):
    from entropy_dynamics.core import advantages, dynamics, objective
two, three = torch.zeros(2, 3), torch.zeros(2, 4)
for wrong in (
    lambda: dynamics.batch_centered_mean(two, three),
    lambda: objective.token_divisors(two, two, torch.zeros(3, dtype=torch.int64)),
    lambda: advantages.whiten(two.int(), two),
):
    try:
        wrong()
    except Exception as error:
        print(type(error).__name__)
"""


def test_annotations_hold_in_every_method():
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=line"]
    command += [f"--jaxtyping-packages={','.join([*PACKAGES, TYPECHECKER])}", *CHECKED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-4000:]


def test_a_wrong_shape_is_found():
    program = WRONG.format(packages=PACKAGES, typechecker=TYPECHECKER)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["TypeCheckError"] * 3, done.stderr
