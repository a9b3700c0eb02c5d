"""The version of the code of a method, a grader or a generator: after an edit of it, its results are made again.

A version is a hash of the syntax trees of a class and of what it names in its own package, such as its bases and the
functions of `entropy_dynamics.methods` that a method calls. Comments, docstrings, the layout of the text and the places
of modules do not count, and neither does other code.
"""

import ast
import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

BLOCKS = (ast.If, ast.For, ast.While, ast.Try, ast.ExceptHandler, ast.With)
UNCOUNTED = ("ctx", "kind", "level", "module", "type_comment")  # fields of syntax trees without effect, or places


@cache
def first_versions() -> frozenset[str]:
    """The versions of code whose results are those of before versions were recorded; these are no settings."""
    return frozenset(files(__package__).joinpath("first_versions.txt").read_text(encoding="utf-8").split()[1::2])


@cache
def version_of(kind: type, without: tuple[str, ...] = ()) -> str:
    """The version of a class, whose attributes `without` do not count; "" if its module has no file."""
    module, package = kind.__module__, ".".join(kind.__module__.split(".")[:2])
    names = _definitions(module)  # all of them if a class was made by a call
    pending = [(module, name) for name in ([kind.__name__] if kind.__name__ in names else names)]
    counted: dict[tuple[str, str], str] = {}
    while pending:
        if (source := pending.pop()) not in counted:
            counted[source], named = _code(*source, package, without)
            pending += named
    texts = sorted(filter(None, counted.values()))
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16] if texts else ""


@cache
def _code(module: str, name: str, package: str, without: tuple[str, ...]) -> tuple[str, list[tuple[str, str]]]:
    """The definition of a name as text, and what it names in the package."""
    nodes = [_without(node, without) for node in _definitions(module).get(name, [])]
    code = [node for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom)]
    plain = [_plain(node, package) for node in code]
    return json.dumps(plain) if plain else "", [each for node in nodes for each in _named(node, module, name, package)]


@cache
def _definitions(module: str) -> dict[str, list[ast.stmt]]:
    """The statements at the top of a module that bind each of its names; {} if it has no file."""
    found = defaultdict[str, list[ast.stmt]](list)
    try:
        spec = find_spec(module)
    except (ImportError, ValueError):  # no such module; one that has no file, such as __main__ of a notebook
        spec = None
    if spec is None or not spec.has_location or spec.origin is None:
        return found
    for statement in ast.parse(Path(spec.origin).read_bytes()).body:
        for name, node in _bindings(statement):
            found[name] += [node] if node is statement else [node, statement]
        if isinstance(statement, BLOCKS):
            found[""].append(statement)
    return found


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """The names that a statement binds, each with the statement that does so: in a block, such as `try`, one inside."""
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name, node
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
            yield from ((name, node) for name in _targets(node))
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((_bound(alias), node) for alias in aliases)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            pass  # never runs
        case _ if isinstance(node, BLOCKS):
            yield from (each for part in ast.iter_child_nodes(node) for each in _bindings(part))


def _named(node: ast.stmt, module: str, name: str, package: str) -> Iterator[tuple[str, str]]:
    """The modules of the package, and names in them, that the definition of a name mentions."""
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names if _bound(alias) == name]
        own = [imported for imported in modules if imported.startswith(f"{package}.")]
        yield from ((imported, each) for imported in own for each in _definitions(imported))
        return
    if isinstance(node, ast.ImportFrom):
        spec = find_spec(module)
        origin = resolve_name("." * node.level + (node.module or ""), spec.parent if spec else None)
        if origin == package or origin.startswith(f"{package}."):
            original = next(alias.name for alias in node.names if _bound(alias) == name)
            yield origin, original
            yield from ((f"{origin}.{original}", each) for each in _definitions(f"{origin}.{original}"))
        return
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield module, part.id
        elif isinstance(part, ast.Constant) and str(part.value).startswith(f"{package}."):  # run in another process
            yield from ((part.value, each) for each in _definitions(part.value))


def _bound(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [part.id for target in targets if target for part in ast.walk(target) if isinstance(part, ast.Name)]


def _without(node: ast.stmt, names: tuple[str, ...]) -> ast.stmt:
    if not isinstance(node, ast.ClassDef) or not names:
        return node
    kept = [each for each in node.body if not set(names) & set(_targets(each))]
    return ast.ClassDef(**{**dict(ast.iter_fields(node)), "body": kept})


def _plain(value: Any, package: str) -> Any:
    """A syntax tree as lists, the same for every version of Python and wherever the package's modules are."""
    if isinstance(value, list):
        is_text = [isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant) for each in value]  # docstrings
        return [_plain(each, package) for each, left_out in zip(value, is_text, strict=True) if not left_out]
    if not isinstance(value, ast.AST):
        return "a module" if str(value).startswith(f"{package}.") else repr(value)
    fields = [(name, each) for name, each in ast.iter_fields(value) if name not in UNCOUNTED]
    return [type(value).__name__, *([name, _plain(each, package)] for name, each in fields if each not in (None, []))]
