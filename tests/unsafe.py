"""Finds what must not be in this project: calls that run what they read, files that are not what they are called."""

import ast
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import yaml

MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"}
OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list", "send_object_list")
NAMES = {
    *("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "builtins.compile"),
    *("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"),
    *("torch.load", "torch.save", "torch.jit.load", "torch.hub.load", "torch.package.PackageImporter"),
    *(f"torch.distributed.{name}" for name in (*OBJECTS, "recv_object_list")),
    *(f"torch.distributed.checkpoint.FileSystem{end}" for end in ("Reader", "Writer")),
    *("pandas.read_pickle", "numpy.lib.format.read_array"),
    *("yaml.load", "yaml.load_all", "yaml.full_load", "yaml.full_load_all", "yaml.unsafe_load", "yaml.unsafe_load_all"),
    *("yaml.Loader", "yaml.FullLoader", "yaml.UnsafeLoader"),
    *("sympy.sympify", "sympy.parse_expr", "sympy.parsing.sympy_parser.parse_expr"),  # they call eval
}
METHODS = {"to_pickle", "read_pickle"}  # of whatever object
MUST_BE_FALSE = {"shell", "trust_remote_code", "allow_pickle"}
MUST_BE_TRUE = {"weights_only", "use_safetensors"}
NEEDED = {  # without it these pickle
    "torch.distributed.checkpoint.save": "storage_writer",
    "torch.distributed.checkpoint.async_save": "storage_writer",
    "torch.distributed.checkpoint.load": "storage_reader",
}


def unsafe_calls(source: str) -> list[str]:
    """What in Python's `source` can run or unpickle what it reads, as it stands there; [] if nothing does."""
    tree = ast.parse(source)
    names = dict(_imported(tree))

    def full(node: ast.expr) -> str:
        """The dotted name under which `node` is known outside this file."""
        if isinstance(node, ast.Attribute):
            return f"{full(node.value)}.{node.attr}"
        return names.get(node.id, node.id) if isinstance(node, ast.Name) else "()"

    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                bad = any(alias.name.partition(".")[0] in MODULES for alias in node.names)
            case ast.ImportFrom():
                taken = {f"{node.module}.{alias.name}" for alias in node.names}
                bad = (node.module or "").partition(".")[0] in MODULES or bool(taken & NAMES)
            case ast.Name():
                bad = full(node) in NAMES and node.id not in names  # an import of it is found where it stands
            case ast.Attribute():
                bad = full(node) in NAMES or node.attr in METHODS
            case ast.Call():
                given = {keyword.arg for keyword in node.keywords}
                needed = NEEDED.get(full(node.func))
                dynamic = full(node.func) == "importlib.import_module" and node.args
                bad = (needed is not None and needed not in given) or (
                    bool(dynamic) and isinstance(node.args[0], ast.Constant) and node.args[0].value in MODULES
                )
            case ast.keyword(arg=name, value=value) if name in MUST_BE_FALSE | MUST_BE_TRUE:
                bad = not (isinstance(value, ast.Constant) and value.value is (name in MUST_BE_TRUE))
            case _:
                bad = False
        if bad:
            found.append(ast.unparse(node))
    return found


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Every imported name of a file and what it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (first, first)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _text(content: bytes) -> bool:
    content.decode("utf-8")
    return b"\0" not in content


def _each_line(content: bytes) -> bool:
    for line in content.decode("utf-8").splitlines():
        json.loads(line)
    return True


def _safetensors(content: bytes) -> bool:
    size = int.from_bytes(content[:8], "little")
    json.loads(content[8 : 8 + size])
    return True


CONTENT: dict[str, Callable[[bytes], bool]] = {  # by the name's end: whether the content is what the name says
    **dict.fromkeys((".csv", ".md", ".tex", ".html", ".svg", ".log", ".txt", ".jinja"), _text),
    ".json": lambda content: json.loads(content) is not None,
    ".jsonl": _each_line,
    ".yaml": lambda content: yaml.safe_load(content) is not None,
    ".parquet": lambda content: content[:4] == content[-4:] == b"PAR1",
    ".safetensors": _safetensors,
    ".png": lambda content: content.startswith(b"\x89PNG\r\n"),
    ".pdf": lambda content: content.startswith(b"%PDF-"),
}


def unsafe_files(folder: Path) -> list[str]:
    """Files under `folder` of a kind that it should not hold, or whose content is of another kind than their name."""
    found = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        right = CONTENT.get(path.suffix)
        try:
            fine = right is not None and right(path.read_bytes())
        except ValueError:
            fine = False
        if not fine:
            found.append(path.relative_to(folder).as_posix())
    return found
