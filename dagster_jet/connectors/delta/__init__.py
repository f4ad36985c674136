"""Delta Lake tables as sinks."""

from dagster_jet.connectors.delta.sink import DeltaSink

__all__ = ["DeltaSink"]
