"""Problems from the generators of Reasoning Gym, each reproducible from its generator, options, seed and index."""

import json
from collections.abc import Collection, Iterator
from dataclasses import fields
from functools import partial
from itertools import cycle, islice
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.sections import Section
from entropy_dynamics.tasks import GeneratedSet, Problem
from entropy_dynamics.tasks.boxed import extract_boxed
from entropy_dynamics.tasks.limited import verifier

MAX_LENGTH = 4096  # characters in a box, which may hold a grid
ITEMS = 1 << 20  # nominal size of a data set; items are generated on demand
FEWER = {"acre": 2000, "word_ladder": 20_000}  # acre generates all at once, word_ladder allows no more
REFUSED = {
    "codeio": "some of its programs read the clock, so that its problems cannot be generated again to grade answers",
    "coin_flip": "its verifier takes 0 for correct",
    "composite": "it mixes other generators; name those in its place, and they take turns",
    "game_of_life_halting": "its verifier takes every answer for correct",
}
PATIENCE = 1000  # items in a row without a new problem before giving up


def dataset(generator: str, options: dict[str, Any], seed: int, size: int | None = None) -> Any:
    """The data set of a generator, with all the items that there are or with `size`.

    Raises ValueError for an unknown generator or option, for a bad value, for a generator that cannot be graded, or if
    Reasoning Gym is not installed.
    """
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ModuleNotFoundError:
        raise ValueError("Reasoning Gym is missing: pip install 'entropy-dynamics[reasoning-gym]'") from None
    if generator not in DATASETS:
        raise ValueError(f"unknown generator {generator!r}{nearest(generator, DATASETS)}")
    if generator in REFUSED:
        raise ValueError(f"{generator}: {REFUSED[generator]}")
    known = {field.name for field in fields(DATASETS[generator][1])} - {"seed", "size"}
    for option in options:
        if option not in known:
            raise ValueError(f"{generator} has no option {option!r}{nearest(option, known)}")
    try:
        return reasoning_gym.create_dataset(generator, seed=seed, size=size or FEWER.get(generator, ITEMS), **options)
    except Exception as error:  # its configs check themselves by assertions, without a common class
        raise ValueError(f"{generator}: {' '.join(str(error).split()) or type(error).__name__}") from None


def _known(generators: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for generator, options in generators.items():
        dataset(generator, options, seed=0, size=1)
    return generators


class Generators(Section):
    generators: Annotated[dict[str, dict[str, Any]], Field(min_length=1), AfterValidator(_known)]
    """Generator -> its options; several take turns."""

    def items(self, seed: int, exclude: Collection[str]) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Yield different problems endlessly, none of them in `exclude`. Raises UserError if hardly any are left.

        Each is a question, its answer as in `Problem.answer`, and the item of `check.generate`.
        """
        seen = {" ".join(text.split()) for text in exclude}
        generate = partial(verifier("entropy_dynamics.tasks.reasoning_gym.check").call, "generate")
        misses = 0
        for place, (name, options) in enumerate(cycle(self.generators.items())):
            index = place // len(self.generators)
            source = {"generator": name, "options": options, "seed": seed, "index": index}
            left = index < FEWER.get(name, ITEMS)
            if left and (entry := generate(*source.values())) is None:
                raise UserError(f"reasoning_gym: {name} fails at its item {index} with the seed {seed}")
            if left and not isinstance(entry["answer"], str):
                raise UserError(f"reasoning_gym: the problems of {name} have no reference answer, which a set needs")
            misses += 1
            # An empty or very long answer is left out: the box that holds it is not read.
            boxed = left and extract_boxed(f"\\boxed{{{entry['answer']}}}", MAX_LENGTH)
            if boxed and (key := " ".join(entry["question"].split())) not in seen:
                seen.add(key)
                misses = 0
                yield entry["question"], json.dumps({"answer": entry["answer"]} | source), entry
            if misses == PATIENCE or not left:
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
