"""Mutation testing of mathematics, methods and verdicts: changes the code in small ways; does a test notice?

    python tests/mutate.py [--sample N] [--quick S] [NAME ...]          NAME: of a file, such as clip_v

A mutant is one change of one file. The tests of the file run once, and the lines that each reaches are recorded. The
tests that reach the changed line then run in a fork, the quick ones first, until one fails. A mutant that no test
notices is printed: either a test is missing, or the change makes no difference. Nothing is written to the source.

What a test module makes when it is imported, or a test in another process, is that of the unchanged code.

(mutmut leaves decorated classes and functions alone, which all methods here are; cosmic-ray restarts Python for each
mutant. The Triton kernels are left out: their interpreter takes minutes.)
"""

import argparse
import ast
import importlib
import math
import os
import pickle
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import hypothesis
import jaxtyping
import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "entropy_dynamics"
SOURCE = ROOT / "src" / PACKAGE
TESTS = {  # the quick ones first: a mutant is done with at the first test that fails
    "analysis/curve_claims": ["verdicts", "paper_claims"],
    "analysis/envelope": ["envelope", "left"],
    "analysis/finding": ["verdicts", "paper_claims", "temperatures", "points", "left"],
    "analysis/score_claims": ["verdicts", "paper_claims", "temperatures", "points", "left"],
    "analysis/scores": ["scores", "extra_figures", "tables", "matched"],
    "analysis/statistics": ["statistics"],
    "analysis/verdicts": ["verdicts", "paper_claims"],
    "core/advantages": ["advantages", "critic"],
    "core/dynamics": ["dynamics"],
    "core/groups": ["advantages", "advantage_methods"],
    "core/metrics": ["training_metrics", "lens"],
    "core/objective": ["objective", "critic"],
    "core/tiles": ["second_pass", "token_stats"],
    "core/token_gradients": ["token_stats", "second_pass"],
    "core/token_stats": ["token_stats", "second_pass"],
    "core/token_sums": ["token_stats", "second_pass"],
    "methods/__init__": ["method_classes", "methods", "baselines", "golden_run"],
    "methods/clip_b": ["methods", "golden_run"],
    "methods/clip_v": ["methods", "golden_run"],
    "methods/common": ["methods", "baselines", "golden_run"],
    "methods/covariance": ["baselines", "authors_functions", "methods", "golden_run"],
    "methods/grpo": ["methods", "golden_run"],
    "methods/placebo": ["placebo"],
    "methods/s_star": ["methods", "golden_run"],
    "publishing/restore": ["published", "restored_seeds"],
    "training/critic": ["critic", "training"],
    "training/update": [
        "staleness",
        "first_order",
        "baselines",
        "training_metrics",
        "loss_methods",
        "training",
        "golden_run",
    ],
}
# Of other papers' methods, those that name the method, and then all_methods.
OF_METHODS = ["baselines", "loss_methods", "advantage_methods", "vocabulary_methods", "authors_functions"]
OF_CONFIGS = "defaults_agree"  # slow tests of configs/, not of code
TIMES, SECONDS = 5, 10  # a test that takes TIMES as long as without a mutant, and SECONDS, hangs: it notices
COMPARISONS = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
NAMES = {"min": "max", "floor": "ceil", "amin": "amax", "clamp_min": "clamp_max", "clamp_min_": "clamp_max_"}
NAMES |= {"minimum": "maximum", "mean": "sum", "zeros_like": "ones_like", "new_zeros": "new_ones", "any": "all"}
NAMES |= {other: name for name, other in NAMES.items()}
NOT_LOOKED_AT = ("annotation", "returns", "decorator_list", "type_params")  # fields of a node


# ---------------------------------------------------------------- mutants


def mutants(source: str) -> Iterator[tuple[str, range | None, ast.Module]]:
    """Each small change of `source`, its lines, and the changed tree, which is valid until the next one is asked for.

    The lines are those of the statement, or of its head; None outside functions, whose lines run on import only.
    """
    tree = ast.parse(source)
    statements = [node for node in ast.walk(tree) if isinstance(node, ast.stmt)]
    for node, put in _nodes(tree):
        for other in _changed(node):
            about = f"{node.lineno}: {_short(node)}  ->  {_short(ast.copy_location(other, node))}"
            put(other)
            yield about, _lines(statements, node.lineno), ast.fix_missing_locations(tree)
            put(node)


def _lines(statements: list[ast.stmt], line: int) -> range | None:
    around = [one for one in statements if one.lineno <= line <= one.end_lineno]
    if not any(isinstance(one, ast.FunctionDef) for one in around):
        return None
    inner = around[-1]  # ast.walk goes down
    body = getattr(inner, "body", None)
    return range(inner.lineno, max(inner.lineno + 1, body[0].lineno) if body else inner.end_lineno + 1)


