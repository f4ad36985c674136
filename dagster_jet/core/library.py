"""Packages of extras, which are imported where they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dagster_jet.errors import MissingEnvironmentError


def library(module: str, install: str, needs: str) -> Any:
    """Returns a module of a package that an extra of ours installs.

    Args:
        install: what pip installs: our package with the extra.
        needs: sentence of the error, without a full stop: who needs which package.

    Raises:
        MissingEnvironmentError: the package is not installed; names the extra.
    """
    try:
        return import_module(module)
    except ImportError:
        raise missing(install, needs) from None


def missing(install: str, needs: str) -> MissingEnvironmentError:
    """Returns the error of a package that is not installed."""
    return MissingEnvironmentError(
        f"{needs}.",
        cure=f"Install it with: pip install '{install}', on every executor too.",
    )
