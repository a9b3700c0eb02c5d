"""The function of docs/integrations/others.md, copied from the page."""

import re

import torch

from conftest import ROOT

PAGE = (ROOT / "docs/integrations/others.md").read_text()


def test_the_function_drops_the_outliers_of_wrong_answers_and_nothing_else():
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], names := {})
    advantages = torch.tensor([1.0, -1.0, -0.5]).expand(100, 3).T
    # log p = -1: S* = (H - 1) / e. All tokens at H = 1.2 or 1.3, one of each answer at H = 0.1, far below.
    entropy = torch.tensor([1.2, 1.3]).repeat(3, 50)
    entropy[:, 7] = 0.1
    logp = torch.full((3, 100), -1.0, requires_grad=True)
    mask = torch.ones(3, 100)
    mask[2, 5:] = 0  # the third answer ends before its outlier
    weighted = names["weighted"](advantages, logp, entropy, mask)
    expected = advantages * mask
    expected[1, 7] = 0
    assert torch.equal(weighted, expected)
    assert not weighted.requires_grad
