r"""Problems stated in words and LaTeX: a normal form, near duplicates by the overlap of n-grams, instructions.

Two texts overlap by the fraction of the shorter one's n-grams that the other one has. Problems of one template differ
in their numbers: a near duplicate also has the shorter text's numbers, in their order, and its capitalized words.
"""

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from entropy_dynamics.tasks import Task

WORDS = 6  # length of the n-grams
REPORTED = 0.3  # smallest overlap that is reported

_TOKEN = re.compile(
    r"\^\s*(?:\\circ|\{\s*\\circ\s*\}) | \\[A-Za-z]+ | \\. | `` | '' | \.\.\."
    r" | [0-9]+(?:(?:,|\{,\}|,\\!|\\,)[0-9]{3}(?![0-9]))* | [^\W\d_]+ | \S",
    re.VERBOSE,
)
_DIGIT_ARGUMENT = re.compile(r"(\\[dtc]?frac|\\sqrt)\s*([0-9])(?=\s*[0-9{\\])")  # \frac12 is \frac{1}{2}
# 10² is 10^{2}, not 102, and 3½ is 3 1/2, not 31/2: NFKC would join the digits.
_SCRIPTS = (("[⁰¹²³⁴-⁹⁺-⁾ⁱⁿ]+", r"^{\g<0>}"), ("[₀-₎]+", r"_{\g<0>}"), ("[¼-¾⅐-⅞]", r" \g<0>"))
_SAME = {
    written: meant
    for meant, others in {
        r"\frac": r"\dfrac \tfrac \cfrac",
        r"\dots": r"\ldots \cdots \dotsc \dotsb \dotsm ...",
        r"\leq": r"\le \leqslant ≤",
        r"\geq": r"\ge \geqslant ≥",
        r"\neq": r"\ne ≠",
        r"\times": "×",
        r"\cdot": "·",
        r"\pi": "π",
        "|": r"\vert \lvert \rvert \mid",
        "-": "− – — ‐",
        "*": r"∗ \ast",
        "°": r"\degree",
        "'": "’ ‘ `",
        '"': "“ ” `` ''",
    }.items()
    for written in others.split()
}
_COMMANDS = (
    r"$ ~ \$ \( \) \[ \] \\ \, \; \: \! \left \right \big \quad \qquad \displaystyle \limits \text \textbf \textit"
    r" \emph \mathrm \mathbf \mbox \bf \rm"
)
_LAYOUT = {"\\ ", "\\\n", *_COMMANDS.split()}
_MARKS = {*"{}()[].,;:!?'\"^_°", r"\{", r"\}"}
_NUMERALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty"
)
_NUMBERS = {word: str(number) for number, word in enumerate(_NUMERALS.split())}
_INSTRUCTION = r"""
    Solve\ the\ following\ math\ problem\ step\ by\ step\.
    | The\ last\ line\ of\ your\ response\ should\ be\ of\ the\ form\ .{0,3}Answer:\ .{1,20}\(without\ quotes\)
      \ where\ \$?Answer\ is\ the\ answer\ to\ the\ problem\.
    | Remember\ to\ put\ your\ answer\ on\ its\ own\ line\ after\ .?Answer:.?\.?
    | (?:(?:Please|Let's)\ )?(?:reason|think)\ step\ by\ step,?
      (?:\ and\ (?:put|output|give|write|present)\ (?:your|the)\ final\ answer\ (?:with)?in\ \\boxed\s?\{\s*\})?\.?
    | (?:Please\ )?(?:put|output|give|write|present)\ (?:your|the)\ final\ answer\ (?:with)?in\ \\boxed\s?\{\s*\}\.?
""".replace(r"\ ", r"\s+")
_MARKER = r"<[|｜]\w+[|｜]> | <(?:start|end)_of_turn> | \[/?INST\] | \#\#\#\ (?:Instruction|Question|Response|Answer):"
_BEFORE = re.compile(
    rf"\A(?:{_INSTRUCTION} | (?:{_MARKER})(?:user\b)?(?!system) | user\s*\n"
    r" | (?:User|Human|Question|Problem|Q)\s*:)\s*",
    re.X | re.I,
)
_AFTER = re.compile(
    rf"(?:(?-i:(?=[A-Z]|please|let's))(?:{_INSTRUCTION}) | (?:{_MARKER})(?:assistant|model)?"
    r" | \n(?:assistant:?|(?:Assistant|Answer|Solution|A)\s*:))\Z",
    re.X | re.I,
)
_ASKS = re.compile(
    rf"\\boxed | \banswer\s*: | step\ by\ step | final\ answer\ (?:(?:with)?in|after)\b | </?(?:answer|think)>"
    rf" | \b(?:user|assistant): | {_MARKER}",
    re.X | re.I,
)


