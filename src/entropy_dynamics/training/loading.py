"""Loading of the policy and of PPO's critic, sharded if there are several ranks."""

import copy
from pathlib import Path

from torch import nn

from entropy_dynamics.config.schema import TrainingConfig
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import empty_model, fill, shard
from entropy_dynamics.models.loading import check_model_directory, load_model
from entropy_dynamics.training.critic import Critic, CriticGAE
from entropy_dynamics.training.policy import Policy


def load_trained_policy(directory: Path, config: TrainingConfig, ranks: Ranks) -> Policy:
    """The policy in `directory`, in fp32, on this rank's device.

    Raises UserError if the directory holds no model, or its weights do not fit its config.
    """
    check_model_directory(directory)
    if ranks.mesh is None:
        policy = Policy(load_model(directory).to(ranks.device))
    else:
        policy = Policy(empty_model(directory))
        shard(policy, policy.model.model.layers, config.precision, ranks)
        fill(policy, directory, lambda name: name.removeprefix("model."), ranks)
    _prepare(policy, policy.model, config)
    return policy


def load_critic(directory: Path, policy: Policy, config: TrainingConfig, ranks: Ranks) -> CriticGAE:
    """PPO's critic: the backbone in `directory`, where the policy came from, with a head of zeros."""
    if ranks.mesh is None:
        critic = Critic(copy.deepcopy(policy.model.model), policy.model.config.hidden_size)
    else:
        model = empty_model(directory)
        critic = Critic(model.model, model.config.hidden_size)
        shard(critic, critic.backbone.layers, config.precision, ranks)
        fill(critic, directory, _critic_name_in_file, ranks)
        _prepare(critic, critic.backbone, config)
    return CriticGAE(config, critic, ranks)


def _critic_name_in_file(name: str) -> str | None:
    section, _, rest = name.partition(".")
    return f"model.{rest}" if section == "backbone" else None


def _prepare(module: nn.Module, transformer: nn.Module, config: TrainingConfig) -> None:
    if config.activation_checkpointing:
        transformer.gradient_checkpointing_enable({"use_reentrant": False})
        module.train()  # transformers recomputes activations in this mode only; no dropout is set in these models
    else:
        module.eval()
