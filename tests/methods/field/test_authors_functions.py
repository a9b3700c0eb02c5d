"""Each method against its authors' function, transcribed as arithmetic on single tokens in float64.

Every transcription names the repository, commit, file and line that it was read from; what a setting is there and
here is in configs/method/field/authors. Cases are small batches in which every branch occurs.
"""

import math
from dataclasses import replace
from itertools import compress
from math import comb, exp, log

import pytest
import torch

from batches import stats_of
from entropy_dynamics.config import load_config
from entropy_dynamics.core.objective import weighted_sum
from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.methods import Method, load_method

# Responses of up to five tokens: p under the policy and under the one that sampled, entropies, an advantage a row.
P = [[0.9, 0.5, 0.02, 0.3, 0.7], [0.6, 0.95, 0.1, 0.4, 0.2], [0.05, 0.8, 0.5, 0.33, 0.5], [0.7, 0.01, 0.45, 0.6, 0.1]]
OLD = [[0.8, 0.3, 0.05, 0.3, 0.5], [0.7, 0.5, 0.3, 0.41, 0.2], [0.002, 0.9, 0.5, 0.3, 0.9], [0.3, 0.3, 0.44, 0.9, 0.5]]
H = [[0.3, 0.9, 1.6, 1.1, 0.6], [0.8, 0.2, 1.5, 1.0, 1.2], [1.7, 0.5, 0.7, 1.3, 0.9], [0.6, 1.8, 0.95, 0.7, 1.4]]
A = [1.5, -0.5, -1.2, 0.8]
# The three most likely tokens, the sampled one being among four; and q of Lp-Reg, above p or below it.
TOP = [[sorted([p, 0.7 * (1 - p), 0.2 * (1 - p), 0.1 * (1 - p)])[:0:-1] for p in row] for row in P]
Q = [[p * (1.2 if t % 2 else 0.9) for t, p in enumerate(row)] for row in P]
LENGTHS = [5, 4, 5, 3]

TOKENS = [(row, t) for row, length in enumerate(LENGTHS) for t in range(length)]
MASK = torch.arange(5) < torch.tensor(LENGTHS)[:, None]


def released(name, **changes) -> Method:
    """The method with the setting `authors` at the paper's scale, but for `changes`."""
    config = load_config("paper", "qwen2.5-7b-instruct", f"{name}_authors")
    return config.method.build().model_copy(update=changes)


def ours(method, of_rows=A) -> dict[str, list[float]]:
    """The gradient of the batch's loss in log p, H and log p of the top, in the order of TOKENS."""
    leaves = torch.tensor(P).log(), torch.tensor(H), torch.tensor(TOP).log()
    logp, entropy, top_logp = leaves
    stats = TokenStats.from_logged(logp, entropy, torch.zeros(4, 5))
    stats = replace(stats, top_logp=top_logp.clone(), proxy_logp=torch.tensor(Q).log())
    old, advantages = torch.tensor(OLD).log(), torch.tensor(of_rows)[:, None].expand(4, 5)
    weights = method.token_weights(stats, advantages, MASK, logp_old=old)
    given = {"entropy": entropy, "coefficients": method.loss_coefficients(stats, advantages, MASK)}
    given |= {"top_logp": top_logp} if "top" in method.second_pass() else {}
    for leaf in leaves:
        leaf.requires_grad_()
    loss = method.token_loss(logp, old, advantages, MASK, **given)
    multipliers = weights / method.divisors(weights, MASK, torch.zeros(4, dtype=torch.long))
    loss = weighted_sum(loss, multipliers)
    gradients = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    values = zip(("grad", "by_entropy", "by_top"), gradients, strict=True)
    return {name: [value[at].tolist() for at in TOKENS] for name, value in values}


def ppo(r, a, low, high, dual) -> float:
    """Derivative in log p of a token's loss: verl's compute_policy_loss, in all that follow."""
    unclipped, clipped = -a * r, -a * min(max(r, 1 - low), 1 + high)
    capped = a < 0 and max(unclipped, clipped) > -a * dual
    return unclipped if unclipped >= clipped and not capped else 0.0


def ratio(row, t) -> float:
    return P[row][t] / OLD[row][t]


def assert_gradients(method, slopes, tokens=17):
    """`slopes`: derivative of each token's loss in its log p, the batch's being their sum over `tokens`."""
    assert ours(method)["grad"] == pytest.approx([slope / tokens for slope in slopes], rel=2e-5, abs=1e-7)
    assert len({round(slope, 6) for slope in slopes}) > 5  # the case is not trivial


