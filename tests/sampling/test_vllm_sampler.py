"""The vLLM engine against transformers and the native sampler: samples, log-probabilities, and new weights."""

import json
import os
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from entropy_dynamics.config.schema.engines import VLLM
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.sampling import Prompt
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.sampling.vllm import VLLMSampler
from entropy_dynamics.training.trainer import engine_agreement

MAX_TOKENS = 250
NEW_TOKENS = 60
TOLERANCE = 1e-4
# Generation defaults of a model directory, which must be ignored: few tokens, short responses.
DEFAULTS = {"do_sample": True, "temperature": 0.1, "top_k": 1, "top_p": 0.1, "repetition_penalty": 5.0}
DEFAULTS |= {"max_new_tokens": 2, "eos_token_id": list(range(40))}

pytestmark = pytest.mark.vllm


def engine_config(**changes):
    values = {"name": "vllm", "dtype": "float32", "eager": True, "kv_cache_gib": 0.1, "tolerance": TOLERANCE}
    return VLLM(**values | {"gpu_memory_utilization": 0.5} | changes)


@pytest.fixture(scope="module", autouse=True)
def _exact_attention():
    """IEEE fp32 for Triton's matrix products, so that one TOLERANCE holds on a CPU and on a GPU.

    On a GPU attention in fp32 runs in Triton, which defaults to TF32 with its mantissa of 10 bits: 5e-4 per operand.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_F32_DEFAULT", "ieee")
        yield


@pytest.fixture(scope="session")
def prompts(tokenizer):
    """Prompts of several lengths, two of them longer than a block of the KV cache, so that the prefix cache is used."""
    generator = torch.Generator().manual_seed(0)
    lengths = (5, 20, 33, 150, 160)
    return [
        Prompt(f"p{number}", torch.randint(len(tokenizer), (length,), generator=generator).tolist())
        for number, length in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def served(make_model, tokenizer, tmp_path_factory):
    """`served(architecture, tied)`: a model, a directory with it, and an engine that all tests share."""
    made = {}

    def serve(architecture="qwen2", tied=True):
        key = architecture, tied
        if key not in made:
            model = make_model(architecture, layers=2, heads=2, tied=tied)
            directory = tmp_path_factory.mktemp("model")
            save_policy(model, tokenizer, directory)
            (directory / "generation_config.json").write_text(json.dumps(DEFAULTS))
            engine = VLLMSampler(
                directory,
                config=engine_config(),
                end_tokens=[tokenizer.eos_token_id],
                max_tokens=MAX_TOKENS,
                batch_size=8,  # less than a call asks for, so that sequences wait
            )
            made[key] = SimpleNamespace(model=model, directory=directory, engine=engine)
        return made[key]

    yield serve
    for one in made.values():
        one.engine.close()


@pytest.fixture
def tied(served):
    """The model with tied embeddings; its engine holds its weights again afterwards."""
    yield (one := served())
    one.engine.push(one.model.named_parameters())


def sample(engine, prompts, samples=4, temperature=1.0, max_new_tokens=NEW_TOKENS, stream="test"):
    return engine.sample(
        prompts, samples=samples, temperature=temperature, max_new_tokens=max_new_tokens, stream=stream
    )


@torch.no_grad()
def forward_logp(model, prompts, rollouts, temperature=1.0):
    """log p of each response's tokens from one forward pass without a cache."""
    of = {prompt.problem_id: list(prompt.token_ids) for prompt in prompts}
    scores = []
    for one in rollouts:
        ids = torch.tensor([[*of[one.problem_id], *one.token_ids]])
        logp = (model(ids).logits[0, :-1] / temperature).log_softmax(-1).gather(-1, ids[0, 1:, None]).squeeze(-1)
        scores.append(logp[-len(one.token_ids) :].tolist())
    return scores


def disagreement(engine, model, prompts, tolerance=TOLERANCE, **how):
    """The check after a push, on new rollouts."""
    rollouts = sample(engine, prompts, samples=2, **how)
    engine = torch.tensor([logp for one in rollouts for logp in one.logp])
    trainer = torch.tensor([logp for one in forward_logp(model, prompts, rollouts) for logp in one])
    return engine_agreement(engine, trainer, tolerance)["engine_logp_difference"]


def largest_difference(scores, others):
    return max(abs(a - b) for one, other in zip(scores, others, strict=True) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("architecture", "tied"), [("qwen2", True), ("qwen2", False), ("qwen3", True), ("llama", False)]
)
def test_greedy_tokens_are_the_native_samplers(served, prompts, tokenizer, architecture, tied):
    one = served(architecture, tied)
    native = NativeSampler(one.model, end_tokens=[tokenizer.eos_token_id], batch_size=8)
    expected = sample(native, prompts, samples=1, temperature=0)
    rollouts = sample(one.engine, prompts, samples=1, temperature=0)
    assert [(r.problem_id, r.sample, r.token_ids, r.finish_reason) for r in rollouts] == [
        (r.problem_id, r.sample, r.token_ids, r.finish_reason) for r in expected
    ]


