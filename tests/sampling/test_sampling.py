"""The native engine against decoding without a cache, its independence of batches, and the registry."""

import sys
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Literal

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from command_line import error
from entropy_dynamics import sampling
from entropy_dynamics.config import load_config
from entropy_dynamics.config.schema import engines
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.sampling import Prompt, Rollout, Sampler, open_sampler, sample_seed
from entropy_dynamics.sampling.native import NativeSampler, ReplicaSampler, _draw, _noise, open_engine
from entropy_dynamics.sampling.vllm import VLLMSampler
from fake_vllm import FakeLLM
from published_models import SIZES
from reference import log_probabilities, sample, slow_stats

NEW_TOKENS = 30  # those of `sample`
NOISE = 0.5


@pytest.fixture
def sampler_of(tokenizer):
    def make(model, batch_size=64, kind=NativeSampler, **options):
        return kind(model, end_tokens=[tokenizer.eos_token_id], batch_size=batch_size, **options)

    return make


@torch.no_grad()
def decoded_slowly(model, prompts, samples, temperature, stream, end_token):
    """One sequence at a time, all of it through the model for every token."""
    rollouts = []
    for prompt in prompts:
        for number in range(samples):
            generator = np.random.Generator(np.random.Philox(key=sample_seed(stream, prompt.problem_id, number)))
            tokens = []
            for uniform in generator.random(NEW_TOKENS):
                logits = model(torch.tensor([[*prompt.token_ids, *tokens]])).logits[0, -1].double()
                cumulative = (logits / temperature).softmax(-1).cumsum(-1)
                tokens.append(int((cumulative <= uniform).sum()))  # the first whose cumulative probability is above
                if tokens[-1] == end_token:
                    break
            rollouts.append((prompt.problem_id, number, tokens, "stop" if tokens[-1] == end_token else "length"))
    return rollouts


def plain(rollouts):
    return [(one.problem_id, one.sample, one.token_ids, one.finish_reason) for one in rollouts]


@pytest.fixture
def fed(monkeypatch):
    """The tokens of each pass through the model: the prefills, and every step of decoding."""
    passes, original = [], NativeSampler._forward
    monkeypatch.setattr(
        NativeSampler, "_forward", lambda self, ids, *rest: passes.append(ids) or original(self, ids, *rest)
    )
    return passes


@pytest.mark.parametrize(
    ("shape", "temperature"), [(("qwen2", 2, 1, 1), 1.0), (("qwen3", 1, 2, 1), 0.7), (("llama", 1, 2, 2), 1.0)]
)
def test_the_same_tokens_as_decoding_without_a_cache(
    make_model, sampler_of, prompts, tokenizer, fed, shape, temperature
):
    architecture, layers, heads, kv_heads = shape
    model = make_model(architecture, layers=layers, heads=heads, kv_heads=kv_heads, seed=6)
    got = sample(sampler_of(model), prompts[:6], temperature=temperature)
    assert plain(got) == decoded_slowly(model, prompts[:6], 4, temperature, "test", tokenizer.eos_token_id)
    assert {one.finish_reason for one in got} == {"stop", "length"}
    prefixes = {(one.problem_id, *one.token_ids[:end]) for one in got for end in range(len(one.token_ids))}
    assert sum(map(len, fed)) == len(prefixes), "a prefix went through the model twice, or a finished one did"


