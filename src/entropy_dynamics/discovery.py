"""Import of what users add: methods, tasks and engines."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator
from types import ModuleType


def modules_of(package: str, *, packages_only: bool = False) -> Iterator[tuple[str, ModuleType]]:
    """Import the modules of a package, one by one, with their names."""
    for info in pkgutil.iter_modules(sys.modules[package].__path__):
        if info.ispkg or not packages_only:
            yield info.name, importlib.import_module(f"{package}.{info.name}")