@pytest.mark.parametrize(
    ("architecture", "tied", "temperature"),
    [("qwen2", True, 1.0), ("qwen2", False, 0.7), ("qwen3", True, 0.7), ("llama", False, 1.0)],
)
def test_log_probabilities_are_those_of_the_sampling_temperature(served, prompts, architecture, tied, temperature):
    one = served(architecture, tied)
    rollouts = sample(one.engine, prompts, temperature=temperature)
    expected = forward_logp(one.model, prompts, rollouts, temperature)
    assert largest_difference([r.logp for r in rollouts], expected) < TOLERANCE


def test_tokens_are_drawn_from_the_whole_softmax(tied, prompts):
    """The directory's top-k, top-p and temperature would leave one token."""
    temperature = 0.5
    drawn = [one.token_ids[0] for one in sample(tied.engine, prompts[:1], 4000, temperature, max_new_tokens=1)]
    with torch.no_grad():
        expected = (tied.model(torch.tensor([prompts[0].token_ids])).logits[0, -1] / temperature).softmax(-1)
    shares = torch.bincount(torch.tensor(drawn), minlength=len(expected)) / len(drawn)
    assert (shares - expected).abs().sum() / 2 < 0.08  # the sampling error of 4000 draws is about 0.05


def test_only_the_end_token_and_the_length_end_a_response(tied, prompts, tokenizer):
    rollouts = sample(tied.engine, prompts, samples=16)
    assert {one.finish_reason for one in rollouts} == {"stop", "length"}
    for one in rollouts:
        assert tokenizer.eos_token_id not in one.token_ids[:-1]
        assert (one.token_ids[-1] == tokenizer.eos_token_id) == (one.finish_reason == "stop")
        assert one.finish_reason == "stop" or len(one.token_ids) == NEW_TOKENS


def test_random_numbers_belong_to_stream_problem_and_sample(tied, prompts):
    """Whatever else is in the batch: exact in fp32 on a CPU; elsewhere rounding may depend on the batch."""
    rollouts = sample(tied.engine, prompts)
    assert sample(tied.engine, prompts) == rollouts
    alone = [one for prompt in reversed(prompts) for one in sample(tied.engine, [prompt], samples=2)]
    tokens = {(one.problem_id, one.sample): one.token_ids for one in rollouts}
    assert all(one.token_ids == tokens[one.problem_id, one.sample] for one in alone)
    assert [one.token_ids for one in sample(tied.engine, prompts, stream="other")] != [r.token_ids for r in rollouts]
    assert len({tuple(one.token_ids) for one in rollouts if one.problem_id == "p0"}) == 4


@pytest.mark.parametrize("is_tied", [True, False])
def test_pushed_weights_are_sampled_from(served, make_model, prompts, is_tied):
    one = served(tied=is_tied)
    changed = make_model(layers=2, heads=2, tied=is_tied, seed=6)
    sample(one.engine, prompts)
    one.engine.push((name, parameter.detach()) for name, parameter in changed.named_parameters())
    try:
        assert disagreement(one.engine, changed, prompts) < TOLERANCE
    finally:
        one.engine.push(one.model.named_parameters())
    assert disagreement(one.engine, one.model, prompts) < TOLERANCE


def push_nothing(engine, weights, monkeypatch):
    pass


def push_without_head(engine, weights, monkeypatch):
    monkeypatch.setattr(engine, "_with_head", lambda weights: weights)
    monkeypatch.setattr(engine, "_sent", {})  # nothing to compare with, so that only the rollouts differ
    engine.push(weights)


def push_without_reset(engine, weights, monkeypatch):
    monkeypatch.setattr(engine._llm, "reset_prefix_cache", lambda: True)
    engine.push(weights)


@pytest.mark.parametrize("push", [push_nothing, push_without_head, push_without_reset])
def test_a_stale_engine_is_caught(tied, make_model, prompts, monkeypatch, push):
    changed = make_model(layers=2, heads=2, seed=6)
    sample(tied.engine, prompts)
    with monkeypatch.context() as patched:
        push(tied.engine, changed.named_parameters(), patched)
    with pytest.raises(UserError, match=r"disagree: .* engine\.tolerance is 0\.0001"):
        disagreement(tied.engine, changed, prompts)