def test_steer():
    """zz-haooo/STEER b31df71, verl/trainer/ppo/core_algos.py:608-668 and 729-760."""
    omega = [abs(A[i] / OLD[i][t] * P[i][t] * (1 - P[i][t]) * (log(P[i][t]) + H[i][t])) for i, t in TOKENS]
    k = -log(0.8) / max(max(omega), 0.02)
    slopes = [ppo(ratio(i, t), A[i], 0.2, 0.28, 10.0) for i, t in TOKENS]
    damped = [exp(-k * size) * slope for size, slope in zip(omega, slopes, strict=True)]
    assert_gradients(released("steer"), damped)


@pytest.mark.parametrize("mean", ["below", "above"])
def test_stare(mean):
    """hp-luo/STARE bffb9e7, verl/trainer/ppo/core_algos.py:1150-1175; the gate is shut from the target on."""
    method = released("stare", target=2.0 if mean == "below" else 0.3, share=0.3)
    positive = [(i, t) for i, t in TOKENS if A[i] > 0]
    count = max(1, int(len(positive) * 0.3 + 0.999999))
    chosen = sorted(positive, key=lambda at: P[at[0]][at[1]])[:count] if mean == "below" else []
    slopes = [(1.1 if at in chosen else 1.0) * ppo(ratio(*at), A[at[0]], 0.2, 0.28, 10.0) for at in TOKENS]
    assert_gradients(method, slopes)


def test_forking_tokens():
    """Shenzhi-Wang/Beyond-the-80-20-Rule-RLVR 6f5dda6, verl/trainer/ppo/core_algos.py:53-83 and 1004-1007."""
    count = max(1, int(len(TOKENS) * 0.2 + 0.9999))
    chosen = sorted(TOKENS, key=lambda at: -H[at[0]][at[1]])[:count]
    slopes = [(at in chosen) * ppo(ratio(*at), A[at[0]], 0.2, 0.28, 10.0) for at in TOKENS]
    found = ours(released("forking_tokens"))["grad"]
    assert found == pytest.approx([slope / count for slope in slopes], rel=2e-5, abs=1e-7)  # mean over the selected
    assert count == 4


def test_advantage_reweighting():
    """zhyang2226/AR-Lopti cbeb333, verl/trainer/ppo/ray_trainer.py:318, method both_linear_normal, k 0.2, tau 0.8."""
    slopes = [(0.2 * OLD[i][t] + 0.8) * ppo(ratio(i, t), A[i], 0.2, 0.24, 10.0) for i, t in TOKENS]
    assert_gradients(released("advantage_reweighting"), slopes)


def test_ce_gppo():
    """Kwai-Klear/CE-GPPO 10558fe, verl/trainer/ppo/core_algos.py:586-622; workers/actor/dp_actor.py:352-357, 409.

    beta_high is 0.5 in place of 1, which no clipped token shows.
    """
    correct = [at for at in TOKENS if A[at[0]] > 0]
    slopes = []
    for i, t in TOKENS:
        r, a = ratio(i, t), A[i]
        slope = -0.75 * 0.8 * a if r < 0.8 and a < 0 else -0.5 * 1.2 * a if r > 1.2 and a > 0 else -r * a
        value = slope  # their loss has the value of its derivative: it is linear in r / sg r
        slope = 0.0 if a < 0 and value > -a * 10 else slope
        slopes.append(slope - ((i, t) in correct) * 0.1 * len(TOKENS) / len(correct))
    assert_gradients(released("ce_gppo", beta_high=0.5), slopes)


def test_dppo():
    """sail-sg/Stable-RL c6af1d1, verl/trainer/ppo/core_algos.py:1190-1203, 1275-1277.

    clip_ratio_c is 10 in place of 1e4.

    seq-mean-token-sum-norm: the sum of all token losses over rollouts x the longest response.
    """
    method = released("dppo", max_tokens=9, truncation=10.0)
    slopes = []
    for i, t in TOKENS:
        moved = P[i][t] - OLD[i][t]
        outside = moved > 0.15 if A[i] > 0 else moved < -0.15
        slopes.append(0.0 if outside else -A[i] * min(ratio(i, t), 10.0))
    assert_gradients(method, slopes, tokens=4 * 9)


