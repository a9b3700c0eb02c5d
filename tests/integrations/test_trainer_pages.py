"""docs/integrations/others.md: the lines that it puts into other trainers' sources, copied from the page."""

import re
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from conftest import ROOT
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.errors import UserError
from entropy_dynamics.integrations import trl
from entropy_dynamics.integrations.common import weighting
from entropy_dynamics.methods import method_types

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


def of_ms_swift(logp, entropy, mask):
    """NaN outside of the responses."""
    entropies = entropy.masked_fill(mask == 0, torch.nan)
    return {"per_token_logps": logp, "entropies": entropies, "completion_mask": mask}


def blocks(section) -> list[str]:
    """The Python of a section."""
    page = (ROOT / "docs/integrations/others.md").read_text()
    text = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize(
    ("section", "of"),
    [("OpenRLHF", of_openrlhf), ("SkyRL", of_skyrl), ("prime-rl", of_prime_rl), ("ms-swift", of_ms_swift)],
)
def test_the_lines_drop_the_outliers_of_wrong_answers_and_nothing_else(section, of):
    head, line = blocks(section)[:2]
    head = head.replace("share=0.001", "share=0.02")  # more than one token of this batch
    advantages = torch.tensor([1.0, -1.0, -0.5]).expand(100, 3).T
    # log p = -1: S* = (H - 1) / e. All tokens at H = 1.2 or 1.3, four of each answer at H = 0.1, far below.
    entropy = torch.tensor([1.2, 1.3]).repeat(3, 50)
    entropy[:, 7:11] = 0.1
    logp = torch.full((3, 100), -1.0, requires_grad=True)
    mask = torch.ones(3, 100)
    mask[2, 5:] = 0  # the third answer ends before its outliers; 2 % of 205 tokens are four
    names = of(logp, entropy, mask)
    shape = names["loss_mask"].shape if "loss_mask" in names else mask.shape
    exec(head, names)
    names["advantages"] = advantages.reshape(shape)
    exec(line, names)
    expected = advantages * mask
    expected[1, 7:11] = 0
    assert torch.equal(names["advantages"].reshape(3, 100), expected)
    assert not names["advantages"].requires_grad


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("clip_v", {}, "clip_v needs E[S] of each token, which SkyRL does not compute"),
        ("gspo", {}, "gspo is more than token weights (it has its own token_loss), so SkyRL"),
        ("lp_reg", {}, "lp_reg is more than token weights (it has its own loss_coefficients)"),
        ("simko", {}, "simko is more than token weights (it has its own loss_coefficients)"),
        ("entrocraft", {}, "entrocraft is more than token weights (it has its own observe)"),
        ("clip_b", {"clip_low": 0.2}, "clip_low belongs to the loss, which is SkyRL's: set it there"),
    ],
)
def test_a_method_that_the_trainer_cannot_run_is_refused(name, params, message):
    with pytest.raises(UserError, match=re.escape(message)):
        weighting("SkyRL", name, **params)


# ---------------------------------------------------------------- what users ask
class Host:
    """TRL's trainer as far as our subclass sees it: two responses of two tokens, the last one of which is padding."""

    model, loss_type = SimpleNamespace(training=True), "dapo"
    args, state = SimpleNamespace(seed=0), SimpleNamespace(global_step=0)
    accelerator = SimpleNamespace(
        process_index=0, is_main_process=False, gather=lambda x: x, pad_across_processes=lambda x, dim: x
    )
    _compute_loss = _prepare_inputs = None

    def __init__(self):
        self._metrics = {"train": defaultdict(list)}

    def _generate_and_score_completions(self, inputs):
        return {"completion_mask": torch.tensor([[1, 1], [1, 0]]), "advantages": torch.tensor([1.0, -1.0])}

    def _get_learning_rate(self):
        return 0.1


ENTROPY = torch.tensor([[0.5, 0.7], [0.9, 5.0]])


@pytest.fixture
def host(monkeypatch):
    """A function of a block of the page -> the trainer it makes, and its batch."""
    stats = TokenStats(-ENTROPY, ENTROPY, torch.zeros(2, 2), torch.zeros(2, 2))
    monkeypatch.setattr(trl, "version", lambda name: "1.16.0")
    monkeypatch.setattr(trl.EntropyControlMixin, "_token_stats", lambda self, output: stats)

    def of(block):
        names = {"GRPOTrainer": Host}
        exec(block, names)
        trainer = names["GRPOTrainer"]()
        return trainer, trainer._generate_and_score_completions([])

    return of


def test_the_entropy_is_logged_and_the_advantages_stay(host):
    trainer, batch = host(blocks("Unsloth")[0])
    assert trainer._metrics["train"]["entropy_control/entropy"] == [pytest.approx(0.7)]
    assert batch["advantages"].tolist() == [[1, 1], [-1, 0]]


def test_weights_of_ones_own_enter_trls_advantages(host, monkeypatch):
    monkeypatch.setattr("entropy_dynamics.methods._METHODS", dict(method_types()))
    _, batch = host(blocks("In code of your own")[1])
    torch.testing.assert_close(batch["advantages"], torch.tensor([[1.5, 1.7], [-1.9, 0.0]]))


def test_the_entropy_from_hidden_states():
    torch.manual_seed(0)
    names = {"hidden": torch.randn(2, 3, 4), "tokens": torch.zeros(2, 3, dtype=torch.long), "temperature": 0.7}
    names["lm_head"] = torch.nn.Linear(4, 11, bias=False)
    exec(blocks("In code of your own")[0], names)
    expected = torch.distributions.Categorical(logits=names["lm_head"](names["hidden"]) / 0.7).entropy()
    torch.testing.assert_close(names["entropy"], expected)


def test_repo_r_in_skyrl():
    """A' = A - zeta |A| (log p + H), with zeta doubled once the entropy has been below its target."""
    head, line = blocks("SkyRL")[2:]
    mask, advantages = torch.ones(3, 5), torch.tensor([1.0, -2.0, 0.5])[:, None].expand(3, 5)
    mask[2, 3:] = 0
    logp, entropy = -torch.arange(15.0).view(3, 5) / 5, torch.full((3, 5), 1.2)
    names = of_skyrl(logp.requires_grad_(), entropy, mask)
    exec(head, names)
    for zeta in (0.01, 0.02):
        names["advantages"] = advantages
        exec(line, names)
        expected = mask * (advantages - zeta * advantages.abs() * (logp.detach() + 1.2))
        torch.testing.assert_close(names["advantages"], expected)
        names["repo_r"].observe({"entropy": 0.1})
