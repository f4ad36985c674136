"""Iceberg tables as sources and sinks."""

from dagster_jet.connectors.iceberg.iceberg_sink import IcebergSink
from dagster_jet.connectors.iceberg.iceberg_source import IcebergSource

__all__ = ["IcebergSink", "IcebergSource"]
