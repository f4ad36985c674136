"""Exactly-once streaming pipelines on Spark, run and restarted by Dagster.

Importing this package loads neither Spark, Dagster, Arrow nor the store. Names that need them are
loaded at first use, so that Spark executors never import Dagster.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dagster_jet import contract, errors, sinks, sources, tables
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.core.secret import Secret
from dagster_jet.errors import (
    ArtifactLostError,
    BadRowError,
    ConfigurationError,
    ExecutorLostError,
    FencedError,
    InputLostError,
    JetError,
    JobFailedError,
    JobStateError,
    LeaseHeldError,
    MembersChangedError,
    MissingEnvironmentError,
    OutputLostError,
    PipelineError,
    ProcessorError,
    Reaction,
    ReferenceMissingError,
    ResultError,
    RowsRefusedError,
    SinkError,
    SinkMismatchError,
    SinkUnavailableError,
    SnapshotFailedError,
    SnapshotInvalidError,
    SourceError,
    SourceUnavailableError,
    StoreCorruptedError,
    StoreError,
    StoreMismatchError,
    StoreUnavailableError,
    StoreUnwritableError,
    UserFunctionError,
    WriteOutcomeUnknownError,
)
from dagster_jet.operators.user.state import State
from dagster_jet.pipeline import (
    DeadLetterStage,
    JoinedStage,
    KeyedStage,
    LateDeadLetterStage,
    LateStage,
    Pipeline,
    SourceStage,
    Stage,
    WindowedStage,
    Written,
    aggregates,
    windows,
)

if TYPE_CHECKING:
    from dagster_jet import dag, events, testing
    from dagster_jet.exports.export import Export, ExportState
    from dagster_jet.jet import Jet
    from dagster_jet.job_config import JobConfig
    from dagster_jet.jobs.job import Job, JobResult
    from dagster_jet.maps import JetMap, JournalConfig
    from dagster_jet.observe.reading.explanation import Explanation
    from dagster_jet.observe.reading.findings import Finding, FindingKind
    from dagster_jet.observe.reading.profile import JobProfile, PhaseProfile
    from dagster_jet.operators.state_difference import StateDifference
    from dagster_jet.orchestration import (
        DagsterJetTranslator,
        JetPipelineComponent,
        JetResource,
        JetStageData,
        build_jet_asset_checks,
        build_jet_asset_specs,
        build_jet_check_schedule,
        build_jet_control_job,
        build_jet_job,
        build_jet_observation_sensor,
        build_jet_schedule,
        build_jet_snapshot_sensor,
        build_jet_source_assets,
        build_jet_supervisor_sensor,
        jet_assets,
    )
    from dagster_jet.snapshot.manifest import Artifact
    from dagster_jet.snapshot.protocol import StopKind
    from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef, StopCause

__version__ = "0.1.0"

_LOADED_WHEN_USED = {
    "dagster_jet.jet": ("Jet",),
    "dagster_jet.job_config": ("JobConfig",),
    "dagster_jet.observe.reading.explanation": ("Explanation",),
    "dagster_jet.observe.reading.findings": ("Finding", "FindingKind"),
    "dagster_jet.jobs.job": ("Job", "JobResult"),
    "dagster_jet.observe.reading.profile": ("JobProfile", "PhaseProfile"),
    "dagster_jet.maps": ("JetMap", "JournalConfig"),
    "dagster_jet.orchestration": (
        "DagsterJetTranslator",
        "JetPipelineComponent",
        "JetResource",
        "JetStageData",
        "build_jet_asset_checks",
        "build_jet_asset_specs",
        "build_jet_check_schedule",
        "build_jet_control_job",
        "build_jet_job",
        "build_jet_observation_sensor",
        "build_jet_schedule",
        "build_jet_snapshot_sensor",
        "build_jet_source_assets",
        "build_jet_supervisor_sensor",
        "jet_assets",
    ),
    "dagster_jet.operators.state_difference": ("StateDifference",),
    "dagster_jet.exports.export": ("Export", "ExportState"),
    "dagster_jet.snapshot.manifest": ("Artifact",),
    "dagster_jet.snapshot.protocol": ("StopKind",),
    "dagster_jet.snapshot.record": ("ExecutionRecord", "JobStatus", "SnapshotRef", "StopCause"),
}
_MODULE_OF = {name: module for module, names in _LOADED_WHEN_USED.items() for name in names}
_MODULES = ("dag", "events", "testing")


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        return getattr(import_module(_MODULE_OF[name]), name)
    if name in _MODULES:
        return import_module(f"dagster_jet.{name}")
    raise AttributeError(f"module 'dagster_jet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF, *_MODULES})


__all__ = [
    "Artifact",
    "ArtifactLostError",
    "BadRowError",
    "ConfigurationError",
    "DagsterJetTranslator",
    "DeadLetterStage",
    "ExecutionRecord",
    "ExecutorLostError",
    "Explanation",
    "Export",
    "ExportState",
    "FencedError",
    "Finding",
    "FindingKind",
    "Guarantee",
    "InputLostError",
    "Jet",
    "JetError",
    "JetMap",
    "JetPipelineComponent",
    "JetResource",
    "JetStageData",
    "Job",
    "JobConfig",
    "JobFailedError",
    "JobProfile",
    "JobResult",
    "JobStateError",
    "JobStatus",
    "JoinedStage",
    "JournalConfig",
    "KeyedStage",
    "LateDeadLetterStage",
    "LateStage",
    "LeaseHeldError",
    "MembersChangedError",
    "MissingEnvironmentError",
    "OutputLostError",
    "PhaseProfile",
    "Pipeline",
    "PipelineError",
    "ProcessorError",
    "Reaction",
    "ReferenceMissingError",
    "ResultError",
    "RowsRefusedError",
    "Secret",
    "SinkError",
    "SinkMismatchError",
    "SinkUnavailableError",
    "SnapshotFailedError",
    "SnapshotInvalidError",
    "SnapshotRef",
    "SourceError",
    "SourceStage",
    "SourceUnavailableError",
    "Stage",
    "State",
    "StateDifference",
    "StopCause",
    "StopKind",
    "StoreCorruptedError",
    "StoreError",
    "StoreMismatchError",
    "StoreUnavailableError",
    "StoreUnwritableError",
    "UserFunctionError",
    "WindowedStage",
    "WriteOutcomeUnknownError",
    "Written",
    "aggregates",
    "build_jet_asset_checks",
    "build_jet_asset_specs",
    "build_jet_check_schedule",
    "build_jet_control_job",
    "build_jet_job",
    "build_jet_observation_sensor",
    "build_jet_schedule",
    "build_jet_snapshot_sensor",
    "build_jet_source_assets",
    "build_jet_supervisor_sensor",
    "contract",
    "dag",
    "errors",
    "events",
    "jet_assets",
    "sinks",
    "sources",
    "tables",
    "testing",
    "windows",
]