def test_lp_reg():
    """CarlanLark/Lp-Reg-dev 33b27e2, verl/trainer/ppo/core_algos.py:668-737 and 868-872; 40 % in place of 1 %."""
    negative = [at for at in TOKENS if A[at[0]] < 0]
    chosen = sorted(negative, key=lambda at: P[at[0]][at[1]])[: max(1, int(len(negative) * 0.4))]
    slopes, tied = [], 0
    for i, t in TOKENS:
        d = log(Q[i][t]) - log(P[i][t])
        if (i, t) in chosen and d > 0:
            tied += 1
            slopes.append(-A[i] * ratio(i, t) + (1 - exp(d)) * (exp(d) - d - 1 < 10))
        else:
            slopes.append(ppo(ratio(i, t), A[i], 1.0, 9.0, math.inf))
    assert_gradients(released("lp_reg", share=0.4), slopes)
    assert 0 < tied < len(chosen)


def test_lp_reg_target():
    """The same repository, verl/workers/actor/dp_actor.py:84-98: other logits at -1e4, and their softmax."""
    logits = [1.3, 0.2, -3.5, -2.5, 0.9]
    p = [exp(z) / sum(map(exp, logits)) for z in logits]
    kept = [p_i >= 0.02 * max(p) for p_i in p]
    q = [keep * p_i / sum(compress(p, kept)) for p_i, keep in zip(p, kept, strict=True)]
    stats = token_stats(torch.tensor([logits] * 5), torch.arange(5), **released("lp_reg").second_pass())
    assert stats.proxy_logp.exp().tolist() == pytest.approx(q)
    assert kept == [True, True, False, True, True]


def test_simko():
    """CLR-Lab/SimKO 306f4ff, verl/trainer/ppo/core_algos.py:317-425: gradients in log p and in the log p of the top 3.

    Their ratio of the top K, (r / (r_k + 1e-8)) r_k with the first factor constant, has the value and slope r. The
    quantile is 0.4 in place of 0.8.
    """
    thresholds = []
    for row, length in zip(H, LENGTHS, strict=True):  # torch.quantile, which interpolates
        place = 0.4 * (length - 1)
        low, high = sorted(row[:length])[math.floor(place)], sorted(row[:length])[math.ceil(place)]
        thresholds.append(low + (place - math.floor(place)) * (high - low))
    slopes, by_top, heavier = [], [], 0
    for i, t in TOKENS:
        uncertain, r = H[i][t] > thresholds[i], ratio(i, t)
        top1 = uncertain and A[i] < 0 and P[i][t] == max(TOP[i][t])
        heavier += top1
        slope = ppo(r, A[i] * (1.1 if top1 else 1.0), 0.2, 0.2, math.inf)
        mixed = 0.01 if uncertain and A[i] > 0 else 0.0
        slopes.append(slope * (1 - mixed))
        by_top.append([slope * mixed / 3] * 3)
    assert heavier == 1
    method = released("simko", quantile=0.4)
    assert_gradients(method, slopes)
    for found, expected in zip(ours(method)["by_top"], by_top, strict=True):
        assert found == pytest.approx([slope / len(TOKENS) for slope in expected], rel=2e-5, abs=1e-9)
    assert any(slope for slope, *_ in by_top)


def test_gspo():
    """verl b178a3c, verl/trainer/ppo/core_algos.py:1290-1318; bounds that some sequences are within."""
    method = released("gspo", clip_low=0.01, clip_high=0.01)
    slopes = []
    for i, _ in TOKENS:
        s = exp(sum(log(ratio(i, t)) for t in range(LENGTHS[i])) / LENGTHS[i])
        slopes.append(ppo(s, A[i], 0.01, 0.01, math.inf) / LENGTHS[i])
    found = ours(method)["grad"]
    assert found == pytest.approx([slope / 4 for slope in slopes], rel=2e-5, abs=1e-7)  # mean over sequences
    assert any(slopes)
    assert not all(slopes)


def covariance(row, t) -> float:
    mean_a = sum(A[i] for i, _ in TOKENS) / len(TOKENS)
    mean_logp = sum(log(P[i][t]) for i, t in TOKENS) / len(TOKENS)
    return (A[row] - mean_a) * (log(P[row][t]) - mean_logp)


