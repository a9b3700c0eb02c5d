"""The generators and verifiers of Reasoning Gym.

Some verifiers evaluate an answer as Python; those get no answer that could do harm.
"""

import ast
import inspect
import random
import re
import sys
from functools import lru_cache
from typing import Any

import reasoning_gym  # noqa: F401  # now, as the first answer's time would not suffice

from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks.limited import unlimited
from entropy_dynamics.tasks.reasoning_gym.problems import dataset

_EVALUATES = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(")
_FUNCTIONS = {"sin", "cos", "tan", "exp", "log", "ln", "sqrt", "sinh", "cosh", "tanh", "asin", "acos", "atan", "Abs"}
_LISTS = (ast.Expression, ast.Constant, ast.Load, ast.List, ast.Tuple)
_OPERATIONS = (ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.BoolOp, ast.boolop)
_NODES = (*_LISTS, *_OPERATIONS, ast.Name, ast.Call)
# Or an attribute, as the text of __doc__ has parentheses.
_CALL_OR_STRING = re.compile(r"""[("'\\]|\.\s*[^\W\d]""")


_dataset = lru_cache(maxsize=32)(lambda generator, options, seed: dataset(generator, ast.literal_eval(options), seed))


def check(item: dict[str, Any], question: str, answer: str) -> bool:
    data, entry = _entry(item["generator"], repr(item["options"]), item["seed"], item["index"])
    if entry["question"].strip() != question.strip() or entry["answer"] != item["answer"]:
        raise UserError(
            f"this version of Reasoning Gym generates another problem of {item['generator']} than the file's; recreate "
            "the problems with: entropy-dynamics problems"
        )
    source = inspect.getsource(sys.modules[type(data).__module__])
    if _EVALUATES.search(source) and not harmless(answer):
        return False
    return bool(data.score_answer(answer, entry) >= 1)


def generate(generator: str, options: dict[str, Any], seed: int, index: int) -> dict[str, Any]:
    """An item of a generator: its question, its answer and, where it is a text, the expression that it asks for."""
    _, entry = _entry(generator, repr(options), seed, index)
    expression = entry["metadata"].get("expression")
    asked = {"expression": expression if isinstance(expression, str) else None}
    return {"question": entry["question"].strip(), "answer": entry["answer"]} | asked


@lru_cache(maxsize=4096)
def _entry(generator: str, options: str, seed: int, index: int) -> tuple[Any, dict[str, Any]]:
    with unlimited():  # some items take a minute, and the verifier has its time afterwards
        data = _dataset(generator, options, seed)
        random.seed(seed + index)  # list_functions also draws from the module's own generator
        return data, data[index]


def harmless(answer: str) -> bool:
    """Whether an answer, evaluated as Python or by SymPy, can only compute: it calls nothing but `_FUNCTIONS`.

    SymPy also evaluates the strings in an answer, so each of them must be harmless, and none may be computed.
    """
    try:
        nodes = list(ast.walk(ast.parse(answer.strip(), mode="eval")))
    except (SyntaxError, ValueError):  # a board, or SymPy's notation such as x!
        return not _CALL_OR_STRING.search(answer)
    values = [node.value for node in nodes if isinstance(node, ast.Constant)]
    strings = [value for value in values if isinstance(value, str | bytes)]
    functions = [node.func for node in nodes if isinstance(node, ast.Call)]
    return (
        all(isinstance(node, _LISTS if strings else _NODES) for node in nodes)
        and all(isinstance(function, ast.Name) and function.id in _FUNCTIONS for function in functions)
        and all(isinstance(string, str) and harmless(string) for string in strings)
    )
