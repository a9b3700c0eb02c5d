"""One training step with a vocabulary of 151,936: peak memory and time of our token statistics against eager ones.

The same step of the same small model (width 64, two layers), each in its own process; only `token_stats` differs: ours,
or log-probabilities and probabilities of all tokens at once, as in the authors' code.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from common import make_parser, write_record
from entropy_dynamics.config import load_config
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import load_method
from entropy_dynamics.sampling import Prompt, Rollout, Sampler
from entropy_dynamics.tasks import Grade
from entropy_dynamics.training import policy as policy_module
from entropy_dynamics.training.policy import Policy
from entropy_dynamics.training.trainer import Trainer

VOCABULARY = 151_936
PROMPT_TOKENS = 32


def eager(hidden: Tensor, tokens: Tensor, *, weight: Tensor, temperature: float, entropy_gradient: bool) -> TokenStats:
    """log p, H, S* and E[S] by their definitions, every intermediate [tokens, V] and kept for the backward pass."""
    logp_all = (hidden @ weight.T / temperature).float().log_softmax(-1)
    p = logp_all.exp()
    entropy = -(p * logp_all).sum(-1)
    logp = logp_all.gather(-1, tokens[:, None]).squeeze(-1)
    with torch.no_grad():
        s_star = logp.exp() * (entropy + logp)
        s_expected = entropy * p.square().sum(-1) + (p.square() * logp_all).sum(-1)
    return TokenStats(logp, entropy if entropy_gradient else entropy.detach(), s_star, s_expected)


class RandomResponses(Sampler):
    """In place of an engine: what is measured begins with the scoring pass."""

    def __init__(self, tokens: int):
        self.tokens = tokens

    def sample(self, prompts, *, samples, temperature, max_new_tokens, stream):
        draw = torch.Generator().manual_seed(0)
        return [
            Rollout(prompt.problem_id, k, torch.randint(VOCABULARY, (self.tokens,), generator=draw).tolist(), "length")
            for prompt in prompts
            for k in range(samples)
        ]


def alternating(rollout: Rollout) -> Grade:
    """Every second response is correct."""
    correct = rollout.sample % 2 == 1
    return Grade(answer="1", correct=correct, answer_correct=correct, formatted=True, truncated=False)


def step(side: str, tokens: int) -> dict[str, float]:
    """One step of 8 rollouts; extra peak memory in MiB beyond model and optimizer, and seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = {"prompts_per_step": 1, "group_size": 8, "steps": 2, "entropy_change_every": 0, "validation_every": 0}
    settings |= {"tokens_per_micro_batch": 1 << 20, "single_forward_tokens": 1 << 20}
    overrides = [f"training.{key}={value}" for key, value in settings.items()]
    config = load_config("laptop", "qwen2.5-7b-instruct", "clip_b", overrides).training
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    )
    trainer = Trainer(
        config,
        policy=Policy(model),
        method=load_method("clip_b"),
        sampler=RandomResponses(8),
        grade=alternating,
        prompts=[Prompt("problem", list(range(PROMPT_TOKENS)))],
        temperature=1.0,
        max_new_tokens=tokens,
        pad_token=0,
        seed=0,
    )
    if side == "eager":
        policy_module.token_stats = eager
    trainer.step(0)  # a small one first, for the optimizer's state and the libraries' buffers
    trainer.optimizer.zero_grad(set_to_none=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer.sampler = RandomResponses(tokens // 8)
    start = time.perf_counter()
    metrics = trainer.step(1)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"extra_peak_mib": (peak - before) / 1024, "seconds": seconds, "entropy": metrics["entropy"]}


def main() -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--tokens", type=int, default=2048, help="response tokens of the step")
    parser.add_argument("--side", choices=["ours", "eager"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(step(options.side, options.tokens)))
        return
    sides = {}
    for side in ("ours", "eager"):
        command = [sys.executable, __file__, "--side", side, "--tokens", str(options.tokens)]
        sides[side] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    ours, theirs = sides["ours"], sides["eager"]
    assert abs(ours["entropy"] - theirs["entropy"]) < 1e-4, "the two sides do not compute the same"
    write_record(
        options.out,
        f"a Clip_B step, {options.tokens} response tokens, vocabulary {VOCABULARY}, width 64, fp32, 1 thread",
        one_tensor_of_logits_mib=options.tokens * VOCABULARY * 4 / 2**20,
        **sides,
        eager_to_ours={key: theirs[key] / ours[key] for key in ("extra_peak_mib", "seconds")},
    )


if __name__ == "__main__":
    main()