def test_kl_cov():
    """PRIME-RL/Entropy-Mechanism-of-RL 8850579, verl/trainer/ppo/core_algos.py:435-463; 20 % in place of 0.2 %."""
    method = released("kl_cov", frac=0.2)
    chosen = sorted(TOKENS, key=lambda at: -covariance(*at))[: max(1, int(len(TOKENS) * 20 / 100))]
    slopes = [
        -A[i] * ratio(i, t) + ((i, t) in chosen) * math.copysign(1, P[i][t] - OLD[i][t]) * (P[i][t] != OLD[i][t])
        for i, t in TOKENS
    ]
    assert_gradients(method, slopes)


def test_clip_cov():
    """The same file:487-520, on the tokens that PPO's range of 1 leaves a gradient; all candidates fit the quota."""
    method = released("clip_cov", ratio=1.0, lb=0.5, ub=2.0)
    kept = [at for at in TOKENS if not 0.5 < covariance(*at) < 2.0]
    slopes = [(at in kept) * ppo(ratio(*at), A[at[0]], 1.0, 1.0, math.inf) for at in TOKENS]
    assert_gradients(method, slopes)
    assert 0 < len(kept) < len(TOKENS)


@pytest.mark.parametrize("name", ["w_reinforce", "nsr", "psr"])
def test_w_reinforce(name):
    """TianHongZXY/RLVR-Decomposed a5d4e7c, core_algos.py:140-150 and 345-362, dp_actor.py:302, ray_trainer.py:1192."""
    method, correct = released(name), [True, False, False, True]
    advantage = {"w_reinforce": (0.1, -1.0), "nsr": (0.0, -1.0), "psr": (1.0, 0.0)}[name]
    expected = [advantage[0] if right else advantage[1] for right in correct]
    found = method.advantages(torch.tensor([1.0, 0.0, 0.0, 1.0]), torch.zeros(4, dtype=torch.long))
    assert found.tolist() == pytest.approx(expected)
    inside = [expected[i] != 0 for i, _ in TOKENS]  # the others are left out of the average
    slopes = [ppo(ratio(i, t), expected[i], 0.2, 0.2, math.inf) / sum(inside) for i, t in TOKENS]
    gradients = ours(method, expected)
    assert gradients["grad"] == pytest.approx(slopes, rel=2e-5, abs=1e-8)
    bonus = [-0.001 * one / sum(inside) for one in inside]
    assert gradients["by_entropy"] == pytest.approx(bonus, rel=1e-5, abs=1e-10)


@pytest.mark.parametrize("correct", [1, 3, 9, 13, 16])
def test_pass_at_k_training(correct):
    """RUCAIBox/Passk_Training c3ba575, code/passk_adv.py:11-20."""
    n, k = 16, 4
    rho = 1 - comb(n - correct, k) / comb(n, k)
    sigma = math.sqrt(rho * (1 - rho)) + 1e-6
    other = comb(n - correct - 1, k - 1) / comb(n - 1, k - 1) if correct < n else 0.0
    rewards = torch.tensor([1.0] * correct + [0.0] * (n - correct))
    found = load_method("pass_at_k", k=k).advantages(rewards, torch.zeros(n, dtype=torch.long)).tolist()
    assert found[0] == pytest.approx((1 - rho) / sigma, rel=1e-5, abs=1e-9)
    if correct < n:
        assert found[-1] == pytest.approx((1 - rho - other) / sigma, rel=1e-5, abs=1e-9)


def test_rewarding_the_unlikely():
    """AndreHe02/rewarding-unlikely-release ca1cff0, verl/trainer/ppo/ray_lean_trainer.py:653-680, rank_penalty 0.25."""
    logp, rewards = [-0.3, -0.9, -0.1, -0.5], [1.0, 1.0, 0.0, 1.0]
    shaped = [reward * (1 - 0.25 * sorted(logp).index(one) / 4) for reward, one in zip(rewards, logp, strict=True)]
    mean = sum(shaped) / 4
    std = math.sqrt(sum((one - mean) ** 2 for one in shaped) / 3)
    method, groups = load_method("unlikeliness", beta=0.25), torch.zeros(4, dtype=torch.long)
    found = method.advantages(method.shape_rewards(torch.tensor(rewards), groups, torch.tensor(logp)), groups)
    assert found.tolist() == pytest.approx([(one - mean) / (std + 1e-6) for one in shaped], rel=1e-5)


