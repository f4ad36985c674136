"""Tables of SQL databases: PostgreSQL by psycopg's COPY, any other through SQLAlchemy Core."""

from dagster_jet.connectors.sql.held_sink import HeldSqlSink
from dagster_jet.connectors.sql.sink import SqlSink

__all__ = ["HeldSqlSink", "SqlSink"]
