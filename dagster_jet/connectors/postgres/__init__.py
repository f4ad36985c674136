"""PostgreSQL as a source: changes of a table, from a logical replication slot."""

from dagster_jet.connectors.postgres.changes import ChangesSource

__all__ = ["ChangesSource"]
