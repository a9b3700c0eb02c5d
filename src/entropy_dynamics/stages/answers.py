"""A Countdown problem that a reader of the page types, answered by a trained policy."""

from pathlib import Path

import torch

from entropy_dynamics.config import TRAIN, RunConfig
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import check_directory, load_policy
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sampling import open_sampler
from entropy_dynamics.stages.common import make_grader, make_prompts
from entropy_dynamics.stages.token_samples import token_samples
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.countdown.problems import CountdownSet, as_string, sentence
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.policy import Policy
from entropy_dynamics.training.rewards import REWARDS, shaped_rewards


def answer(config: RunConfig, layout: Layout, method: str, seed: int, problem: str, folder: Path) -> Path:
    """Sample a group of answers, and write them with the statistics of every token as the samples of a step.

    Weights are those that the method would give to the tokens if this group were a batch. `problem` is in the notation
    3,9,7,7=6, or in the words of the training problems. Returns the file in `folder`; see `results.token_samples`.
    Raises UserError if there is no such policy, or `problem` is not one of Countdown or of the scale.
    """
    rules, ranks = config.data.sets[TRAIN], Ranks()
    if not isinstance(rules, CountdownSet):
        raise UserError(f"the training problems of scale {config.scale} are not Countdown's, so no other can be asked")
    try:
        _, _, target = (given := as_string(problem)).partition("=")
    except ValueError as error:
        raise UserError(f"{problem!r}: {error}") from None
    text = sentence(given, rules.operations) if rules.sentences else given
    asked = Problem("asked", text, target, "countdown")
    directory = check_directory(layout.policy(config.model.name, method, seed), config)
    model, tokenizer = load_policy(directory)
    prompts, at = make_prompts(config, tokenizer, [asked]), config.sampling.temperature
    with open_sampler(config, directory, tokenizer, ranks, model=model) as sampler:
        limits = {"temperature": at, "max_new_tokens": config.sampling.max_new_tokens}
        rollouts = sampler.sample(prompts, samples=config.training.group_size, stream=f"asked/{text}", **limits)
    grades = list(map(make_grader(tokenizer, [asked]), rollouts))
    batch = RolloutBatch.collate(prompts, rollouts)
    method_of_run = config.method.build()
    with torch.no_grad():
        stats = Policy(model).stats(batch, torch.arange(len(batch)), at, **method_of_run.second_pass())
    reward = REWARDS.get(config.training.reward, REWARDS["binary"])  # random rewards say nothing about one group
    rewards = shaped_rewards(method_of_run, torch.tensor([*map(reward, grades)]), batch, stats.logp)
    advantages = method_of_run.advantages(rewards, batch.groups)[:, None] * batch.mask
    given = {"generator": torch.Generator().manual_seed(0), "logp_old": stats.logp}
    weights = method_of_run.checked_weights(stats, advantages, batch.mask, **given)
    token_samples(folder, tokenizer, 1)(0, rollouts, grades, batch, stats, advantages, weights)
    return folder / "step0.parquet"
