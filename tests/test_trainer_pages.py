"""The lines that the pages of OpenRLHF, SkyRL and prime-rl put into their sources, copied from the pages."""

import re
from types import SimpleNamespace

import pytest
import torch

from conftest import ROOT
from entropy_dynamics.errors import UserError
from entropy_dynamics.integrations.common import weighting

PROMPT = 4


def of_openrlhf(logp, entropy, mask):
    """Entropies of all positions but the last; that of a token is one before it."""
    return {
        "action_log_probs": logp,
        "output": SimpleNamespace(entropy=torch.cat([torch.full((3, PROMPT - 1), 9.0), entropy], dim=1)),
        "experience": SimpleNamespace(action_mask=mask.bool()),
    }


def of_skyrl(logp, entropy, mask):
    """Entropies of all positions."""
    sides = torch.full((3, PROMPT - 1), 9.0), torch.full((3, 1), 9.0)
    return {
        "action_log_probs": logp,
        "output": {"entropy": torch.cat([sides[0], entropy, sides[1]], dim=1)},
        "num_actions": mask.shape[1],
        "loss_mask": mask,
    }


def of_prime_rl(logp, entropy, mask):
    """One row, and both are those of the token at their position."""
    return {
        "out": {"logprobs": logp.reshape(1, -1), "entropy": entropy.reshape(1, -1)},
        "loss_mask": mask.reshape(1, -1),
    }


@pytest.mark.parametrize(("page", "of"), [("openrlhf", of_openrlhf), ("skyrl", of_skyrl), ("prime-rl", of_prime_rl)])
def test_the_lines_drop_the_outliers_of_wrong_answers_and_nothing_else(page, of):
    head, line = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/integrations/{page}.md").read_text(), re.DOTALL)
    advantages = torch.tensor([1.0, -1.0, -0.5]).expand(100, 3).T
    # log p = -1: S* = (H - 1) / e. All tokens at H = 1.2 or 1.3, one of each answer at H = 0.1, far below.
    entropy = torch.tensor([1.2, 1.3]).repeat(3, 50)
    entropy[:, 7] = 0.1
    logp = torch.full((3, 100), -1.0, requires_grad=True)
    mask = torch.ones(3, 100)
    mask[2, 5:] = 0  # the third answer ends before its outlier
    names = of(logp, entropy, mask)
    shape = names["loss_mask"].shape if "loss_mask" in names else mask.shape
    exec(head, names)
    names["advantages"] = advantages.reshape(shape)
    exec(line, names)
    expected = advantages * mask
    expected[1, 7] = 0
    assert torch.equal(names["advantages"].reshape(3, 100), expected)
    assert not names["advantages"].requires_grad


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("clip_v", {}, "clip_v needs E[S] of each token, which SkyRL does not compute"),
        ("gspo", {}, "gspo is more than token weights"),
        ("clip_b", {"clip_low": 0.2}, "clip_low belongs to the loss, which is SkyRL's: set it there"),
    ],
)
def test_a_method_that_the_trainer_cannot_run_is_refused(name, params, message):
    with pytest.raises(UserError, match=re.escape(message)):
        weighting("SkyRL", name, **params)
