"""Loads the policy and PPO's critic, sharded over the ranks if there is a process group."""

import copy
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from entropy_dynamics.config.schema.training import TrainingConfig
from entropy_dynamics.distributed.precision import PRECISIONS, precision_on
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import empty_model, fill, shard
from entropy_dynamics.models.storage import check_directory, load_model
from entropy_dynamics.training.critic import Critic, CriticGAE
from entropy_dynamics.training.policy import Policy


def load_trained_policy(
    directory: Path, config: TrainingConfig, ranks: Ranks, model: PreTrainedModel | None = None
) -> Policy:
    """The policy in `directory`, in fp32, on this rank's device.

    `model` is the model in `directory` if it is loaded already; only without a process group. Raises UserError if the
    directory holds no model, or if its weights do not fit its config.
    """
    check_directory(directory)
    head = PRECISIONS[config.head_precision] if config.head_precision else None
    precision = precision_on(ranks.device, config.precision)
    if ranks.mesh is None:
        model = load_model(directory).to(ranks.device) if model is None else model
        policy = Policy(model, head, precision=PRECISIONS[precision])
        prepare_blocks(policy.model.model.layers, config)
    else:
        policy = Policy(empty_model(directory), head, share=False)
        prepare_blocks(policy.model.model.layers, config)
        shard(policy, policy.model.model.layers, precision, ranks)
        fill(policy, directory, lambda name: name.removeprefix("model."), ranks)
    return policy.eval()


def load_critic(directory: Path, policy: Policy, config: TrainingConfig, ranks: Ranks) -> CriticGAE:
    """PPO's critic: the backbone in `directory`, from which the policy was loaded, with a head of zeros."""
    if ranks.mesh is None:
        critic = Critic(copy.deepcopy(policy.model.model), policy.model.config.hidden_size, policy.precision)
    else:
        model = empty_model(directory)
        critic = Critic(model.model, model.config.hidden_size)
        prepare_blocks(critic.backbone.layers, config)
        shard(critic, critic.backbone.layers, precision_on(ranks.device, config.precision), ranks)
        names = {f"backbone.{name}": f"model.{name}" for name, _ in critic.backbone.named_parameters()}
        fill(critic, directory, names.get, ranks)
        critic.eval()
    return CriticGAE(config, critic, ranks)


def prepare_blocks(blocks: Iterable[nn.Module], config: TrainingConfig) -> None:
    """Set up activation checkpointing and compilation of transformer blocks as configured; to be called before `shard`.

    A block's `forward` is replaced, inside FSDP's hooks: parameter names stay, and the compiler sees plain tensors.
    """
    for block in blocks:
        if config.activation_checkpointing == "full":  # no random state, as these models have no dropout
            block.forward = partial(checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False)
        if config.compile:  # dynamic, as the length differs between micro-batches
            block.forward = torch.compile(block.forward, dynamic=True)
