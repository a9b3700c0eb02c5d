"""The S*-lens of a batch: in which direction its tokens push the entropy, and which tokens each method would drop."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from omegaconf import OmegaConf
from torch import Tensor

from entropy_dynamics.analysis.columns import PARTS
from entropy_dynamics.config import config_file, split_method
from entropy_dynamics.core.metrics import entropy_metrics, lens_metrics
from entropy_dynamics.core.objective import effective_advantages, weighted_sum
from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.diagnostics.logs import NATS_ROUNDING, column, read_table
from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import load_method, method_types

LOGP = ("logp", "logprob", "log_prob", "old_log_probs")
ENTROPY, ADVANTAGE = ("entropy", "entropys"), ("advantage", "advantages")
EXPECTED, LOGITS, TOKEN = ("s_expected", "necs"), ("logits",), ("token", "token_id")
MASK = ("response_mask", "loss_mask", "loss_masks", "completion_mask", "action_mask", "mask", "attention_mask")
LISTS = list | np.ndarray
METHODS = ("grpo", "clip_b", "clip_b_paper", "clip_v", "clip_v_paper", "clip_cov", "forking_tokens")


def lens_table(file: Path, methods: Sequence[str] = METHODS, temperature: float = 1.0) -> tuple[pd.DataFrame, str]:
    """The effect of each method on the tokens of a file, which is taken as one batch, and a line about the batch.

    The file has one row per token, or per response with lists, of log p and entropy (nats) or of `logits` and `token`;
    and the advantage. Tokens whose mask (the first of `MASK` in the file) is 0, such as padding, are left out.

    The table has one row per method: the share of tokens that it drops, among all and among those with A < 0; the
    predicted entropy change per unit of a plain gradient step (Corollary 4); and the share of GRPO's push on the
    entropy that it keeps in each quadrant of sign(A) and sign(S*) (see `lens_metrics`). All NaN for a method with its
    own rewards, advantages or averages, which depend on rollouts.

    Raises UserError for an unreadable file, a missing column, a non-finite value, an empty mask, or an unknown method.
    """
    frame = _per_token(read_table(file), file)

    def tensor(names: Sequence[str], what: str) -> Tensor:  # [token, 1], logits [token, 1, vocabulary]
        values = column(frame, file, None, names, what)
        try:
            stacked = np.stack(values.to_numpy()).astype(np.float32)
            if stacked.ndim != 1 + (names is LOGITS):
                raise ValueError(f"got {values.iloc[0]!r:.60}")
        except (TypeError, ValueError) as error:
            wanted = "a list of numbers, of one length for all tokens" if names is LOGITS else "a number"
            raise UserError(f"{file}: each token's {values.name} should be {wanted}: {error}") from error
        return torch.from_numpy(stacked).unsqueeze(1)

    advantages = tensor(ADVANTAGE, "the advantage")
    if any(name in frame for name in LOGITS):
        logits, tokens = tensor(LOGITS, "logits"), tensor(TOKEN, "the sampled token")
        wrong = tokens[(tokens < 0) | (tokens >= logits.shape[-1]) | (tokens != tokens.floor())]
        if len(wrong):
            ids = f"an id from 0 to {logits.shape[-1] - 1}"
            raise UserError(f"{file}: a sampled token is {wrong[0].item():g}; it should be {ids}, as the logits")
        stats, centered = token_stats(logits, tokens.long(), temperature=temperature), True
    else:
        if temperature != 1:
            raise UserError(f"{file} has log p, not logits: --temperature cannot change it")
        logp, entropy = tensor(LOGP, "log p"), tensor(ENTROPY, "the entropy")
        if (logp > NATS_ROUNDING).any():
            raise UserError(f"{file}: a log p is {logp.max().item():.4g}; it should be 0 or less, in nats")
        if (entropy < -NATS_ROUNDING).any():
            raise UserError(f"{file}: an entropy is {entropy.min().item():.4g}; it should be 0 or more, in nats")
        centered = any(name in frame for name in EXPECTED)
        expected = tensor(EXPECTED, "E[S]") if centered else torch.zeros_like(logp)
        stats = TokenStats.from_logged(logp, entropy, expected)
    if not all(values.isfinite().all() for values in (advantages, stats.logp, stats.entropy, stats.s_expected)):
        raise UserError(f"{file}: a log p, entropy or advantage is not finite")
    zero = int(((stats.logp == 0) & (stats.entropy == 0)).sum())

    rows = [_row(entry, stats, advantages, centered) for entry in methods]
    about = f"{len(advantages)} tokens, entropy {stats.entropy.mean():.4g} nats, mean S* {stats.s_star.mean():.4g}"
    if zero:
        about += f"; {zero} have log p and entropy 0: if they are padding, add a column {MASK[0]}"
    if not centered:
        about += "; E[S] is not in the file: S* stands for S* - E[S]"
    if any("dropped" not in row for row in rows):
        about += f"; a method without numbers needs {'' if centered else 'E[S], '}whole rollouts or whole distributions"
    return pd.DataFrame(rows), about


def draw(table: pd.DataFrame, path: Path) -> None:
    """The share of GRPO's push on the entropy that each method keeps, as a matrix."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from entropy_dynamics.figures.lens import draw_shares
    from entropy_dynamics.figures.style import STYLE, WIDTH, pretty, save

    with rc_context(fname=STYLE):
        figure = Figure(figsize=(WIDTH, 0.7 + 0.16 * len(table)), layout="constrained")
        ax = figure.subplots()
        quadrants = [part.removeprefix("lens_") for part in PARTS]
        draw_shares(ax, table.reindex(columns=quadrants).to_numpy(float))
        ax.set_yticks(range(len(table)), [pretty(entry) for entry in table["method"]], fontsize=6)
        save(figure, "The S* lens of one batch", path)


