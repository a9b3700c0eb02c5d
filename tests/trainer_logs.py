"""Logs as trainers write them, with the metrics of a step that each logs."""

import csv
import json
import math
from functools import partial

import numpy as np
import pandas as pd

from command_line import write_lines

STEPS = 40
FALLING = [1.2 / (1 + math.exp((step - 12) / 2)) + 0.2 for step in range(STEPS)]


def ours(folder):
    frame = pd.DataFrame({"step": range(STEPS), "entropy": FALLING, "reward_mean": np.linspace(0, 1, STEPS)})
    frame["predicted_entropy_change"] = np.gradient(FALLING)
    parts = {"lens_pos_lt": 1.0, "lens_pos_gt": -3.0, "lens_neg_gt": 2.0, "lens_neg_lt": -1.0}
    frame.assign(**parts).to_parquet(folder / "metrics.parquet")


def trainer_state(folder, rows):
    """TRL; the last entry is that of the whole training."""
    rows = [*rows, {"step": STEPS, "train_loss": 0.1}]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": rows}))


def file_logger(folder, rows):
    """verl/utils/tracking.py, FileLogger."""
    write_lines(folder / "gsm8k.jsonl", ({"step": row.pop("step"), "data": row} for row in rows))


def monitors(folder, rows):
    """prime_rl/monitors/file.py: the trainer has a file, and the orchestrator, which logs no entropy."""
    for part, orchestrator in (("trainer", False), ("orchestrator", True)):
        of_part = [
            {key: value for key, value in row.items() if key == "step" or key.startswith("train/agg") is orchestrator}
            for row in rows
        ]
        write_lines(folder / part / "metrics.jsonl", of_part)


def json_lines(folder, rows):
    write_lines(folder / "metrics.jsonl", rows)


def export(folder, rows, axis="Step"):
    """What W&B exports of a run."""
    frame = pd.DataFrame(rows).set_index("step").add_prefix("run 1 - ").rename_axis(axis)
    lowest, highest = frame.add_suffix("__MIN") * 0, frame.add_suffix("__MAX") * 0 + 1
    frame.join([lowest, highest]).to_csv(folder / "export.csv", quoting=csv.QUOTE_ALL)


def logging_file(folder, rows):
    """ms-swift: swift/trainers/patcher.py; completions.jsonl has a line of lists per logged step."""
    rows = [*rows, {"step": STEPS, "train_loss": 0.0}]
    steps = [row | {"global_step/max_steps": f"{row.pop('step')}/{STEPS}"} for row in rows]
    last = {"last_model_checkpoint": "checkpoint-40", "global_step": STEPS}
    write_lines(folder / "logging.jsonl", [*steps, last])
    write_lines(folder / "completions.jsonl", [{"step": ["5", "5"], "prompt": ["a", "a"], "advantages": [0.5, -0.5]}])


def parquet(folder, rows):
    pd.DataFrame(rows).to_parquet(folder / "metrics.parquet")


def signals(truncated="", mismatch=""):
    """What entropy may rise with, by the keys of a step, which are separated by blanks."""
    of_lengths = dict.fromkeys(truncated.split(), "the share of truncated responses")
    return of_lengths | dict.fromkeys(mismatch.split(), "the mismatch of engine and trainer")


# The keys of a step: entropy, reward, `signals`. SkyRL and Tinker log no share of truncated ones.
TRAINERS = {
    "this project": (parquet, "entropy", "reward_mean",
                     signals("truncated", "engine_logp_difference")),
    # huggingface/trl trl/trainer/grpo_trainer.py@f2cd5771
    "TRL": (trainer_state, "entropy", "reward",
            signals("completions/clipped_ratio", "sampling/sampling_logp_difference/mean")),
    # verl-project/verl verl/trainer/ppo/{metric_utils,rollout_corr_helper}.py, verl/utils/debug/metrics.py@1dda039b
    "verl": (file_logger, "actor/entropy", "critic/score/mean",
             signals("response_length/clip_ratio",
                     "rollout_corr/kl training/rollout_probs_diff_mean")),
    # PrimeIntellect-ai/prime-rl src/prime_rl/trainer/rl/train.py, src/prime_rl/orchestrator/metrics.py@559b4477
    "prime-rl": (monitors, "entropy/all/mean", "train/agg/effective/agent/reward/mean",
                 signals("train/agg/effective/agent/is_truncated/mean",
                         "mismatch_kl/all/mean kl_ent_ratio/mean")),
    # NovaSky-AI/SkyRL skyrl/train/trainer.py, skyrl/backends/skyrl_train/workers/worker_utils.py@a9564572
    "SkyRL": (export, "policy/policy_entropy", "reward/avg_raw_reward",
              signals(mismatch="policy/rollout_train_logprobs_abs_diff_mean"
                      " policy/minibatch_rollout_logprobs_abs_diff_mean")),
    # OpenRLHF/OpenRLHF openrlhf/trainer/ppo_trainer.py, openrlhf/trainer/ray/ppo_actor.py@3c3be623
    "OpenRLHF": (export, "train/entropy_loss", "train/reward",
                 signals("train/rollout/truncated_rate", "train/vllm_kl")),
    # THUDM/slime slime/observability/rollout_metrics.py, slime/backends/megatron_utils/loss.py@624b824a;
    # slime/observability/wandb_utils.py makes train/step the x axis of train/*.
    "slime": (partial(export, axis="train/step"), "train/entropy_loss", "rollout/raw_reward",
              signals("rollout/truncated_ratio", "train/train_rollout_logprob_abs_diff")),
    # NVIDIA-NeMo/RL nemo_rl/algorithms/loss/loss_functions.py, nemo_rl/experience/rollouts.py@7ea279ab
    "NeMo RL": (export, "train/approx_entropy", "train/reward",
                signals("train/truncation_rate", "train/gen_kl_error")),
    # modelscope/ms-swift swift/rlhf_trainers/grpo_trainer.py@3602360a
    "ms-swift": (logging_file, "entropy/mean", "reward", signals("completions/clipped_ratio")),
    # thinking-machines-lab/tinker-cookbook tinker_cookbook/rl/{metrics,metric_util}.py@9dfcc3a2
    "Tinker": (json_lines, "optim/entropy", "env/all/reward/total",
               signals(mismatch="optim/kl_sample_train_v1")),
}  # fmt: skip


def of_trainer(name):
    write, entropy, reward, _ = TRAINERS[name]
    return lambda folder: write(
        folder, [{"step": step, entropy: value, reward: step / STEPS} for step, value in enumerate(FALLING)]
    )
