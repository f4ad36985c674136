"""Delta Lake tables as sinks and sources."""

from dagster_jet.connectors.delta.delta_sink import DeltaSink
from dagster_jet.connectors.delta.delta_source import DeltaSource

__all__ = ["DeltaSink", "DeltaSource"]
