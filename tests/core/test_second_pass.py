"""The second pass of token_stats over the vocabulary: top-K log p and the min-p-filtered log p, against float64."""

import math

import pytest
import torch

from entropy_dynamics.core import tiles
from entropy_dynamics.core.token_stats import token_stats


def dense(logits, tokens, temperature, top, min_p, among=None):
    """By the definitions, in float64, from all logits: log p of `tokens`, the largest or given ones, log q."""
    logp = (logits.double() / temperature).log_softmax(-1)
    p = logp.exp()
    kept = p >= min_p * p.amax(-1, keepdim=True)
    at = tokens[..., None]
    sampled = logp.gather(-1, at).squeeze(-1)
    proxy = torch.where(kept.gather(-1, at).squeeze(-1), sampled - (p * kept).sum(-1).log(), -torch.inf)
    return sampled, logp.topk(top).values if among is None else logp.gather(-1, among), proxy


def make(form, rows, vocabulary, seed=0):
    """Logits, or hidden states and a weight; half of the tokens are the most likely ones."""
    g = torch.Generator().manual_seed(seed)
    weight = torch.randn(vocabulary, 16, generator=g) if form == "hidden" else None
    given = torch.randn(rows, 16, generator=g) if form == "hidden" else 3 * torch.randn(rows, vocabulary, generator=g)
    logits = given if weight is None else given @ weight.T
    tokens = torch.randint(vocabulary, (rows,), generator=g)
    tokens[::2] = logits[::2].argmax(-1)
    return given, weight, tokens


def check(form, rows, vocabulary, temperature, *, top=3, min_p=0.02, rtol=1e-4, chosen=False):
    given, weight, tokens = make(form, rows, vocabulary)
    g = torch.Generator().manual_seed(1)
    among = torch.randint(vocabulary, (rows, top), generator=g) if chosen else None
    if chosen:  # the sampled token, which is often the most likely one, and two others or the same
        among[:, 1] = tokens
    upstream = torch.randn(rows, 1 + top, generator=g)  # of log p and of the log p of the most likely tokens
    mine = [x.clone().requires_grad_() for x in (given, weight) if x is not None]
    exact = [x.detach().double().requires_grad_() for x in mine]
    own_weight = mine[1] if weight is not None else None
    requested = {"top": top} if among is None else {"among": among}
    stats = token_stats(mine[0], tokens, weight=own_weight, temperature=temperature, min_p=min_p, **requested)
    torch.cat((stats.logp[:, None], stats.top_logp), 1).mul(upstream).sum().backward()
    logits = exact[0] if weight is None else exact[0] @ exact[1].T
    logp, top_logp, proxy = dense(logits, tokens, temperature, top, min_p, among)
    torch.cat((logp[:, None], top_logp), 1).mul(upstream).sum().backward()

    assert stats.top_logp.dtype == stats.proxy_logp.dtype == torch.float32
    torch.testing.assert_close(stats.top_logp.double(), top_logp, rtol=rtol, atol=2e-5)
    torch.testing.assert_close(stats.proxy_logp.double(), proxy.detach(), rtol=rtol, atol=2e-5)
    assert 0 < (proxy > -torch.inf).sum() < rows
    assert not stats.proxy_logp.requires_grad
    for ours, theirs in zip(mine, exact, strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=rtol, atol=5e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("vocabulary", [200, 5003])
@pytest.mark.parametrize("form", ["logits", "hidden"])
@pytest.mark.parametrize("chosen", [False, True])
def test_values_and_gradients_against_float64(form, vocabulary, temperature, chosen):
    check(form, 40, vocabulary, temperature, chosen=chosen)


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_the_largest_vocabulary(form):
    check(form, 4, 151_936, 1.0)


@pytest.mark.parametrize("form", ["logits", "hidden"])
@pytest.mark.parametrize("size", [1, 64])
def test_the_size_of_the_tiles_does_not_matter(form, size, monkeypatch):
    monkeypatch.setattr(tiles, "WIDE", 100)
    monkeypatch.setattr(tiles, "PROJECTION_TILE", {"cpu": (size, 4 * size)})
    monkeypatch.setattr(tiles, "TILE_ELEMENTS", 200 * size)
    for chosen in (False, True):
        check(form, 33, 200, 0.7, chosen=chosen)


def test_by_hand():
    """A threshold of a tenth drops the last token, one below 1/32 none, one of 0.6 all but the first."""
    p = [0.5, 0.25, 15 / 64, 1 / 64]
    logits, tokens = torch.tensor(p).log().expand(4, 4), torch.arange(4)
    for min_p, expected in ((0.1, [32 / 63, 16 / 63, 15 / 63, 0]), (1 / 33, p), (0.6, [1, 0, 0, 0])):
        assert token_stats(logits, tokens, min_p=min_p).proxy_logp.exp().tolist() == pytest.approx(expected)
    top = token_stats(logits, tokens, top=3).top_logp
    assert top.exp().tolist() == [pytest.approx([0.5, 0.25, 15 / 64])] * 4


@pytest.mark.parametrize("vocabulary", [200, 5003])
def test_the_most_likely_token_alone_has_all_the_mass_whatever_the_rounding(vocabulary):
    logits = 10 * torch.randn(100, vocabulary, generator=torch.Generator().manual_seed(0))
    assert token_stats(logits, logits.argmax(-1), min_p=1.0).proxy_logp.tolist() == pytest.approx([0] * 100, abs=1e-5)


def test_the_sampled_token_is_recognized_among_the_most_likely_ones():
    """By equality of log p, whatever its rank and however its own logit was rounded."""
    logits = torch.randn(50, 5003, generator=torch.Generator().manual_seed(0)).bfloat16()
    for rank in range(3):
        stats = token_stats(logits, logits.float().topk(3).indices[:, rank], top=3)
        assert torch.equal(stats.logp, stats.top_logp[:, rank])
    assert stats.columns().keys() == {"logp", "entropy", "s_star", "s_expected", "top_logp"}


def test_positions_of_any_shape_and_none():
    given, weight, tokens = make("hidden", 24, 60)
    flat = token_stats(given, tokens, weight=weight, top=2, min_p=0.1)
    shaped = token_stats(given.view(2, 3, 4, 16), tokens.view(2, 3, 4), weight=weight, top=2, min_p=0.1)
    assert torch.equal(shaped.top_logp.view(24, 2), flat.top_logp)
    assert torch.equal(shaped.proxy_logp.view(24), flat.proxy_logp)
    for empty, projection in ((given[:0], weight), (torch.zeros(0, 60), None)):
        none = token_stats(empty, tokens[:0], weight=projection, top=2, min_p=0.1)
        assert none.top_logp.shape == (0, 2)
        assert none.proxy_logp.shape == (0,)


def test_tokens_that_are_not_there_and_more_than_there_are():
    logits = torch.tensor([[0.0, -math.inf, math.log(3.0)]], requires_grad=True)
    stats = token_stats(logits, torch.tensor([0]), top=2, min_p=0.01)
    assert stats.top_logp.exp().tolist() == [pytest.approx([0.75, 0.25])]
    assert stats.proxy_logp.exp().item() == pytest.approx(0.25)
    stats.top_logp.sum().backward()
    assert logits.grad.tolist() == [pytest.approx([0.5, 0.0, -0.5])]
    with pytest.raises(ValueError, match="top is 4; the vocabulary has 3 tokens"):
        token_stats(logits, torch.tensor([0]), top=4)
