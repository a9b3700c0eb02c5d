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
_NODES = (
    ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Name, ast.Load, ast.List,
    ast.Tuple, ast.Call,
)  # fmt: skip


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
    """Whether an answer, evaluated as Python or by SymPy, can only compute: it calls nothing but `_FUNCTIONS`."""
    if "(" not in answer:
        return True  # nothing is called
    try:
        nodes = list(ast.walk(ast.parse(answer.strip(), mode="eval")))
    except (SyntaxError, ValueError):
        return False
    return all(
        isinstance(node, _NODES)
        and not (isinstance(node, ast.Constant) and isinstance(node.value, str))  # SymPy would evaluate it
        and not (isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS))
        for node in nodes
    )
