"""The code that a config runs and that a user edits: its methods, graders, generators and writers of solutions."""

from entropy_dynamics.config.schema import Config, RunConfig, StageConfig
from entropy_dynamics.config.schema.data import DataConfig
from entropy_dynamics.results.versions import version_of
from entropy_dynamics.tasks import GeneratedSet, find_task


def versions_of(config: Config) -> dict[str, str]:
    """The versions of the code of a config, by kind and name."""
    versions = versions_of_generators(config.data)
    for source in config.data.sets.values():
        if name := getattr(source, "task", source.source if isinstance(source, GeneratedSet) else None):
            versions[f"graders.{name}"] = version_of(type(find_task(name)), ("generated", "solutions"))
    if isinstance(config, StageConfig):
        toy = config.toy_models.get(config.model.name)
        if start := toy.warm_start if toy else config.cold_start:
            versions[f"solutions.{start.solutions.task}"] = version_of(type(start.solutions))
    if isinstance(config, RunConfig):
        versions[f"methods.{config.method.name}"] = version_of(type(config.method.params))
    return versions


def versions_of_generators(data: DataConfig) -> dict[str, str]:
    """The versions of the code that generates problems."""
    sources = [source for source in data.sets.values() if isinstance(source, GeneratedSet)]
    return {f"generators.{source.source}": version_of(type(source)) for source in sources}
