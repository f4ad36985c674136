"""Exactly-once streaming pipelines on Spark, run and restarted by Dagster.

What users write is light: importing this package loads neither Spark nor Dagster. Names that need
them are loaded when they are first used, so that Spark executors never import Dagster.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dagster_jet.pipeline import Pipeline, Stage, aggregates, windows

__version__ = "0.1.0"

_LAZY = {
    "DagsterJetTranslator": "dagster_jet.orchestration",
    "Jet": "dagster_jet.jet",
    "JetResource": "dagster_jet.orchestration",
    "JetMap": "dagster_jet.maps",
    "Job": "dagster_jet.job",
    "JobConfig": "dagster_jet.engine.config",
    "JobResult": "dagster_jet.job",
    "JournalConfig": "dagster_jet.maps",
    "Secret": "dagster_jet.store",
    "State": "dagster_jet.processors.user_state",
    "build_jet_asset_specs": "dagster_jet.orchestration",
    "build_jet_job": "dagster_jet.orchestration",
    "build_jet_source_assets": "dagster_jet.orchestration",
    "build_jet_supervisor_sensor": "dagster_jet.orchestration",
    "jet_assets": "dagster_jet.orchestration",
}
_LAZY_MODULES = ("sinks", "sources", "testing")

if TYPE_CHECKING:
    from dagster_jet import sinks, sources
    from dagster_jet.engine.config import JobConfig
    from dagster_jet.jet import Jet
    from dagster_jet.job import Job, JobResult
    from dagster_jet.maps import JetMap, JournalConfig
    from dagster_jet.orchestration import (
        DagsterJetTranslator,
        JetResource,
        build_jet_asset_specs,
        build_jet_job,
        build_jet_source_assets,
        build_jet_supervisor_sensor,
        jet_assets,
    )
    from dagster_jet.processors.user_state import State
    from dagster_jet.store import Secret


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _LAZY_MODULES:
        return import_module(f"dagster_jet.{name}")
    raise AttributeError(f"module 'dagster_jet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_LAZY_MODULES})


__all__ = [
    "DagsterJetTranslator",
    "Jet",
    "JetMap",
    "JetResource",
    "Job",
    "JobConfig",
    "JobResult",
    "JournalConfig",
    "Pipeline",
    "Secret",
    "Stage",
    "State",
    "aggregates",
    "build_jet_asset_specs",
    "build_jet_job",
    "build_jet_source_assets",
    "build_jet_supervisor_sensor",
    "jet_assets",
    "sinks",
    "sources",
    "windows",
]
