"""SQL tables as sinks and sources: PostgreSQL by psycopg's COPY, others by SQLAlchemy Core."""

from dagster_jet.connectors.sql.held_sink import HeldSqlSink
from dagster_jet.connectors.sql.sql_sink import SqlSink

__all__ = ["HeldSqlSink", "SqlSink"]
