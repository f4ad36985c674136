"""Delta Lake tables as sinks and sources."""

from dagster_jet.connectors.delta.sink import DeltaSink
from dagster_jet.connectors.delta.source import DeltaSource

__all__ = ["DeltaSink", "DeltaSource"]
