"""Mutation testing of mathematics, methods and verdicts: changes the code in small ways; does a test notice?

    python tests/mutate.py [--sample N] [NAME ...]          NAME: of a file, such as clip_v

Every mutant is one change of one file, run against the tests of that file in a fork of this
process, so that PyTorch is imported once. A mutant that no test notices is printed: either a test is missing, or the
change makes no difference. Nothing is written to the source.

(mutmut leaves decorated classes and functions alone, which all methods here are; cosmic-ray restarts Python for each
mutant. The Triton kernels are left out: their interpreter takes minutes.)
"""

import argparse
import ast
import importlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "entropy_dynamics"
SOURCE = ROOT / "src" / PACKAGE
TESTS = {  # the quick ones first: a mutant is done with at the first test that fails
    "analysis/envelope": ["envelope", "left"],
    "analysis/scores": ["extra_figures", "tables", "matched"],
    "analysis/statistics": ["statistics", "verdicts"],
    "analysis/verdicts": ["verdicts", "paper_claims", "temperatures", "points", "left"],
    "core/advantages": ["advantages", "critic"],
    "core/dynamics": ["dynamics"],
    "core/groups": ["advantages", "advantage_methods"],
    "core/metrics": ["training_metrics", "lens"],
    "core/objective": ["objective", "critic"],
    "core/tiles": ["second_pass", "token_stats"],
    "core/token_stats": ["token_stats", "second_pass"],
    "methods/__init__": ["method_classes", "methods", "covariance", "baselines", "golden_run"],
    "methods/clip_b": ["methods", "golden_run"],
    "methods/clip_v": ["methods", "golden_run"],
    "methods/common": ["methods", "baselines", "golden_run"],
    "methods/covariance": ["covariance", "methods", "golden_run"],
    "methods/grpo": ["methods", "golden_run"],
    "methods/placebo": ["placebo"],
    "methods/s_star": ["methods", "golden_run"],
    "reporting/published": ["published"],
    "training/critic": ["critic", "training"],
    "training/update": ["skipped_rows", "staleness", "first_order", "covariance", "training", "golden_run"],
}
# Of other papers' methods, those that name the method, and then all_methods.
OF_METHODS = ["baselines", "ratio_methods", "advantage_methods", "weight_methods", "vocabulary_methods", "rft"]
OF_METHODS += ["authors_functions"]
OF_CONFIGS = "defaults_agree"  # slow tests of configs/, not of code
TIMES = 5  # as long as the unchanged code takes, after which a mutant counts as noticed: it hangs
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


def mutants(source: str) -> Iterator[tuple[str, ast.Module]]:
    """Each small change of `source`, in words, and the changed tree, which is valid until the next one is asked for."""
    tree = ast.parse(source)
    for parent in _nodes(tree):
        for field, value in ast.iter_fields(parent):
            if field in NOT_LOOKED_AT:
                continue
            places = value if isinstance(value, list) else [value]
            for index, node in enumerate(places):
                if not isinstance(node, ast.AST) or _is_text(node):
                    continue
                for other in _changed(node):
                    about = f"{node.lineno}: {_short(node)}  ->  {_short(ast.copy_location(other, node))}"
                    if isinstance(value, list):
                        value[index] = other
                    else:
                        setattr(parent, field, other)
                    yield about, ast.fix_missing_locations(tree)
                    if isinstance(value, list):
                        value[index] = node
                    else:
                        setattr(parent, field, node)


def _nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those of types, imports and what is said to the user."""
    for field, value in ast.iter_fields(tree):
        if field in NOT_LOOKED_AT:
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.AST) and not _is_text(node):
                yield from _nodes(node)
    yield tree


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


class Mutated(SourceFileLoader):
    """Loads one module of the package from a changed tree; as a finder it knows no other."""

    def __init__(self, path: Path, tree: ast.Module):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        self.folder = [str(path.parent)] if parts[-1] == "__init__" else None
        super().__init__(".".join(parts[:-1] if self.folder else parts), str(path))
        self.tree = tree

    def get_code(self, fullname):
        return compile(self.tree, self.path, "exec")

    def find_spec(self, fullname, *_):
        if fullname != self.name:
            return None
        return spec_from_file_location(fullname, self.path, loader=self, submodule_search_locations=self.folder)


def noticed(path: Path, tree: ast.Module, tests: list[str], limit: float) -> bool:
    """True if a test fails, or runs for more than `limit` seconds, with `tree` as the content of `path`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.setitimer(signal.ITIMER_PROF, limit)  # of CPU time; nobody handles it, so it ends the process
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            sys.meta_path.insert(0, Mutated(path, tree))
            import pytest

            code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-k", f"not ({OF_CONFIGS})", *tests])
        finally:
            os._exit(int(code))
    return os.waitpid(child, 0)[1] != 0


def preload() -> None:
    """Import what the tests need of other packages; of our own nothing stays, so that a mutant is all there is."""
    from hypothesis import settings

    settings.register_profile("mutants", derandomize=True, database=None)
    settings.load_profile("mutants")
    sys.path[:0] = [str(ROOT / "tests"), str(SOURCE.parent)]
    before = set(sys.modules)
    import jaxtyping
    import torch

    torch.set_num_threads(1)
    jaxtyping.install_import_hook = lambda *_: None  # conftest's would load the module in the place of a mutant
    importlib.import_module("conftest")
    importlib.import_module("test_training")
    import transformers

    for name in ("Qwen2", "Qwen3", "Llama"):
        getattr(transformers, f"{name}ForCausalLM")
    own = {path.stem for path in (ROOT / "tests").rglob("*.py")} | {PACKAGE}
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in own:
            del sys.modules[name]


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
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.chdir(ROOT)
    preload()
    tried = killed = possible = 0
    for name, parts in all_tests().items():
        if options.names and Path(name).name not in options.names and name not in options.names:
            continue
        path = SOURCE / f"{name}.py"
        source, tests = path.read_text(), [str(file_of(part)) for part in parts]
        start = time.perf_counter()
        if noticed(path, ast.parse(source), tests, limit=600):
            sys.exit(f"{name}: its tests fail without any mutant")
        seconds = time.perf_counter() - start
        count = sum(1 for _ in mutants(source))
        chosen = set(range(count))
        if options.sample is not None and options.sample < count:
            chosen = set(random.Random(0).sample(range(count), options.sample))
        print(f"{name}: {len(chosen)} of {count} mutants; its tests take {seconds:.0f} s", flush=True)
        alive = 0
        for number, (about, tree) in enumerate(mutants(source)):
            if number in chosen and not noticed(path, tree, tests, limit=TIMES * seconds + 10):
                print(f"    survives: {path.name}:{about}", flush=True)
                alive += 1
        print(f"    {len(chosen) - alive} are noticed", flush=True)
        possible, tried, killed = possible + count, tried + len(chosen), killed + len(chosen) - alive
    print(f"{killed} of {tried} mutants are noticed, of {possible} that there are")
    return 0


if __name__ == "__main__":
    sys.exit(main())