def _row(entry: str, stats: TokenStats, advantages: Tensor, centered: bool) -> dict[str, object]:
    """The table row of a method; tensors are [token, 1]. No numbers if it needs whole rollouts or an unknown E[S]."""
    name, params = split_method(entry)
    if name not in method_types(name) and (file := config_file("method", name)):
        raise UserError(
            f"the lens cannot show {name!r}: {file} only sets how another method is trained; name "
            "that one, with parameters as in clip_b@mu=1.2"
        )
    method = load_method(name, **OmegaConf.to_container(OmegaConf.from_dotlist(params)))  # as the configs read them
    of_groups = method.overrides("shape_rewards", "advantages", "divisors") or method.loss_scope != "global_token"
    if of_groups or method.second_pass() or (method.uses_s_expected and not centered):
        return {"method": entry}
    mask = torch.ones_like(advantages, dtype=torch.bool)
    weights = method.checked_weights(stats, advantages, mask, generator=torch.Generator().manual_seed(0))
    coefficients = method.loss_coefficients(stats, advantages, mask)
    multipliers = weights / method.divisors(weights, mask, torch.zeros(len(mask), dtype=torch.long))

    def loss_of(logp: Tensor, entropy: Tensor) -> Tensor:
        loss = method.token_loss(logp, stats.logp, advantages, mask, entropy=entropy, coefficients=coefficients)
        return weighted_sum(loss, multipliers)

    effective = effective_advantages(loss_of, stats.logp, stats.entropy) * len(mask)
    metrics = entropy_metrics(stats, advantages, weights, mask, 1.0)
    pushes = lens_metrics(stats, advantages[:, 0], effective, mask)
    kept = {part: pushes[f"{part}_kept"] / pushes[part] if pushes[part] else np.nan for part in PARTS}
    return {
        "method": entry,
        "dropped": metrics["clip_fraction"],
        "dropped_negative": metrics["clip_fraction_neg"],
        "predicted_change": metrics["predicted_entropy_change"],
        **{part.removeprefix("lens_"): share for part, share in kept.items()},
    }


def _per_token(frame: pd.DataFrame, file: Path) -> pd.DataFrame:
    """The tokens in the mask, if there is one; a table with one row per response, with lists, gets one per token."""
    masks = [name for name in MASK if name in frame][:1]
    unknown = [name for name in map(str, frame.columns) if "mask" in name.lower()]
    if unknown and not masks:
        remedy = f"If so, rename it to {MASK[0]}, else remove it"
        raise UserError(f"{file}: is {unknown[0]} 1 at the tokens that count? {remedy}")
    tokens = _exploded(frame, file, masks)
    for name in masks:
        if not tokens[name].isin([0, 1]).all():
            raise UserError(f"{file}: each token's {name} should be 0 or 1")
        if (tokens := tokens[tokens[name] == 1]).empty:
            raise UserError(f"{file}: {name} is 0 at every token")
    return tokens


def _exploded(frame: pd.DataFrame, file: Path, masks: list[str]) -> pd.DataFrame:
    measured = column(frame, file, None, (*LOGITS, *LOGP), "logits or log p")
    frame = frame[~measured.map(lambda cell: isinstance(cell, LISTS) and len(cell) == 0)]  # of empty responses
    if frame.empty:
        raise UserError(f"{file}: {measured.name} is an empty list in every row")
    first = frame[measured.name].iloc[0]
    if not isinstance(first[0] if measured.name in LOGITS and isinstance(first, LISTS) else first, LISTS):
        return frame
    used = {*LOGP, *ENTROPY, *ADVANTAGE, *EXPECTED, *LOGITS, *TOKEN, *masks} & set(frame.columns)
    lists = [name for name in sorted(used) if isinstance(frame[name].iloc[0], LISTS)]
    try:
        return frame.explode(lists, ignore_index=True)
    except ValueError as error:
        raise UserError(f"{file}: the lists of a row have different lengths") from error