@lru_cache(maxsize=1 << 16)  # the original DAPO-Math-17k repeats each text a hundred times
def without_instructions(text: str) -> str:
    """The text without the usual instructions on the answer format, and chat markers, before and after it."""
    shorter, longer = text.strip(), ""
    while shorter != longer:
        longer, shorter = shorter, _AFTER.sub("", _BEFORE.sub("", shorter)).rstrip()
    return shorter if shorter != text.strip() else text


def asks_for_format(text: str) -> bool:
    """Whether a text seems to contain an instruction on the answer format."""
    return _ASKS.search(text) is not None


@lru_cache(maxsize=1 << 16)
def normal_form(text: str) -> str:
    """The tokens of a text, separated by blanks: equal for texts that differ in case, blanks, layout or LaTeX dialect.

    A closing period and braces around a single token do not count either.
    """
    tokens = _tokens(text)
    for place in range(len(tokens) - 2):
        if tokens[place] == "{" and tokens[place + 2] == "}":
            tokens[place] = tokens[place + 2] = ""
    while tokens and tokens[-1] in ".?!:":
        tokens.pop()
    return " ".join(token for token in tokens if token).casefold()


def _tokens(text: str) -> list[str]:
    for script, meant in _SCRIPTS:
        text = re.sub(script, meant, text)
    text = _DIGIT_ARGUMENT.sub(r"\1{\2}", unicodedata.normalize("NFKC", text))
    tokens = ["°" if token[0] == "^" != token else _SAME.get(token.casefold(), token) for token in _TOKEN.findall(text)]
    return [
        re.sub(r"\D", "", token) if token[0].isdecimal() else token
        for token in tokens
        if token.casefold() not in _LAYOUT
    ]


class StatedInWords(Task):
    """A task whose problems are texts in words and LaTeX, as people write them."""

    strip_instructions = staticmethod(without_instructions)
    key = staticmethod(normal_form)


class Statement(NamedTuple):
    words: frozenset[str]
    numbers: tuple[str, ...]
    names: frozenset[str]
    """Words in capitals."""
    grams: frozenset[tuple[str, ...]]

    def within(self, other: "Statement") -> bool:
        """Whether the other text has the numbers of this one, in their order, and its capitalized words."""
        rest = iter(other.numbers)
        return all(number in rest for number in self.numbers) and self.names <= other.words


def statement(text: str) -> Statement:
    tokens = [token for token in _tokens(text) if token not in _MARKS]
    words = [_NUMBERS.get(token.casefold(), token.casefold()) for token in tokens]
    names = (token.casefold() for token in tokens if len(token) > 1 and token.isupper())
    grams = (tuple(words[start : start + WORDS]) for start in range(max(1, len(words) - WORDS + 1)))
    return Statement(frozenset(words), tuple(filter(str.isdecimal, words)), frozenset(names), frozenset(grams))


class Statements:
    """Texts among which near duplicates of others are found."""

    def __init__(self, texts: Iterable[str]):
        self.statements = [statement(text) for text in texts]
        self.places: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place, each in enumerate(self.statements):
            for gram in each.grams:
                self.places[gram].append(place)

    def nearest(self, text: str) -> tuple[int, float]:
        """Index and overlap of the text with the largest one among those that have the same numbers; 0, 0.0 if none."""
        own = statement(text)
        shared = Counter(place for gram in own.grams for place in self.places.get(gram, ()))
        best = (0, 0.0)
        for place, count in sorted(shared.items()):  # the first of equal ones, whatever the hashes
            shorter, longer = sorted((own, self.statements[place]), key=lambda each: len(each.grams))
            overlap = count / len(shorter.grams)
            if overlap > best[1] and shorter.within(longer):
                best = (place, overlap)
        return best
