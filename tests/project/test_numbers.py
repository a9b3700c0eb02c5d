"""Each interval that README and docs quote is in a published file, to the digits that they print."""

import json
import math
import re
from collections.abc import Iterator
from functools import cache

import numpy as np
import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.analysis.claims_json import verdicts_of

REFERENCE = ROOT / "docs" / "reference"
RECORDS = ("protocol", "claims.md", "controls.md", "field.md", "tables/", "laptop/methods/seeds")
PAGES = [
    page
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if not any(name in str(page.relative_to(ROOT)).removeprefix("docs/protocol.md") for name in RECORDS)
]
NUMBER = r"[-+\N{MINUS SIGN}]?\d+(?:\.\d+)?"
QUOTED = re.compile(rf"({NUMBER})(?: %| points)? \[({NUMBER}),\s+({NUMBER})\]")
GENERATED = re.compile(r"<!-- \w+: python docs/lists.py -->\n(.*?)<!-- end -->", re.DOTALL)  # test_lists.py has them
ELSEWHERE = {  # what no published file has -> where it is from
    "docs/protocol.md": {
        "-1.4 [-2.4, -0.4]": "docs/reference/first/claims.md of commit 6c81e3b6, an earlier study",
        "-1.6 [-2.8, -0.4]": "docs/reference/second/claims.md of commit 6c81e3b6",
    },
    "docs/reference/laptop/methods/README.md": {
        "11.7 [7.8, 18.8]": "commit 45574e12, seeds 0 to 4; 11.7 [5.8, 20.2] from the metrics of seeds 50 to 54",
    },
}


def from_json() -> Iterator[tuple]:
    for file in REFERENCE.rglob("*.json"):
        content = json.loads(file.read_text())
        for entry in content if isinstance(content, list) else ():
            for of in (entry, entry.get("paper")):
                if isinstance(of, dict) and of.get("low") is not None:
                    yield of["effect"], of["low"], of["high"]


def from_csv() -> Iterator[tuple]:
    for file in REFERENCE.rglob("*.csv"):
        frame = pd.read_csv(file)
        for low in frame.filter(regex="low$"):
            names = [low.removesuffix("_low")] if low != "low" else ["value", "gain", "share"]
            for name in {*names} & {*frame}:
                yield from frame[[name, low, f"{low.removesuffix('low')}high"]].itertuples(index=False)


def from_pages() -> Iterator[tuple]:
    for page in PAGES:
        for part in GENERATED.findall(page.read_text(encoding="utf-8")):
            yield from ([float(text) for text in found] for found in QUOTED.findall(plain(part)))


def plain(text: str) -> str:
    return text.replace("\N{MINUS SIGN}", "-")


@cache
def published() -> np.ndarray:
    """Rows of value, low and high: as they are and with the other sign, as numbers and in per cent."""
    rows = np.array([[*row] for source in (from_json(), from_csv(), from_pages()) for row in source], dtype=float)
    rows = np.unique(rows[~np.isnan(rows).any(axis=1)], axis=0)
    both = np.concatenate([rows, -rows[:, [0, 2, 1]]])
    return np.concatenate([both, 100 * both])


def is_published(texts: tuple[str, ...]) -> bool:
    """Within half of the last digit; halves may be rounded either way."""
    numbers = np.array([float(text) for text in texts])
    halves = np.array([0.501 * 10 ** -len(text.partition(".")[2]) for text in texts])
    return bool((np.abs(published() - numbers) <= halves).all(axis=1).any())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_quoted_interval_is_published(page):
    known = ELSEWHERE.get(str(page.relative_to(ROOT)), {})
    text = plain(GENERATED.sub("", page.read_text(encoding="utf-8")))
    quoted = {f"{value} [{low}, {high}]": (value, low, high) for value, low, high in QUOTED.findall(text)}
    assert known.keys() <= quoted.keys()
    assert [shown for shown, texts in quoted.items() if shown not in known and not is_published(texts)] == []


def test_a_made_up_interval_is_not_found():
    """Of intervals like those of the pages, with the value and both ends moved, few are found by chance."""
    rng, found = np.random.default_rng(0), 0
    for _ in range(200):
        value, *reach = rng.uniform(1, [20, 12, 12]).round(1)
        found += is_published((f"{value:.1f}", f"{value - reach[0]:.1f}", f"{value + reach[1]:.1f}"))
    assert found <= 2


def test_a_number_that_differs_in_its_last_digit_is_not_found():
    entry = verdicts_of(REFERENCE / "smollm2/seeds-0-7")["left_clip_b"]
    texts = [f"{entry[part]:.1f}" for part in ("effect", "low", "high")]
    assert is_published(tuple(texts))
    assert math.isclose(float(texts[0]), 3.4)
    assert not is_published(("3.6", *texts[1:]))