def test_a_push_that_cannot_reset_the_prefix_cache_fails(tied, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(tied.engine._llm, "reset_prefix_cache", lambda: False)
        with pytest.raises(RuntimeError, match="prefix cache"):
            tied.engine.push(tied.model.named_parameters())


def test_a_push_without_the_head_fails(served):
    one = served(tied=False)
    with pytest.raises(RuntimeError, match=r"without lm_head\.weight"):
        one.engine.push((name, p) for name, p in one.model.named_parameters() if name != "lm_head.weight")
    one.engine.push(one.model.named_parameters())


def test_globals_are_left_alone(served, prompts, monkeypatch):
    one = served()
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    directory, end_tokens = one.directory, one.engine.end_tokens

    def state():
        return (
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_rng_state().tolist(),
            torch.set_num_threads,
            torch.get_num_threads(),
            [os.environ.get(name) for name in ("LD_PRELOAD", "LOCAL_WORLD_SIZE")],
        )

    random.random(), np.random.rand(), torch.rand(1)  # a state that no seed gives
    before = state()
    another = VLLMSampler(directory, config=engine_config(), end_tokens=end_tokens, max_tokens=50, batch_size=2)
    assert state() == before
    sample(another, prompts[:2], max_new_tokens=5)
    another.push(one.model.named_parameters())
    another.sleep()  # nothing on a CPU
    assert state() == before
    del another


@pytest.mark.parametrize(
    ("changes", "max_tokens", "message"),
    [
        ({"kv_cache_gib": 100_000.0}, 100, r"out of memory: set or lower engine\.kv_cache_gib"),
        ({"kv_cache_gib": 1e-6}, 100, r"too small for one sequence: raise engine\.kv_cache_gib"),
        ({}, 100_000, r"cannot serve .*max_model_len \(100000\)"),
    ],
)
def test_an_engine_that_cannot_start_names_the_key(served, changes, max_tokens, message):
    one = served()
    with pytest.raises(UserError, match=message) as caught:
        VLLMSampler(one.directory, config=engine_config(**changes), end_tokens=[1], max_tokens=max_tokens, batch_size=2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."), r"engine\.gpu_memory_utilization"),
        (RuntimeError("The server socket has failed to bind: EADDRINUSE"), "a port or the GPU is taken"),
    ],
)
def test_a_fault_of_the_machine_is_one_line(tied, prompts, monkeypatch, error, message):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(tied.engine._llm, "generate", fail)
    with pytest.raises(UserError, match=message):
        sample(tied.engine, prompts)


def test_bad_input(tied, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no model in"):
        VLLMSampler(tmp_path, config=engine_config(), end_tokens=[1], max_tokens=9, batch_size=1)
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    with pytest.raises(UserError, match="vLLM is not installed"):
        VLLMSampler(tied.directory, config=engine_config(), end_tokens=[1], max_tokens=9, batch_size=1)


def test_an_aborted_response_is_an_error(tied, prompts, monkeypatch):
    cut = SimpleNamespace(finish_reason="abort", token_ids=[1], logprobs=None)
    monkeypatch.setattr(tied.engine._llm, "generate", lambda *_, **__: [SimpleNamespace(outputs=[cut])])
    with pytest.raises(RuntimeError, match="p0: vLLM ended a response by 'abort'"):
        sample(tied.engine, prompts[:1], samples=1)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_sleeping_engine_frees_its_memory_and_accepts_new_weights(served, make_model, prompts):
    one = served()
    changed = make_model("qwen2", layers=2, heads=2, seed=6)
    engine = VLLMSampler(
        one.directory,
        config=engine_config(kv_cache_gib=4.0),
        end_tokens=one.engine.end_tokens,
        max_tokens=MAX_TOKENS,
        batch_size=8,
        sleeps=True,
    )
    sample(engine, prompts)
    awake = torch.cuda.mem_get_info()[0]
    engine.sleep()
    assert torch.cuda.mem_get_info()[0] - awake > 3.9 * 2**30
    engine.push((name, parameter.cuda()) for name, parameter in changed.named_parameters())
    assert disagreement(engine, changed, prompts) < TOLERANCE


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "model.norm.weight"])
def test_a_push_is_compared_bitwise(tied, make_model, monkeypatch, name):
    """One weight changes by one unit in its last place, far less than log-probabilities show."""
    changed = dict(make_model(layers=2, heads=2).named_parameters())
    moved = changed[name].detach().clone()
    moved.view(-1)[3] = torch.nextafter(moved.view(-1)[3], torch.tensor(9.0))
    changed[name] = moved
    tied.engine.push(changed.items())
    with monkeypatch.context() as patched:
        patched.setattr(tied.engine._llm, "collective_rpc", lambda _, kwargs: list(kwargs["weights_iterator"]))
        with pytest.raises(RuntimeError, match=rf"does not hold the weights that it was sent: {name}"):
            tied.engine.push(tied.model.named_parameters())
