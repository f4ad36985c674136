"""Exactly-once streaming pipelines on Spark, run and restarted by Dagster.

Importing this package loads none of its modules. Each public name is loaded at its first use, so
that Spark executors never import Dagster. `__init__.pyi` is the only list of the public names.
"""

from __future__ import annotations

import ast
import pkgutil
from importlib import import_module
from typing import Any

__version__ = "0.1.0"


def _modules() -> dict[str, str]:
    """By public name, the module that has it. Reads the stub, also from a zipped package."""
    stub = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or b"")
    imports = (node for node in stub.body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULES = _modules()
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] == __name__:
        return import_module(f"{__name__}.{name}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
