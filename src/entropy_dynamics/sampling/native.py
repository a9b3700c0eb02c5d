"""The native engine: a plain decoding loop around a transformers model.

It is fast on a CPU because samples of a prompt share a row of the batch until their tokens differ (so each prompt is
prefilled once, and a system message once for all prompts), cache and mask are allocated once rather than for every
token, and finished sequences leave the batch.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache, partial
from itertools import takewhile
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import DynamicLayer

from entropy_dynamics.config.schema import StageConfig
from entropy_dynamics.config.schema.engines import CACHE_SHARE
from entropy_dynamics.distributed.devices import memory_bytes
from entropy_dynamics.distributed.precision import PRECISIONS, autocast, precision_on
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.models.storage import load_model
from entropy_dynamics.models.tree import sees_whole_prefix  # the module registers the attention that decoding uses
from entropy_dynamics.sampling import Prompt, Rollout, Sampler, end_tokens, sample_seed

Tokens, Attention = Int[Tensor, "row token"], Shaped[Tensor, "row ..."]
Logits = Float[Tensor, "row vocabulary"]
Places, Uniforms = Int[Tensor, " sample"], Float[Tensor, " sample"]
# Tokens with which all prompts of a batch begin, such as a system message, run once if they are at least this many.
SHARED = 16
PART = 128  # probabilities are summed in parts of this size, and one part is searched: divides most vocabularies


def open_engine(
    config: StageConfig,
    directory: Path,
    tokenizer: PreTrainedTokenizerBase,
    *,
    ranks: Ranks,
    model: PreTrainedModel | None,
    with_training: bool,
) -> "NativeSampler":
    """See `open_sampler`."""
    hardware = config.hardware
    processes = hardware.runs_per_gpu if ranks.device.type == "cuda" else ranks.size // hardware.nodes
    kind = ReplicaSampler if with_training and model is None else NativeSampler
    sampler = kind(
        load_model(directory, config.engine.dtype).to(ranks.device) if model is None else model,
        end_tokens=end_tokens(directory, tokenizer),
        batch_size=config.sampling.batch_size,
        logit_noise=config.engine.logit_noise,
        cache_bytes=CACHE_SHARE * memory_bytes(ranks.device) / processes,
    )
    if model is not None:  # the policy itself
        sampler.precision = PRECISIONS[precision_on(ranks.device, config.training.precision)]
    return sampler


class PreallocatedLayer(DynamicLayer):
    """A DynamicLayer whose keys and values are views into buffers of maximum size."""

    def __init__(self, max_rows: int, max_length: int):
        super().__init__()
        self.max_rows, self.max_length = max_rows, max_length

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        rows, heads, _, size = key_states.shape
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.key_buffer = key_states.new_empty(self.max_rows, heads, self.max_length, size)
            self.value_buffer = torch.empty_like(self.key_buffer)
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        self.key_buffer[:rows, :, start:end] = key_states
        self.value_buffer[:rows, :, start:end] = value_states
        self._show(rows, end)
        return self.keys, self.values

    def _show(self, rows: int, length: int) -> None:
        self.keys, self.values = self.key_buffer[:rows, :, :length], self.value_buffer[:rows, :, :length]

    def select(self, rows: int, moved: Int[Tensor, " move"], sources: Int[Tensor, " move"]) -> None:
        """Keep `rows` rows, of which those in `moved` become copies of `sources`."""
        length = self.get_seq_length()
        if len(moved):
            for buffer in (self.key_buffer, self.value_buffer):
                buffer[moved, :, :length] = buffer[sources, :, :length]
        self._show(rows, length)


class PreallocatedCache(Cache):
    """A cache of `PreallocatedLayer`s."""

    def batch_select_indices(self, indices: Int[Tensor, " row"]) -> None:
        """Move row `indices[i]` to row i. Rows that stay in place cost nothing."""
        # Once for all layers: the host waits for the GPU here.
        moved = (indices != torch.arange(len(indices), device=indices.device)).nonzero().squeeze(-1)
        sources = indices[moved]
        for layer in self.layers:
            layer.select(len(indices), moved, sources)


@dataclass(eq=False)
class NativeSampler(Sampler):
    """Samples from `model`, always with its current weights."""

    returns_logp = False  # the model is the policy itself, so there is nothing to compare
    returns_top = True
    precision = torch.float32  # dtype of matrix products

    model: PreTrainedModel
    _: KW_ONLY
    end_tokens: Collection[int]
    """Each of them ends a response."""
    batch_size: int
    """Maximum number of sequences generated at a time; bounds memory, does not change results."""
    logit_noise: float = 0.0
    """Standard deviation of Gaussian noise added to the logits."""
    cache_bytes: float = math.inf
    """Maximum size of the KV cache, where it holds at least one sequence. It is allocated at full length, so it bounds
    the number of sequences generated at a time, too."""

    @torch.inference_mode()
    def sample(
        self,
        prompts: Sequence[Prompt],
        *,
        samples: int,
        temperature: float,
        max_new_tokens: int,
        stream: str,
        top: int = 0,
    ) -> list[Rollout]:
        length = max((len(prompt.token_ids) for prompt in prompts), default=0) + max_new_tokens
        rows = max(1, int(min(self.batch_size, self.cache_bytes / (length * self._token_bytes()))))
        cuts = range(0, samples, rows)  # the samples of one prompt may exceed a batch
        requests = [(prompt, range(samples)[cut : cut + rows]) for prompt in prompts for cut in cuts]
        per_batch = max(1, rows // samples)
        rollouts = []
        with autocast(self.model.device, self.precision):  # casts the weights once
            for start in range(0, len(requests), per_batch):
                part = requests[start : start + per_batch]
                rollouts += self._sample_batch(part, temperature, max_new_tokens, stream, top)
        return rollouts

    def _token_bytes(self) -> int:
        config = self.model.config
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * config.num_hidden_layers * config.num_key_value_heads * size * self.model.dtype.itemsize

    def _sample_batch(
        self, requests: Sequence[tuple[Prompt, range]], temperature: float, max_new_tokens: int, stream: str, top: int
    ) -> list[Rollout]:
        names = [(prompt.problem_id, sample) for prompt, samples in requests for sample in samples]
        device, vocabulary = self.model.device, self.model.config.vocab_size
        shared = _shared([prompt.token_ids for prompt, _ in requests])
        tokens = [torch.tensor(prompt.token_ids[shared:]) for prompt, _ in requests]
        left_padded = partial(pad_sequence, batch_first=True, padding_side="left")
        ids = left_padded(tokens).to(device)
        attention = left_padded([torch.ones_like(ids) for ids in tokens]).to(device)
        attention = torch.nn.functional.pad(attention, (shared, 0), value=1)
        width = attention.shape[1]
        layers = range(self.model.config.num_hidden_layers)
        cache = PreallocatedCache(layers=[PreallocatedLayer(len(names), width + max_new_tokens) for _ in layers])
        padded = not bool(attention.all())
        positions = (attention.cumsum(-1) - 1).clamp_min(0)
        if shared:
            first = torch.tensor([requests[0][0].token_ids[:shared]], device=device)
            self._forward(first, None, positions[:1, :shared], cache)
            cache.batch_select_indices(torch.zeros(len(requests), dtype=torch.long, device=device))
        logits = self._forward(ids, attention if padded else None, positions[:, shared:], cache)
        length = attention.sum(-1, keepdim=True)
        mask = self._decoding_mask(attention, max_new_tokens) if padded else None

        end_tokens = torch.tensor(list(self.end_tokens), device=device)
        seeds = [sample_seed(stream, *name) for name in names]
        uniforms = torch.from_numpy(_uniforms(seeds, max_new_tokens)).to(device)
        responses = torch.zeros(max_new_tokens, len(names), dtype=torch.long, device=device)
        logp = torch.zeros(responses.shape if self.returns_logp else 0, device=device)
        top_logp = torch.zeros(*responses.shape, top, device=device)
        top_tokens = torch.zeros_like(top_logp, dtype=torch.int32)
        unfinished = torch.arange(len(names), device=device)
        # The row of the model's batch that each unfinished sample continues.
        row = torch.arange(len(requests), device=device).repeat_interleave(len(names) // len(requests))
        for position in range(max_new_tokens):
            source = row
            if self.logit_noise:
                logits = logits[row] + self.logit_noise * _noise(uniforms[position, unfinished], logits.shape[-1])
                source = torch.arange(len(row), device=device)
            tokens = _draw(logits, temperature, uniforms[position, unfinished], source)
            responses[position, unfinished] = tokens
            if self.returns_logp or top:
                log_q = (logits.float() / (temperature or 1.0)).log_softmax(-1)
            if self.returns_logp:
                logp[position, unfinished] = log_q[source, tokens]
            if top:
                best = log_q.topk(top)
                top_logp[position, unfinished] = best.values[source]
                top_tokens[position, unfinished] = best.indices[source].int()
            going = (~torch.isin(tokens, end_tokens)).nonzero().squeeze(-1)
            unfinished, row, tokens = unfinished[going], row[going], tokens[going]
            if len(unfinished) == 0 or position + 1 == max_new_tokens:
                break
            branches, row = torch.unique(row * vocabulary + tokens, return_inverse=True)
            order = _branch_order(branches // vocabulary)
            row = order.argsort()[row]
            parents, tokens = branches[order] // vocabulary, branches[order] % vocabulary
            cache.batch_select_indices(parents)
            length, mask = length[parents], None if mask is None else mask[parents]
            seen = None if mask is None else mask[..., : width + position + 1]
            logits = self._forward(tokens[:, None], seen, length + position, cache)

        ends = torch.isin(responses, end_tokens)
        stopped = ends.any(0)
        sizes = torch.where(stopped, ends.int().argmax(0) + 1, max_new_tokens).tolist()  # argmax: the first end token
        reasons = ["stop" if stop else "length" for stop in stopped.tolist()]
        values = logp.T.tolist() if self.returns_logp else [None] * len(names)
        generated = zip(names, responses.T.tolist(), sizes, reasons, values, strict=True)
        rollouts = [Rollout(*name, ids[:size], reason, of and of[:size]) for name, ids, size, reason, of in generated]
        if not top:
            return rollouts
        ranked = zip(rollouts, top_tokens.unbind(1), top_logp.unbind(1), sizes, strict=True)
        return [replace(each, top=ids[:size].tolist(), top_logp=of[:size].tolist()) for each, ids, of, size in ranked]

    def _forward(self, ids: Tokens, attention: Attention | None, positions: Tokens, cache: Cache) -> Logits:
        """Logits after the last of `ids`."""
        inputs = {"input_ids": ids, "attention_mask": attention, "position_ids": positions}
        hidden = self.model.model(**inputs, past_key_values=cache, use_cache=True).last_hidden_state
        return self.model.lm_head(hidden[:, -1])

    def _decoding_mask(self, attention: Tokens, max_new_tokens: int) -> Attention:
        """One attention mask for all decoding steps, of which each step uses the leading columns.

        This is the mask that transformers would derive from `attention` at every step, if it depends on `attention`
        alone. Otherwise it is `attention` itself: a sliding window moves with the token, and attention implementations
        other than sdpa and eager do not take such a mask.
        """
        attention = torch.nn.functional.pad(attention, (0, max_new_tokens), value=1)
        config = self.model.config
        if config._attn_implementation not in ("sdpa", "eager") or not sees_whole_prefix(config):
            return attention
        mask = torch.zeros(attention.shape, dtype=self.model.dtype, device=attention.device)
        return mask.masked_fill_(attention == 0, torch.finfo(mask.dtype).min)[:, None, None]


class ReplicaSampler(NativeSampler):
    """Samples from an unsharded copy of a policy that is sharded over ranks; `push` updates the copy.

    The copy may differ in precision from the policy. At temperature 0, `logp` is computed at temperature 1.
    """

    returns_logp = True

    @torch.no_grad()
    def push(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        stale = dict(self.model.named_parameters())  # tied weights appear once, as in `weights`
        for name, tensor in weights:
            stale.pop(name).copy_(tensor)
        if stale:
            raise RuntimeError(f"new weights without {', '.join(stale)}: these are stale")


def _shared(prompts: Sequence[Sequence[int]]) -> int:
    """Number of first tokens that run once for all prompts. The last token of each prompt runs by itself."""
    if len(prompts) == 1:
        return 0
    count = sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, zip(*prompts, strict=False)))
    count = min(count, min(map(len, prompts)) - 1)
    return count if count >= SHARED else 0


def _branch_order(parents: Int[Tensor, " branch"]) -> Int[Tensor, " branch"]:
    """Order of branches that moves few cache rows: a row's first branch stays in that row, if the row still exists.

    `parents` is the row that each branch continues, ascending.
    """
    place = torch.arange(len(parents), device=parents.device)
    first = torch.searchsorted(parents, parents) == place
    stays = first & (parents < len(parents))
    order = torch.full_like(parents, -1)
    order[parents[stays]] = place[stays]
    order[order < 0] = place[~stays]
    return order


def _uniforms(seeds: Sequence[int], count: int) -> Float[np.ndarray, "count seed"]:
    """Uniforms in [0, 1): column i holds the first draws of `Generator(Philox(key=seeds[i]))`.

    A single generator is rekeyed, which is ten times as fast as creating one per seed.
    """
    philox = np.random.Philox(key=0)
    generator, state = np.random.Generator(philox), philox.state
    rows = np.empty((len(seeds), count))
    for row, seed in zip(rows, seeds, strict=True):
        state["state"]["key"][:] = seed % 2**64, seed >> 64
        philox.state = state
        generator.random(out=row)
    return rows.T.copy()


def _noise(uniforms: Float[Tensor, " row"], size: int) -> Float[Tensor, "row size"]:
    """Standard normal noise from a fixed table, at an offset given by the low bits of each row's uniform.

    It does not depend on the batch, and hardly on the token, which the high bits of the uniform determine.
    """
    table = _noise_table(uniforms.device)
    start = ((uniforms * 2**24) % 1 * len(table)).long()
    return table[(start[:, None] + torch.arange(size, device=uniforms.device)) % len(table)]


@cache
def _noise_table(device: torch.device) -> Float[Tensor, " size"]:
    return torch.randn(2**17, generator=torch.Generator().manual_seed(0)).to(device)


def _draw(logits: Logits, temperature: float, uniforms: Uniforms, row: Places) -> Places:
    """Tokens by inverse-CDF sampling from the logits in `row`; `uniforms` are in [0, 1)."""
    if temperature == 0:
        return logits.argmax(-1)[row]
    p = (logits.float() / temperature).softmax(-1)
    if p.shape[-1] % PART:
        p = torch.nn.functional.pad(p, (0, -p.shape[-1] % PART))
    parts = p.unflatten(-1, (-1, PART))
    part, rest = _search(parts.sum(-1)[row], uniforms)
    return part * PART + _search(parts[row, part], rest)[0]


def _search(weights: Float[Tensor, "sample place"], uniforms: Uniforms) -> tuple[Places, Uniforms]:
    """Places drawn in proportion to `weights`, and each uniform relative to its place: a uniform for the next draw."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    # Rounding may leave the last sum slightly off 1; scaling the uniform keeps the place inside.
    target = (uniforms * cumulative[:, -1]).unsqueeze(-1)
    place = torch.searchsorted(cumulative, target, right=True).clamp_max(weights.shape[-1] - 1)
    weight = weights.gather(-1, place)
    rest = (target - cumulative.gather(-1, place) + weight) / weight
    return place.squeeze(-1), rest.squeeze(-1).clamp(0, 1 - 2**-53)
