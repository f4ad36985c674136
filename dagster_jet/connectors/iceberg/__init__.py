"""Iceberg tables as sinks."""

from dagster_jet.connectors.iceberg.sink import IcebergSink

__all__ = ["IcebergSink"]
