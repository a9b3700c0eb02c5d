"""Dump of a run whose loss or gradient became non-finite: the last finite policy, and the batch that broke it."""

from pathlib import Path

from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.results.files import write_json, written_whole
from entropy_dynamics.training.trainer import Trainer


def save_failure(directory: Path, trainer: Trainer, tokenizer: PreTrainedTokenizerBase, message: str) -> None:
    """Write `policy` (readable by `load_policy`), `batch.safetensors` and `failure.json` atomically.

    The batch holds the fields of RolloutBatch, and `rewards`. A collective: all ranks must call it.
    """
    weights = trainer.policy.weights()
    if not trainer.ranks.is_main:
        for _ in weights:  # gathering a weight is a collective
            pass
        return
    step, batch, rewards = trainer.in_progress
    tensors = {**vars(batch), "rewards": rewards}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items() if tensor is not None}
    with written_whole(directory) as temporary:
        save_policy(trainer.policy.model, tokenizer, temporary / "policy", weights)
        save_file(tensors, temporary / "batch.safetensors")
        write_json(temporary / "failure.json", {"message": message, "steps_done": step})
