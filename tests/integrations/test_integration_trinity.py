"""Our `advantage_fn` beside Trinity-RFT's own, on the same batches: `make test-integrations`."""

import pytest
import torch

pytest.importorskip("trinity", reason="Trinity-RFT is not installed here: `make test-integrations` runs these tests")

from verl import DataProto

from entropy_dynamics.core.token_stats import token_stats
from entropy_dynamics.errors import UserError

try:
    from trinity.algorithm.advantage_fn import ADVANTAGE_FN
except ImportError as error:
    pytest.skip(f"Trinity-RFT needs more than is installed here: {error}", allow_module_level=True)

PATH = "entropy_dynamics.integrations.trinity.EntropyControl"


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    stats = token_stats(
        3 * torch.randn(8, 20, 40, generator=generator), torch.randint(40, (8, 20), generator=generator)
    )
    mask = (torch.arange(20) < torch.tensor([20, 3, 17, 20, 9, 12, 20, 5])[:, None]).long()
    rewards = torch.zeros(8, 20)
    rewards[:, 0] = torch.tensor([1.0, 0, 0, 1, 0, 1, 1, 1])
    logp = {"old_log_probs": stats.logp, "rollout_log_probs": stats.logp}
    return {"token_level_rewards": rewards, "response_mask": mask, "entropys": stats.entropy, **logp} | {
        "necs": stats.s_expected
    }


def call(name, tensors, **arguments):
    batch = DataProto.from_dict(
        {key: values.clone() for key, values in tensors.items()}, non_tensors={"uid": list("aaaabbbb")}
    )
    return ADVANTAGE_FN.get(name)(**arguments)(batch)


@pytest.mark.parametrize(("name", "arguments"), [("clip_b", {"mu": 0.3}), ("clip_v", {"mu": 1.0, "max_frac": 0.05})])
def test_masks_are_those_of_trinitys_own_functions(name, arguments, tensors):
    ours, metrics = call(PATH, tensors, method=name, **arguments)
    theirs, their_metrics = call(name.replace("_", ""), tensors, **arguments)
    assert 0 < metrics["entropy_control/clip_fraction"] == pytest.approx(their_metrics["frac_clipped"], abs=1e-6)
    assert torch.equal(ours.batch["response_mask"], theirs.batch["response_mask"])
    kept = theirs.batch["response_mask"]
    torch.testing.assert_close(ours.batch["advantages"] * kept, theirs.batch["advantages"] * kept)


@pytest.mark.parametrize("name", ["clip_b", "clip_v"])
def test_a_share_of_the_batch_is_dropped(name, tensors):
    """5 % of 106 tokens are five."""
    exps, metrics = call(PATH, tensors, method=name, share=0.05)
    assert int(tensors["response_mask"].sum() - exps.batch["response_mask"].sum()) == 5
    assert metrics["entropy_control/clip_fraction"] == pytest.approx(5 / 106)


def test_a_batch_without_unmasked_tokens_has_no_metrics(tensors):
    exps, metrics = call(PATH, tensors | {"response_mask": torch.zeros_like(tensors["response_mask"])}, method="clip_b")
    assert metrics == {}
    assert not exps.batch["advantages"].any()


@pytest.mark.parametrize(
    ("lacking", "message"),
    [("necs", "ClipV needs E[S] of each token, and Trinity's batch has no necs"), ("entropys", "has no entropys: set")],
)
def test_a_missing_tensor_is_one_clear_error(lacking, message, tensors):
    del tensors[lacking]
    with pytest.raises(UserError) as error:
        call(PATH, tensors, method="clip_v")
    assert message in str(error.value)
