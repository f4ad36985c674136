"""Sources of streams. Connectors are imported on demand."""

from dagster_jet.sources.batches import from_batches
from dagster_jet.sources.brokers import kafka, rabbitmq, sqs
from dagster_jet.sources.databases import postgres_changes, sql
from dagster_jet.sources.folders import delta, files, iceberg
from dagster_jet.sources.generated import items, nexmark, sequence
from dagster_jet.sources.jet_maps import map_entries, map_journal

__all__ = [
    "delta",
    "files",
    "from_batches",
    "iceberg",
    "items",
    "kafka",
    "map_entries",
    "map_journal",
    "nexmark",
    "postgres_changes",
    "rabbitmq",
    "sequence",
    "sql",
    "sqs",
]