def _nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, Callable[[ast.AST], None]]]:
    """All nodes but those of types, imports and what is said to the user.

    And, for each, what puts another in its place.
    """
    for field, value in ast.iter_fields(tree):
        if field in NOT_LOOKED_AT:
            continue
        for index, node in enumerate(value if isinstance(value, list) else [value]):
            if isinstance(node, ast.AST) and not _is_text(node):
                yield from _nodes(node)
                put = partial(setattr, tree, field)
                if isinstance(value, list):
                    put = partial(value.__setitem__, index)
                yield node, put


def _is_text(node: ast.AST) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    words = isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value
    said = isinstance(node, ast.Call) and ast.unparse(node.func) == "warnings.warn"
    return docstring or words or said or isinstance(node, ast.Import | ast.ImportFrom | ast.Raise | ast.JoinedStr)


def _short(node: ast.AST) -> str:
    text = ast.unparse(node).split("\n")[0]
    return text if len(text) <= 70 else text[:67] + "..."


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """Mutants of `node`."""
    match node:
        case ast.Compare(left=left, ops=[operator], comparators=right):
            for other in COMPARISONS[type(operator)]:
                yield ast.Compare(left, [other()], right)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in OPERATORS:
            yield ast.BinOp(left, OPERATORS[type(operator)](), right)
        case ast.UnaryOp(operand=operand):  # -x, ~x, not x
            yield operand
        case ast.BoolOp(op=operator, values=values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=str(value)):
            yield ast.Constant(value + "x")
        case ast.If(test=test, body=body, orelse=orelse) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Call(func=function, args=arguments, keywords=keywords):
            if isinstance(function, ast.Attribute) and not arguments and not keywords:
                yield function.value  # x.detach(), x.double()
            for keyword in keywords:
                if keyword.arg is not None:
                    yield ast.Call(function, arguments, [one for one in keywords if one is not keyword])
        case ast.Attribute(value=value, attr=name, ctx=context) if name in NAMES:
            yield ast.Attribute(value, NAMES[name], context)
        case ast.Name(id=name, ctx=ast.Load()) if name in NAMES:
            yield ast.Name(NAMES[name], ast.Load())
        case ast.AugAssign(target=target, value=value):
            yield ast.Assign([target], value)
        case ast.Expr():
            yield ast.Pass()


# ---------------------------------------------------------------- running them


class Mutants:
    """Plugin of pytest: runs each test once, and then, for every mutant of some files, those that reach it."""

    def __init__(self, names: list[str], sample: int | None, quick: float):
        self.names, self.sample, self.quick = names, sample, quick
        self.paths = {str(SOURCE / f"{name}.py") for name in names}
        self.lines: dict[pytest.Item, set[tuple[str, int]]] = {}  # that a test reaches; quick tests first
        self.costs: dict[pytest.Item, float] = {}  # seconds of CPU time
        self.counts = [0, 0, 0]  # mutants noticed, tried, and that there are
        self.out = os.fdopen(os.dup(1), "w")
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what pytest says

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session) -> bool:
        self.items = session.items
        found = zip(self.items, forked(lambda: [self._traced(item) for item in self.items]), strict=True)
        for item, (lines, self.costs[item]) in sorted(found, key=lambda of: of[1][1]):
            if lines is None:
                self._say(f"{item.nodeid} fails without any mutant and is left out")
            elif self.costs[item] < self.quick:
                self.lines[item] = lines
        for name in self.names:
            self._file(SOURCE / f"{name}.py")
        self._say("{} of {} mutants are noticed, of {} that there are".format(*self.counts))
        return True

    def _say(self, line: str) -> None:
        print(line, file=self.out, flush=True)

    def _traced(self, item: pytest.Item) -> tuple[set[tuple[str, int]] | None, float]:
        """The lines of the files that a test reaches, None if it fails, and its seconds of CPU time."""
        reached = set()

        def trace(frame: FrameType, *_) -> Any:
            if frame.f_code.co_filename not in self.paths:
                return None
            reached.add((frame.f_code.co_filename, frame.f_lineno))
            return trace

        start = time.process_time()
        sys.settrace(trace)
        failed = self._fails(item)
        sys.settrace(None)
        return None if failed else reached, time.process_time() - start

    def _fails(self, item: pytest.Item) -> bool:
        item.session._setupstate.teardown_exact(item)
        before = item.session.testsfailed
        other = next((one for one in self.items if one is not item), None)  # keeps what session fixtures made
        item.ihook.pytest_runtest_protocol(item=item, nextitem=other)
        return item.session.testsfailed > before

    def _file(self, path: Path) -> None:
        """Try the mutants of a file."""
        name = path.relative_to(SOURCE.parent).with_suffix("").as_posix().removesuffix("/__init__")
        module = importlib.import_module(name.replace("/", "."))
        source, start = path.read_text(), time.perf_counter()
        of_file = {item: {line for file, line in of if file == str(path)} for item, of in self.lines.items()}
        quick = [item for item, lines in of_file.items() if lines and self.costs[item] < 1]
        if self._notices(quick, module, ast.parse(source)):
            self._say(f"{name}: a test fails with the same code compiled again")
            return
        count = sum(1 for _ in mutants(source))
        chosen = set(range(count))
        if self.sample is not None and self.sample < count:
            chosen = set(random.Random(0).sample(range(count), self.sample))
        self._say(f"{name}: {len(chosen)} of {count} mutants")
        noticed = 0
        for number, (about, where, tree) in enumerate(mutants(source)):
            if number not in chosen:
                continue
            items = [item for item, lines in of_file.items() if lines and (where is None or lines.intersection(where))]
            if self._notices(items, module, tree):
                noticed += 1
            else:
                self._say(f"    survives{'' if items else ', reached by no test'}: {path.name}:{about}")
        self._say(f"    {noticed} are noticed, in {time.perf_counter() - start:.0f} s")
        self.counts = [old + new for old, new in zip(self.counts, (noticed, len(chosen), count), strict=True)]

    def _notices(self, items: list[pytest.Item], module: ModuleType, tree: ast.Module) -> bool:
        def survives() -> bool:
            become(module, compile(tree, module.__file__, "exec"))
            for item in items:
                # Of CPU time; nobody handles the signal, so it ends the process.
                signal.setitimer(signal.ITIMER_PROF, TIMES * self.costs[item] + SECONDS)
                if self._fails(item):
                    return False
            return True

        return not forked(survives)


