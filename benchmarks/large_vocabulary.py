"""One training step with a vocabulary of 151,936: peak memory and time of our token statistics against eager ones.

The same step of the same small model (width 64, two layers), each in its own process; only `token_stats` differs: ours,
or log-probabilities and probabilities of all tokens at once, as in the authors' code.
"""

import argparse
import json
import resource
import time

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from common import in_own_process, make_parser, write_record
from entropy_dynamics.config import load_config
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.models.toy import transformers_config
from entropy_dynamics.training import policy as policy_module
from entropy_dynamics.training.policy import Policy
from random_model import RandomResponses, make_random_trainer

MODEL = "qwen2.5-7b-instruct"
SMALL = {"layers": 2, "hidden_size": 64, "intermediate_size": 128, "heads": 2, "kv_heads": 2, "head_size": 32}
SHAPE = load_config("gpu", MODEL).model.shape.model_copy(update=SMALL)  # the substitute's vocabulary, tied embeddings
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


def step(side: str, tokens: int) -> dict[str, float]:
    """One step of 8 rollouts; extra peak memory in MiB beyond model and optimizer, and seconds."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = {"prompts_per_step": 1, "group_size": 8, "steps": 2, "entropy_change_every": 0, "validation_every": 0}
    settings |= {"tokens_per_micro_batch": 1 << 20, "single_forward_tokens": 1 << 20}
    overrides = [f"training.{key}={value}" for key, value in settings.items()] + ["sampling.max_new_tokens=8"]
    config = load_config("laptop", MODEL, "clip_b", overrides)
    model = AutoModelForCausalLM.from_config(transformers_config(SHAPE))
    trainer = make_random_trainer(config, Policy(model), RandomResponses(SHAPE.vocabulary, spread=1), PROMPT_TOKENS)
    if side == "eager":
        policy_module.token_stats = eager
    trainer.step(0)  # a small one first, for the optimizer's state and the libraries' buffers
    trainer.optimizer.zero_grad(set_to_none=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    trainer.max_new_tokens = tokens // 8
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
        sides[side] = in_own_process(__file__, "--side", side, "--tokens", options.tokens)
    ours, theirs = sides["ours"], sides["eager"]
    assert abs(ours["entropy"] - theirs["entropy"]) < 1e-4, "the two sides do not compute the same"
    write_record(
        options.out,
        f"a Clip_B step, {options.tokens} response tokens, vocabulary {SHAPE.vocabulary}, width 64, fp32, 1 thread",
        one_tensor_of_logits_mib=options.tokens * SHAPE.vocabulary * 4 / 2**20,
        **sides,
        eager_to_ours={key: theirs[key] / ours[key] for key in ("extra_peak_mib", "seconds")},
    )


if __name__ == "__main__":
    main()