def test_the_controller_of_skywork():
    """SkyworkAI/Skywork-OR1 64e96af, verl/trainer/ppo/core_algos.py:56-74, values of or1_scripts/train/7b_8k.sh."""
    method, value, enabled = released("adaptive_entropy"), 0.0, 1
    for entropy in [0.3, *[0.15] * 60, 0.2, 0.25, 0.1]:
        stats, ones = stats_of(torch.full((1, 1), -entropy)), torch.ones(1, 1)
        row = method.metrics(stats, ones, ones, ones)
        assert row["entropy_coefficient"] == pytest.approx(value * enabled, abs=1e-12)
        assert row["sampled_entropy"] == pytest.approx(entropy)
        method.observe({"sampled_entropy": entropy})
        value = min(max(value + (1e-4 if entropy < 0.2 else -1e-4), 0.0), 0.005)
        enabled = int(entropy < 0.2)
    assert value == pytest.approx(0.0049)


def dropout(rewards, logp, restore_negative) -> tuple[list[int], list[float]]:
    """The rollouts of a group that stay, and their advantages."""

    def normalized(values):
        mean = sum(values) / len(values)
        std = math.sqrt(sum((one - mean) ** 2 for one in values) / (len(values) - 1)) if len(values) > 1 else 1.0
        return [(one - (mean if len(values) > 1 else 0.0)) / (std + 1e-6) for one in values]

    before, mean = normalized(rewards), sum(logp) / len(logp)
    push = [a * (mean - one) for a, one in zip(before, logp, strict=True)]
    raising = [i for i, h in enumerate(push) if h > 0]
    lowering = sorted((i for i, h in enumerate(push) if h < 0), key=lambda i: -push[i])
    if raising:
        stay, total = list(raising), sum(push[i] for i in raising)
        for i in lowering:
            if total + push[i] <= 1e-12:
                break
            stay.append(i)
            total += push[i]
    else:
        stay = lowering[: len(push) // 4]
    stay = sorted(stay + [i for i in lowering if restore_negative and before[i] < 0 and i not in stay])
    again = normalized([rewards[i] for i in stay])
    weights = [exp(logp[i]) / sum(exp(logp[j]) for j in stay) for i in stay]
    center = sum(w * a for w, a in zip(weights, again, strict=True))
    return stay, [a - center for a in again]


@pytest.mark.parametrize("restore_negative", [True, False])
def test_grpo_dropout(restore_negative):
    """hexuandeng/GRPODropout 4ad3b3b, verl/examples/grpo_dropout/selector_methods.py: select_balanced_push_zero and
    ..._add_negpush_negadv; verl/verl/trainer/ppo/ray_trainer.py: _apply_adv_p_center_after_select.
    """
    rewards = [
        [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0],  # both signs of h
        [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],  # only h < 0: correct answers are the likely ones
        [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],  # only h > 0
        [1.0] * 8,
    ]
    likely, unlikely = [-0.1, -0.2] + [-1.3 - 0.05 * i for i in range(6)], [-1.3, -1.4] + [-0.1 * i for i in range(6)]
    mixed = [-0.2, -0.9, -0.7, -0.6, -0.25, -1.1, -0.3, -0.4]
    logp = [mixed, likely, unlikely, mixed]
    # The groups are interleaved.
    order, groups = torch.arange(32).view(4, 8).T.flatten(), torch.arange(4).repeat(8)
    method = load_method("grpo_dropout", restore_negative=restore_negative)
    flat, mean_logp = (torch.tensor(values).flatten()[order] for values in (rewards, logp))
    found = method.advantages(method.shape_rewards(flat, groups, mean_logp), groups)
    weights = method.token_weights(TokenStats(*torch.zeros(4, 32, 2)), found[:, None].expand(32, 2), torch.ones(32, 2))
    sizes = []
    for group in range(3):
        stay, expected = dropout(rewards[group], logp[group], restore_negative)
        assert weights[groups == group, 0].nonzero().squeeze(-1).tolist() == stay
        own = found[groups == group]
        assert own[stay].tolist() == pytest.approx(expected, rel=1e-5, abs=1e-6)
        assert own.count_nonzero() in (0, len(stay))  # those dropped have none
        sizes.append(len(stay))
    assert sizes == ([6, 6, 8] if restore_negative else [5, 2, 8])
    assert not found[groups == 3].any()  # equal rewards
    assert weights[groups == 3, 0].sum() == 2  # the code draws these two at random
