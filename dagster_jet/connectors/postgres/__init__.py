"""PostgreSQL as a source: the changes of tables, from a logical replication slot."""

from dagster_jet.connectors.postgres.changes import ChangesSource

__all__ = ["ChangesSource"]
