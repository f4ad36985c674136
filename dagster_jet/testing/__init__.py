"""Test kits that users run against their own members, connectors and pipelines."""

from dagster_jet.connectors.trial import collected
from dagster_jet.dag.local import LocalJob, MemorySnapshots, Snapshot
from dagster_jet.testing.check_member import check_member
from dagster_jet.testing.check_sink import check_sink
from dagster_jet.testing.check_source import check_source
from dagster_jet.testing.failpoints import FailPoints
from dagster_jet.testing.run_pipeline import run_pipeline
from dagster_jet.testing.sinks_together import Beside
from dagster_jet.testing.typed_rows import Typed
from dagster_jet.testing.verify_processor import verify_processor

__all__ = [
    "Beside",
    "FailPoints",
    "LocalJob",
    "MemorySnapshots",
    "Snapshot",
    "Typed",
    "check_member",
    "check_sink",
    "check_source",
    "collected",
    "run_pipeline",
    "verify_processor",
]
