"""Import of what users add: methods, tasks and engines."""

import importlib
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from entropy_dynamics.errors import UserError


def modules_of(package: str, *, packages_only: bool = False) -> Iterator[tuple[str, ModuleType]]:
    """Import the modules of a package, one by one, with their names. Raises UserError where the code of one fails."""
    root = sys.modules[package]
    for info in pkgutil.iter_modules(root.__path__):
        if packages_only and not info.ispkg:
            continue
        try:
            module = importlib.import_module(f"{package}.{info.name}")
        except UserError:
            raise
        except Exception as error:
            raise UserError(_mistake(error, Path(info.module_finder.path), info.name)) from error
        yield info.name, module


def _mistake(error: Exception, folder: Path, name: str) -> str:
    """One line: the last line of code in `folder`, other than of the package itself, and Python's message."""
    file, line, message = next(folder.glob(f"{name}.py"), folder / name / "__init__.py"), None, str(error)
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(folder) and path != folder / "__init__.py":
            file, line = path, frame.lineno
    if isinstance(error, SyntaxError):
        file, line, message = Path(error.filename or file), error.lineno, error.msg
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f"{shown}{f', line {line}' if line else ''}: {type(error).__name__}: {next(iter(message.splitlines()), '')}"
