"""Problems from the generators of Reasoning Gym, each reproducible from its generator, options, seed and index."""

import json
from collections.abc import Collection, Iterator
from dataclasses import fields
from itertools import cycle, islice
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.sections import Section
from entropy_dynamics.tasks import GeneratedSet, Problem

ITEMS = 1 << 20  # nominal size of a data set; items are generated on demand
PATIENCE = 1000  # items in a row without a new problem before giving up


def dataset(generator: str, options: dict[str, Any], seed: int) -> Any:
    """The data set of a generator.

    Raises ValueError for an unknown generator or option, for a bad value, or if Reasoning Gym is not installed.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError:
        raise ValueError("Reasoning Gym is missing: pip install 'entropy-dynamics[reasoning-gym]'") from None
    if generator not in DATASETS:
        raise ValueError(f"unknown generator {generator!r}{nearest(generator, DATASETS)}")
    known = {field.name for field in fields(DATASETS[generator][1])} - {"seed", "size"}
    for option in options:
        if option not in known:
            raise ValueError(f"{generator} has no option {option!r}{nearest(option, known)}")
    try:
        return reasoning_gym.create_dataset(generator, seed=seed, size=ITEMS, **options)
    except Exception as error:  # its configs check themselves by assertions, without a common class
        raise ValueError(f"{generator}: {' '.join(str(error).split()) or type(error).__name__}") from None


def _known(generators: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for generator, options in generators.items():
        dataset(generator, options, seed=0)
    return generators


class Generators(Section):
    generators: Annotated[dict[str, dict[str, Any]], Field(min_length=1), AfterValidator(_known)]
    """Generator -> its options; several take turns."""

    def items(self, seed: int, exclude: Collection[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield different problems endlessly, none of them in `exclude`. Raises UserError if hardly any are left.

        Each is a question, its answer as in `Problem.answer`, and the entry that the generator made.
        """
        seen = {" ".join(text.split()) for text in exclude}
        sources = [(name, options, dataset(name, options, seed)) for name, options in self.generators.items()]
        misses = 0
        for place, (name, options, items) in enumerate(cycle(sources)):
            index = place // len(sources)
            entry = items[index]
            question, answer = entry["question"].strip(), entry["answer"]
            misses += 1
            if isinstance(answer, str) and (key := " ".join(question.split())) not in seen:
                seen.add(key)
                misses = 0
                item = {"answer": answer, "generator": name, "options": options, "seed": seed, "index": index}
                yield question, json.dumps(item), entry
            if misses == PATIENCE:
                raise UserError(
                    f"reasoning_gym: hardly any new problem of {', '.join(self.generators)} is left besides those of "
                    "other sets; ask for fewer or change `generators`"
                )


class ReasoningGymSet(Generators, GeneratedSet):
    """Problems of one or several generators, no two with the same text."""

    source: Literal["reasoning_gym"]

    def generate(self, prefix: str, seed: int, exclude: Collection[str]) -> list[Problem]:
        items = enumerate(islice(self.items(seed, exclude), self.size))
        return [Problem(f"{prefix}-{place:04d}", text, answer, self.source) for place, (text, answer, _) in items]