def forked(work: Callable[[], Any]) -> Any:
    """What `work` returns in a fork of this process, where PyTorch allows backward passes; None if it dies."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            Path(f"/dev/fd/{write}").write_bytes(pickle.dumps(work()))
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as end:
        content = end.read()
    os.waitpid(child, 0)
    return pickle.loads(content) if content else None


def become(module: ModuleType, code: CodeType) -> None:
    """Let an imported module be what `code` makes, also where other modules already have its functions or constants."""
    exec(code, made := {"__name__": module.__name__, "__spec__": module.__spec__})
    folders = str(SOURCE), str(ROOT / "tests")
    own = [one for one in sys.modules.values() if (getattr(one, "__file__", None) or "").startswith(folders)]
    for name, new in made.items():
        old = vars(module).get(name)
        if isinstance(new, int | float | str | tuple | list | dict | set | frozenset | partial | None) and new != old:
            for one in own:
                if one is module or vars(one).get(name) is old:
                    setattr(one, name, new)
        elif getattr(old, "__module__", None) == module.__name__:
            _renew(old, new)
    for one in own:
        for value in list(vars(one).values()):
            if str(getattr(value, "__module__", "")).startswith(PACKAGE) and hasattr(value, "cache_clear"):
                value.cache_clear()


def _renew(old: Any, new: Any) -> None:
    """Let a function or a class do what another does."""
    for inner in ("fget", "func", "__func__", "__wrapped__"):
        if hasattr(old, inner) and hasattr(new, inner):
            _renew(getattr(old, inner), getattr(new, inner))
    if isinstance(old, FunctionType) and isinstance(new, FunctionType):
        old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
    elif isinstance(old, type):
        for name, value in vars(new).items():
            if isinstance(value, int | float | str | tuple | dict) and not name.startswith("_"):
                setattr(old, name, value)
            elif name in vars(old) and not isinstance(value, type):
                _renew(vars(old)[name], value)


def file_of(part: str) -> Path:
    return next((ROOT / "tests").rglob(f"test_{part}.py"))


def all_tests() -> dict[str, list[str]]:
    """TESTS, and those of every other method."""
    texts = {part: file_of(part).read_text() for part in OF_METHODS}
    found = dict(TESTS)
    for path in sorted((SOURCE / "methods").rglob("*.py")):
        naming = [part for part, text in texts.items() if f'"{path.stem}' in text]
        name = path.relative_to(SOURCE).with_suffix("").as_posix()
        found.setdefault(name, [*naming, "all_methods"])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="files, such as clip_v (default: all)")
    parser.add_argument("--sample", type=int, metavar="N", help="of each file only N mutants, always the same ones")
    parser.add_argument("--quick", type=float, default=math.inf, metavar="S", help="without tests of S seconds or more")
    options, tests = parser.parse_args(), all_tests()
    names = [name for name in tests if not options.names or {Path(name).name, name} & set(options.names)]
    files = sorted({str(file_of(part)) for name in names for part in tests[name]})
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None)
    hypothesis.settings.load_profile("mutants")
    jaxtyping.install_import_hook = lambda *_: None  # its wrappers would hide the functions
    with tempfile.TemporaryDirectory() as folder:
        fixed = ["-p", "no:cacheprovider", f"--basetemp={folder}/tests", "-k", f"not ({OF_CONFIGS})"]
        return int(pytest.main([*fixed, *files], plugins=[Mutants(names, options.sample, options.quick)]))


if __name__ == "__main__":
    sys.exit(main())
