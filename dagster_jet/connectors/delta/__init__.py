"""Delta Lake tables as sinks, sources and tables."""

from dagster_jet.connectors.delta.delta_sink import DeltaSink
from dagster_jet.connectors.delta.delta_source import DeltaSource
from dagster_jet.connectors.delta.delta_table import DeltaTable

__all__ = ["DeltaSink", "DeltaSource", "DeltaTable"]
