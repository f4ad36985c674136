"""Resolves `package.module:name`, in a command or in YAML, to a pipeline."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from dagster_jet.errors import ConfigurationError
from dagster_jet.pipeline.pipeline import Pipeline


def load_pipeline(reference: str, arguments: Mapping[str, Any] | None = None) -> Pipeline:
    """Imports the module (also from the working directory) and returns the pipeline.

    Args:
        reference: `package.module:name` of a pipeline, or of a function that returns one.
        arguments: arguments of the function.

    Raises:
        ConfigurationError: the module or name does not exist, or is not a pipeline.
    """
    return pipeline_in(*located(reference), arguments)


def located(reference: str) -> tuple[ModuleType, str]:
    """Imports the module of `package.module:name`. Returns the module and the name.

    Raises:
        ConfigurationError: the reference is not valid, or the module cannot be imported.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ConfigurationError(
            f"{reference!r} is not a valid pipeline reference.",
            cure="Write package.module:name, for example flights:airport_delays.",
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(module_name), name
    except ImportError as error:
        cure = None
        is_absent = isinstance(error, ModuleNotFoundError)
        if is_absent and f"{module_name}.".startswith(f"{error.name}."):  # not what it imports
            cure = "Name a module on Python's path or in the working directory, as in flights:all."
        raise ConfigurationError(
            f"{reference!r} cannot be imported: {error}.", cure=cure
        ) from error


def pipeline_in(
    module: ModuleType,
    name: str,
    arguments: Mapping[str, Any] | None = None,
    key: Sequence[str] = (),
) -> Pipeline:
    """Returns the named pipeline of a module, or the result of the named function.

    Args:
        module: the imported module.
        name: name of the pipeline or function.
        arguments: arguments of the function.
        key: its positional arguments.

    Raises:
        ConfigurationError: the name is missing, not a pipeline, or not callable with `arguments`.
    """
    reference = f"{module.__name__}:{name}"
    found: Any = getattr(module, name, None)
    if found is None:
        raise ConfigurationError(f"{reference!r} does not exist: the module has no {name!r}.")
    if callable(found) and not isinstance(found, Pipeline):
        try:
            inspect.signature(found).bind(*key, **(arguments or {}))
        except TypeError as error:
            how = f"with {dict(arguments)}" if arguments else "without arguments"
            raise ConfigurationError(
                f"{reference!r} cannot be called {how}: {error}.",
                cure="Give it all its arguments, or name a Pipeline.",
            ) from error
        found = found(*key, **(arguments or {}))
    elif arguments or key:
        raise ConfigurationError(f"{reference!r} is not a function, so it takes no arguments.")
    if not isinstance(found, Pipeline):
        raise ConfigurationError(f"{reference!r} is a {type(found).__name__}, not a Pipeline.")
    return found
