"""`package.module:name` on the command line: a pipeline, or a function that makes one."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from dagster_jet.errors import ConfigurationError
from dagster_jet.pipeline import Pipeline


def load_pipeline(reference: str) -> Pipeline:
    """Imports the module (also from the working directory) and returns the pipeline.

    Raises:
        ConfigurationError: there is no such module or name, or it is no pipeline.
    """
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise ConfigurationError(
            f"{reference!r} does not say where a pipeline is.",
            cure="Write package.module:name, for example pipelines.airport_delays:airport_delays.",
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(f"{reference!r} cannot be imported: {error}.") from error
    if callable(found) and not isinstance(found, Pipeline):
        try:
            found = found()
        except TypeError as error:
            raise ConfigurationError(
                f"{reference!r} cannot be called without arguments: {error}.",
                cure="Name a function that needs none, or a Pipeline.",
            ) from error
    if not isinstance(found, Pipeline):
        raise ConfigurationError(f"{reference!r} is a {type(found).__name__}, not a Pipeline.")
    return found
