"""Iceberg tables as sinks, sources and tables."""

from dagster_jet.connectors.iceberg.iceberg_sink import IcebergSink
from dagster_jet.connectors.iceberg.iceberg_source import IcebergSource
from dagster_jet.connectors.iceberg.iceberg_table import IcebergTable

__all__ = ["IcebergSink", "IcebergSource", "IcebergTable"]