@pytest.mark.parametrize(("attention", "window"), [("sdpa", 5), ("eager", None)])
def test_prompts_of_many_lengths_under_each_attention(sampler_of, prompts, tokenizer, window, attention):
    """One mask serves all steps of full attention; a sliding window, shorter than any prompt here, moves."""
    config = Qwen2Config(
        **SIZES | {"vocab_size": len(tokenizer)},
        use_sliding_window=window is not None,
        sliding_window=window,
        max_window_layers=1,  # the second layer has the window
        initializer_range=0.3,
        attn_implementation=attention,
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = Qwen2ForCausalLM(config).eval()
    assert ("sliding_attention" in config.layer_types) == (window is not None)
    assert len({len(prompt.token_ids) for prompt in prompts[:6]}) > 2
    got = sample(sampler_of(model), prompts[:6])
    assert plain(got) == decoded_slowly(model, prompts[:6], 4, 1.0, "test", tokenizer.eos_token_id)
    assert max(len(one.token_ids) for one in got) > 10


def test_tokens_that_begin_all_prompts_run_once(make_model, sampler_of, prompts, tokenizer, fed):
    system = [7 + place % 5 for place in range(20)]
    longer = [Prompt(prompt.problem_id, [*system, *prompt.token_ids]) for prompt in prompts[:6]]
    model = make_model(layers=2, seed=6)
    got = sample(sampler_of(model), longer)
    assert fed[0].shape[0] == 1
    assert fed[0][0, : len(system)].tolist() == system
    assert fed[1].shape[1] == max(len(prompt.token_ids) for prompt in longer) - fed[0].shape[1]
    assert plain(got) == decoded_slowly(model, longer, 4, 1.0, "test", tokenizer.eos_token_id)


def test_large_vocabularies_are_searched_in_parts():
    generator = torch.Generator().manual_seed(0)
    for vocabulary in (50, 128, 1000, 4096):
        logits = 3 * torch.randn(4, vocabulary, generator=generator)
        logits[:, vocabulary // 2 :: 3] = -torch.inf
        row = torch.randint(4, (2000,), generator=generator)
        uniforms = torch.rand(2000, dtype=torch.float64, generator=generator)
        cumulative = logits.double().softmax(-1).cumsum(-1)[row]
        expected = (cumulative <= uniforms[:, None]).sum(-1)
        got = _draw(logits, 1.0, uniforms, row)
        assert (got != expected).sum() <= 2  # of probabilities rounded to fp32
        assert logits[row, got].isfinite().all()


@pytest.mark.parametrize("temperature", [0, 1e-5])
def test_a_temperature_of_zero_or_near_it_is_greedy(shared_model, sampler_of, prompts, tokenizer, temperature):
    """transformers' own generate, one prompt at a time."""
    got = sample(sampler_of(shared_model), prompts[:4], samples=1, temperature=temperature)
    for prompt, rollout in zip(prompts, got, strict=False):
        expected = shared_model.generate(
            torch.tensor([prompt.token_ids]),
            attention_mask=torch.ones(1, len(prompt.token_ids), dtype=torch.long),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )[0, len(prompt.token_ids) :].tolist()
        assert rollout.token_ids == expected


def test_batches_and_neighbors_change_nothing(shared_model, sampler_of, prompts):
    prompts = prompts[:6]
    expected = {(one.problem_id, one.sample): one for one in sample(sampler_of(shared_model), prompts, samples=5)}
    assert len({tuple(one.token_ids) for one in expected.values()}) > 15
    for batch_size in (1, 3, 7, 1000):
        got = sample(sampler_of(shared_model, batch_size), prompts, samples=5)
        assert [(one.problem_id, one.sample) for one in got] == [(p.problem_id, n) for p in prompts for n in range(5)]
        assert got == list(expected.values())
    backwards = sample(sampler_of(shared_model), prompts[::-1], samples=5)
    assert backwards[0].problem_id == prompts[-1].problem_id
    assert all(one == expected[one.problem_id, one.sample] for one in backwards)
    alone = sample(sampler_of(shared_model), prompts[3:4], samples=5)
    assert alone == [expected[prompts[3].problem_id, number] for number in range(5)]
    more = sample(sampler_of(shared_model), prompts[3:5], samples=9)
    assert more[:5] == alone


def test_random_numbers_belong_to_stream_problem_and_sample(shared_model, sampler_of, prompts):
    sampler = sampler_of(shared_model)
    first = sample(sampler, prompts[:3], stream="train/seed0/step0")
    assert sample(sampler, prompts[:3], stream="train/seed0/step0") == first
    other = sample(sampler, prompts[:3], stream="train/seed0/step1")
    assert sum(a.token_ids == b.token_ids for a, b in zip(first, other, strict=True)) <= 1
    twin = sample(sampler, [Prompt("another id", prompts[0].token_ids)], stream="train/seed0/step0")
    assert [one.token_ids for one in twin] != [one.token_ids for one in first[:4]]
    names = [
        (stream, problem, number) for stream in ("a", "a1") for problem in ("p", "1p", "p1") for number in (0, 1, 11)
    ]
    seeds = {sample_seed(*name) for name in names}
    assert len(seeds) == len(names)
    assert all(0 <= seed < 2**128 for seed in seeds)


@pytest.mark.parametrize("temperature", [0.7, 0.0])
def test_a_replica_returns_log_p_of_its_tokens(make_model, prompts, tokenizer, temperature):
    policy, copy = make_model(seed=7), make_model()
    sampler = ReplicaSampler(copy, end_tokens=[tokenizer.eos_token_id], batch_size=64)
    sampler.push((name, weight.detach()) for name, weight in policy.named_parameters())
    rollouts = sample(sampler, prompts, samples=3, temperature=temperature)
    with torch.no_grad():
        expected = list(slow_stats(policy, prompts, rollouts, temperature or 1.0))
    for one, stats in zip(rollouts, expected, strict=True):
        assert one.logp == pytest.approx(stats["logp"].tolist(), abs=1e-5)


def test_logit_noise_has_its_standard_deviation_in_any_batch(make_model, sampler_of, prompts):
    model = make_model(seed=7)
    noisy = {size: sampler_of(model, size, ReplicaSampler, logit_noise=NOISE) for size in (4, 64)}
    rollouts = sample(noisy[64], prompts, samples=8)
    assert plain(rollouts) == plain(sample(noisy[4], prompts, samples=8))
    assert plain(rollouts) != plain(sample(sampler_of(model), prompts, samples=8))
    noise = _noise(torch.rand(4000, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), 50)
    assert noise.mean().abs() < 0.01
    assert noise.std().item() == pytest.approx(1, abs=0.01)
    off, variances = [], []
    with torch.no_grad():
        without_noise = list(log_probabilities(model, prompts, rollouts))
    for one, logp in zip(rollouts, without_noise, strict=True):
        own = logp.gather(-1, torch.tensor(one.token_ids)[:, None]).squeeze(-1)
        off += (torch.tensor(one.logp) - own).tolist()
        variances += (1 - 2 * own.exp() + logp.exp().square().sum(-1)).tolist()  # of n_k - sum_i p_i n_i
    assert np.std(off) == pytest.approx(NOISE * np.mean(variances) ** 0.5, rel=0.1)


@pytest.mark.parametrize("limit", [1, 5])
def test_finish_reasons_and_the_limit(shared_model, sampler_of, prompts, tokenizer, limit):
    end = tokenizer.eos_token_id
    long = sample(sampler_of(shared_model), prompts, samples=8)
    short = sample(sampler_of(shared_model), prompts, samples=8, max_new_tokens=limit)
    for whole, cut in zip(long, short, strict=True):
        assert cut.token_ids == whole.token_ids[:limit]
        assert end not in cut.token_ids[:-1]
        stopped = cut.token_ids[-1] == end
        assert cut.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(cut.token_ids) == limit
    if limit > 1:
        assert {one.finish_reason for one in short} == {"stop", "length"}


# ---------------------------------------------------------------- the registry of engines
def test_an_unknown_engine_is_an_error_before_any_model_is_loaded(tmp_path, capsys):
    run = ["--model", "qwen2.5-7b-instruct", "--method", "grpo", "--seed", "0", "--scale", "smoke"]
    said = error(capsys, "train", *run, "--results", tmp_path, "--set", "engine.name=vlm")
    assert said == "--set engine.name=vlm: engine: unknown name 'vlm'; did you mean 'vllm'?"


def test_a_new_engine_is_its_settings_and_its_sampler(tmp_path, monkeypatch, prompts, tokenizer):
    """An entry of ENGINES, and sampling/parrot.py in another folder of the package."""

    class Settings(engines.Engine):
        name: Literal["parrot"]
        words: int = 3

    monkeypatch.setitem(engines.ENGINES, "parrot", Settings)
    (tmp_path / "parrot.py").touch()
    monkeypatch.setattr(sampling, "__path__", [*sampling.__path__, str(tmp_path)])

    class Parrot(Sampler):
        """Repeats the prompt."""

        def sample(self, prompts, *, samples, **_):
            return [Rollout(one.problem_id, k, list(one.token_ids), "stop") for one in prompts for k in range(samples)]

        def close(self):
            closed.append(self)

    closed = []
    module = import_module("entropy_dynamics.sampling.parrot")
    monkeypatch.setattr(module, "open_engine", lambda *_, **__: Parrot(), raising=False)
    overrides = ["engine.name=parrot", "engine.words=4"]
    config = load_config("smoke", "qwen2.5-7b-instruct", overrides=overrides)
    assert config.engine.words == 4
    with open_sampler(config, tmp_path, tokenizer, Ranks()) as sampler:
        assert [one.token_ids for one in sample(sampler, prompts[:2], samples=1)] == [p.token_ids for p in prompts[:2]]
    assert closed


@pytest.mark.parametrize("size", [1, 2])
def test_rollouts_have_log_p_where_it_is_asked_for(model, tokenizer, tmp_path, size):
    """The engine itself returns it, not what the ranks share."""

    class Alone(Ranks):
        def barrier(self):
            pass

    save_policy(model, tokenizer, tmp_path)
    config = load_config("smoke", "qwen2.5-7b-instruct")
    for with_logp in (False, True):
        with open_sampler(config, tmp_path, tokenizer, Alone(size=size), with_logp=with_logp) as sampler:
            assert getattr(sampler, "engine", sampler).returns_logp == with_logp


def test_a_replica_in_bfloat16_has_the_rounded_weights_and_exact_rotary_frequencies(model, tokenizer, tmp_path):
    save_policy(model, tokenizer, tmp_path)
    overrides = ["engine.dtype=bfloat16", "hardware.ranks=1"]
    config = load_config("smoke", "qwen2.5-7b-instruct", overrides=overrides)
    replica = open_engine(config, tmp_path, tokenizer, ranks=Ranks(), model=None, with_training=True).model
    exact = dict(model.named_parameters())
    assert all(torch.equal(own, exact.pop(name).bfloat16()) for name, own in replica.named_parameters())
    assert not exact
    assert torch.equal(replica.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)  # fp32, as the trainer's


# ---------------------------------------------------------------- the adapter of vLLM
@pytest.fixture
def start(shared_model, tokenizer, tmp_path, monkeypatch):
    """`start()`: a sampler on a fake vLLM."""
    save_policy(shared_model, tokenizer, tmp_path)

    def make():
        vllm = ModuleType("vllm")
        vllm.LLM, vllm.SamplingParams = FakeLLM, SimpleNamespace
        monkeypatch.setitem(sys.modules, "vllm", vllm)
        return VLLMSampler(tmp_path, config=load_config("rehearsal").engine, end_tokens=[1], max_tokens=9, batch_size=1)

    return make


def test_after_a_sleep_nothing_is_sampled_before_a_push(start):
    """A sleep drops the weights and the cache; the cache is back only after the weights have arrived."""
    sampler = start()
    sampler.sleeps = True  # as on a GPU
    engine, how = sampler._llm, {"samples": 1, "temperature": 1.0, "max_new_tokens": 2, "stream": "test"}
    sampler.sleep()
    sampler.sleep()
    with pytest.raises(RuntimeError, match="after a sleep without a push"):
        sampler.sample([Prompt("p", [3])], **how)
    assert engine.calls == [("sleep", 2)]
    sampler.push([("model.embed_tokens.weight", torch.zeros(2, 2))])
    (rollout,) = sampler.sample([Prompt("p", [3])], **how)
    assert (rollout.token_ids, rollout.logp) == ([1], [-0.5])
    assert engine.calls[1:] == [
        ("wake_up", "weights"),
        ("reload_weights", "model.embed_tokens.weight", "lm_head.weight"),
        ("reset_prefix_cache",),
        ("wake_up", "kv_cache"),
        ("generate", 1),
    ]
