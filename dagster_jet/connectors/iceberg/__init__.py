"""Iceberg tables as sources and sinks."""

from dagster_jet.connectors.iceberg.sink import IcebergSink
from dagster_jet.connectors.iceberg.source import IcebergSource

__all__ = ["IcebergSink", "IcebergSource"]
