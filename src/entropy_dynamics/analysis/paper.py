"""The paper's own numbers: experiments/paper_values.yaml."""

from typing import Annotated, Literal

from pydantic import Field

from entropy_dynamics.sections import Section

Percent = Annotated[float, Field(ge=0, le=100)]
Scores = dict[str, dict[Literal["avg", "pass"], Percent]]


class Level(Section):
    """A level that the paper states only in words, as a number."""

    place: str
    value: float


class PaperValues(Section):
    scores: dict[str, dict[str, dict[str, Scores]]]
    """Percent: place in the paper -> model -> method -> data set -> metric."""
    levels: dict[str, Level]
    """Column of metrics.parquet -> level."""

    @property
    def datasets(self) -> set[str]:
        methods = [scores for models in self.scores.values() for scores in models.values()]
        return {dataset for scores in methods for of_method in scores.values() for dataset in of_method}

    def score(self, model: str, method: str, dataset: str, metric: str) -> float | None:
        """The paper's score in percent, or None if it reports none."""
        for models in self.scores.values():
            if metric in (scores := models.get(model, {}).get(method, {}).get(dataset, {})):
                return scores[metric]
        return None
