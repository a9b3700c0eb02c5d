"""Logs as trainers write them, with the metrics of a step that each logs."""

import json
import math

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
    columns = {axis: [row["step"] for row in rows]}
    for key in rows[0].keys() - {"step"}:
        columns |= {
            f"run 1 - {key}": [row[key] for row in rows],
            f"run 1 - {key}__MIN": 0.0,
            f"run 1 - {key}__MAX": 1.0,
        }
    pd.DataFrame(columns).to_csv(folder / "export.csv", index=False)


def export_by_train_step(folder, rows):
    """slime/observability/wandb_utils.py@624b824a makes train/step the x axis of train/*."""
    export(folder, rows, axis="train/step")


def logging_file(folder, rows):
    """ms-swift: swift/trainers/patcher.py; completions.jsonl has a line of lists per logged step."""
    last = {"last_model_checkpoint": "checkpoint-40", "global_step": STEPS}
    steps = [row | {"global_step/max_steps": f"{row.pop('step')}/{STEPS}"} for row in rows]
    write_lines(
        folder / "logging.jsonl", [*steps, {"train_loss": 0.0, "global_step/max_steps": f"{STEPS}/{STEPS}"}, last]
    )
    write_lines(folder / "completions.jsonl", [{"step": ["5", "5"], "prompt": ["a", "a"], "advantages": [0.5, -0.5]}])


def parquet(folder, rows):
    pd.DataFrame(rows).to_parquet(folder / "metrics.parquet")


TRUNCATED, MISMATCH = "the share of truncated responses", "the mismatch of engine and trainer"
# The keys of a step: entropy, reward, and what entropy may rise with. SkyRL and Tinker log no share of truncated ones.
TRAINERS = {
    "this project": (
        *(parquet, "entropy", "reward_mean"),
        {"truncated": TRUNCATED, "engine_logp_difference": MISMATCH},
    ),
    # huggingface/trl trl/trainer/grpo_trainer.py@f2cd5771
    "TRL": (
        *(trainer_state, "entropy", "reward"),
        {"completions/clipped_ratio": TRUNCATED, "sampling/sampling_logp_difference/mean": MISMATCH},
    ),
    # verl-project/verl verl/trainer/ppo/{metric_utils,rollout_corr_helper}.py, verl/utils/debug/metrics.py@1dda039b
    "verl": (
        *(file_logger, "actor/entropy", "critic/score/mean"),
        {
            "response_length/clip_ratio": TRUNCATED,
            "rollout_corr/kl": MISMATCH,
            "training/rollout_probs_diff_mean": MISMATCH,
        },
    ),
    # PrimeIntellect-ai/prime-rl src/prime_rl/trainer/rl/train.py, src/prime_rl/orchestrator/metrics.py@559b4477
    "prime-rl": (
        *(monitors, "entropy/all/mean", "train/agg/effective/agent/reward/mean"),
        {
            "train/agg/effective/agent/is_truncated/mean": TRUNCATED,
            "mismatch_kl/all/mean": MISMATCH,
            "kl_ent_ratio/mean": MISMATCH,
        },
    ),
    # NovaSky-AI/SkyRL skyrl/train/trainer.py, skyrl/backends/skyrl_train/workers/worker_utils.py@a9564572
    "SkyRL": (
        *(export, "policy/policy_entropy", "reward/avg_raw_reward"),
        {
            "policy/rollout_train_logprobs_abs_diff_mean": MISMATCH,
            "policy/minibatch_rollout_logprobs_abs_diff_mean": MISMATCH,
        },
    ),
    # OpenRLHF/OpenRLHF openrlhf/trainer/ppo_trainer.py, openrlhf/trainer/ray/ppo_actor.py@3c3be623
    "OpenRLHF": (
        *(export, "train/entropy_loss", "train/reward"),
        {"train/rollout/truncated_rate": TRUNCATED, "train/vllm_kl": MISMATCH},
    ),
    # THUDM/slime slime/observability/rollout_metrics.py, slime/backends/megatron_utils/loss.py@624b824a
    "slime": (
        *(export_by_train_step, "train/entropy_loss", "rollout/raw_reward"),
        {"rollout/truncated_ratio": TRUNCATED, "train/train_rollout_logprob_abs_diff": MISMATCH},
    ),
    # NVIDIA-NeMo/RL nemo_rl/algorithms/loss/loss_functions.py, nemo_rl/experience/rollouts.py@7ea279ab
    "NeMo RL": (
        *(export, "train/approx_entropy", "train/reward"),
        {"train/truncation_rate": TRUNCATED, "train/gen_kl_error": MISMATCH},
    ),
    # modelscope/ms-swift swift/rlhf_trainers/grpo_trainer.py@3602360a
    "ms-swift": (*(logging_file, "entropy/mean", "reward"), {"completions/clipped_ratio": TRUNCATED}),
    # thinking-machines-lab/tinker-cookbook tinker_cookbook/rl/{metrics,metric_util}.py@9dfcc3a2
    "Tinker": (*(json_lines, "optim/entropy", "env/all/reward/total"), {"optim/kl_sample_train_v1": MISMATCH}),
}


def of_trainer(name):
    write, entropy, reward, _ = TRAINERS[name]
    return lambda folder: write(
        folder, [{"step": step, entropy: value, reward: step / STEPS} for step, value in enumerate(FALLING)]
    )
