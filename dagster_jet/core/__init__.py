"""Leaves that everything stands on: partitions, window frames, guarantees, durations, schemas.

Standard library only. What was `dagster_jet.core` before, the processor contract and its runtime,
is `dagster_jet.dag`; its names can be had here for one more version.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    dag = import_module("dagster_jet.dag")  # by name: this is the floor, and may not look up
    if name.startswith("__") or name not in dag.__all__:
        raise AttributeError(f"module 'dagster_jet.core' has no attribute {name!r}")
    warnings.warn(
        f"dagster_jet.core.{name} is dagster_jet.dag.{name}.", DeprecationWarning, stacklevel=2
    )
    return getattr(dag, name)
