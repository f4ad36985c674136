"""Where streams go to. A connector is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from dagster_jet.connectors.files import FilesSink
    from dagster_jet.connectors.kafka import HeldKafkaSink, KafkaSink
    from dagster_jet.connectors.maps import MapSink
    from dagster_jet.connectors.sql import HeldSqlSink, SqlSink
    from dagster_jet.connectors.trial import CollectSink, ConsoleSink
    from dagster_jet.core.secret import Secret


def files(
    path: str,
    *,
    format: Literal["json", "csv", "parquet"],
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> FilesSink:
    """Return a sink that writes files into a folder, exactly once: staged first, then committed.

    `_epochs/<epoch>.json` in the folder lists the files of each committed epoch. Readers may move
    or delete the files that are listed, and no others.

    Args:
        path: a folder for this sink alone: local (also as `file:///` URL), or in a bucket:
            `s3://bucket/folder`. A relative path is made absolute when the pipeline is built.
        format: "json" (one object per line), "csv" (with header) or "parquet".
        guarantee: of this sink. With "at-least-once" rows are visible after their epoch, not only
            after the next snapshot, and may appear again after a restart.
        storage_options: of a bucket: `region`; `endpoint_url`, for a server that is not AWS's;
            `connect_timeout` and `timeout` in seconds; and `access_key_id`, `secret_access_key` and
            `session_token`, each as `Secret(env=...)`. Without these boto3 finds the keys.
        shared: a local folder is the same one on every machine of a cluster.

    Raises:
        ConfigurationError: a path, format, guarantee or option is not known.

    Example:
        >>> hourly = files("/out/hourly", format="parquet")
    """
    from dagster_jet.connectors.contract import guarantee_named
    from dagster_jet.connectors.files import FilesSink

    storage = tuple((storage_options or {}).items())
    return FilesSink(str(path), format, guarantee_named(guarantee), storage, shared)


def map(
    name: str,
    *,
    key: str | Sequence[str],
    value: str | Sequence[str] | None = None,
    order_by: str | None = None,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
) -> MapSink:
    """Return a sink that writes to a map of the job's own store (`jet.map(name)`), exactly once.

    Later epochs overwrite the values of earlier ones. A row whose value is null (with several
    columns: all of them) deletes its key.

    Args:
        name: of the map; it is created with JSON values if it does not exist.
        key: the column of the key (text, integer, boolean, bytes), or several for a tuple.
        value: the column of the value, or several for an object; by default all columns except the
            key's.
        order_by: if several rows of an epoch have one key, the row with the highest value of this
            column counts; by default any of them.
        guarantee: as for `files`.

    Raises:
        ConfigurationError: the guarantee is not known, or no key column is named.

    Example:
        >>> alerts = map("alerts", key="symbol", value="price", order_by="sequence")
    """
    from dagster_jet.connectors.contract import guarantee_named
    from dagster_jet.connectors.maps import MapSink

    keys = (key,) if isinstance(key, str) else tuple(key)
    values = value if value is None or isinstance(value, str) else tuple(value)
    return MapSink(name, keys, values, order_by, guarantee_named(guarantee))


def kafka(
    servers: str | Secret,
    *,
    topic: str,
    key: str | Sequence[str] = (),
    value: Literal["json", "raw"] = "json",
    headers: str | None = None,
    partition: str | None = None,
    timestamp: str | None = None,
    transactions: Literal["roll-forward", "held"] = "roll-forward",
    writers: int = 2,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    marker_topic: str = "dagster-jet-markers",
    options: Mapping[str, str | Secret] | None = None,
) -> KafkaSink | HeldKafkaSink:
    """Return a sink that produces messages to a topic, exactly once.

    Each epoch is one transaction, with a marker in a compacted topic: consumers that read committed
    messages only (``isolation.level=read_committed``) see epochs whole, once.

    Args:
        servers: "host:port", or several with commas.
        topic: its name; it exists.
        key: the column of the key (text and bytes as they are, others as text), or several for a
            JSON object; by default messages have none.
        value: "json" (an object of all columns but those of headers, partition and timestamp) or
            "raw" (the column ``value``, binary or string).
        headers: a column of type ``map<string,string>`` or ``map<string,binary>``.
        partition: a column with the number of the partition; by default the key decides, by the
            hash of Java's clients (librdkafka's option ``partitioner`` names another).
        timestamp: a column with the message's time; by default that of producing it.
        transactions: "roll-forward" stages rows in the job's store; the driver produces them in
            phase 2, in one transaction. "held" produces them in phase 1 as well, in tasks, in
            transactions that stay open until phase 2 commits them. Needs kafka-python.
        writers: of held transactions, how many an epoch has; each becomes visible by itself.
        guarantee: with "at-least-once" epochs are produced when they are over, and may come again.
        marker_topic: is created, compacted, if it is not there. All jobs may have the same. Held
            transactions have another one beside it, whose name ends in ``-held``.
        options: librdkafka's settings, as for `sources.kafka`.

    Raises:
        ConfigurationError: an argument is not known, or a password is written out.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> out = kafka("kafka:9092", topic="hourly_delays", key="origin")
    """
    from dagster_jet.connectors.contract import guarantee_named
    from dagster_jet.connectors.kafka import HeldKafkaSink, KafkaSink
    from dagster_jet.connectors.kafka.cluster import Cluster

    keys = (key,) if isinstance(key, str) else tuple(key)
    sink = KafkaSink(
        Cluster.of(servers, options),
        topic,
        keys,
        value,
        headers,
        partition,
        timestamp,
        marker_topic,
        guarantee_named(guarantee),
    )
    return sink if transactions == "roll-forward" else HeldKafkaSink.of(sink, transactions, writers)


def sql(
    url: str | Secret,
    *,
    table: str,
    mode: Literal["append", "upsert", "delete", "mirror"] = "append",
    key: str | Sequence[str] = (),
    order_by: str | None = None,
    create_table: bool = False,
    transactions: Literal["roll-forward", "held"] = "roll-forward",
    writers: int = 2,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
) -> SqlSink | HeldSqlSink:
    """Return a sink that writes a table of a database, exactly once.

    An epoch's rows and its marker are written in one transaction. Markers are in the table
    `dagster_jet_epochs`, which the sink creates beside the table. PostgreSQL gets the rows by
    `COPY`, MariaDB and SQLite by statements; other databases are refused.

    Args:
        url: of the database, as SQLAlchemy takes it; with a password it is a `Secret(env=...)`.
        table: `table` or `schema.table`.
        mode: "append" inserts every row. "upsert" inserts a row or changes the one with its key.
            "delete" deletes the row with its key. "mirror" applies the changes that
            `sources.postgres_changes` reads, in their order: the table becomes as the source's is.
        key: of all but "append", the column or columns of a unique index that compares exactly; of
            "mirror" also the replica identity of the source's table.
        order_by: if several rows of an epoch have one key, the row with the highest value of this
            column counts; by default any of them.
        create_table: a table that is missing is created with the columns of the rows, with the key
            as its primary key.
        transactions: "roll-forward" stages rows in the job's store and writes them in phase 2.
            "held" writes them in phase 1, into transactions that PostgreSQL, or MariaDB, keeps
            prepared until phase 2; for "append" only, because prepared rows stay locked.
        writers: of held transactions, how many an epoch has.
        guarantee: as for `files`.

    Raises:
        ConfigurationError: the URL, the mode, the key or the guarantee is not known.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> results = sql("postgresql://me@host/db", table="results", mode="upsert", key="id")
    """
    from dagster_jet.connectors.contract import guarantee_named
    from dagster_jet.connectors.sql import HeldSqlSink, SqlSink
    from dagster_jet.connectors.sql.place import SqlPlace

    keys = (key,) if isinstance(key, str) else tuple(key)
    place, limit = SqlPlace(url, table), guarantee_named(guarantee)
    if transactions == "roll-forward":
        return SqlSink(place, mode, keys, order_by, create_table, limit)
    return HeldSqlSink.of(place, transactions, mode, create_table, writers, limit)


def collect(name: str) -> CollectSink:
    """Return a sink that keeps rows in the memory of the process that runs the job.

    `dagster_jet.testing.collected(name)` returns them as an Arrow table. For tests and notebooks:
    all rows stay in memory, and end with the process.

    Args:
        name: under which they are kept; sinks of one name add to one table.

    Raises:
        ConfigurationError: the name is empty.

    Example:
        >>> kept = collect("late_flights")
    """
    from dagster_jet.connectors.trial import CollectSink

    return CollectSink(name)


def console(*, rows: int = 20) -> ConsoleSink:
    """Return a sink that prints each epoch's rows as a table where the job runs.

    At least once: after a crash a table may be printed again.

    Args:
        rows: at most so many of an epoch are shown; the title says how many there are.

    Raises:
        ConfigurationError: `rows` is below 0.

    Example:
        >>> shown = console()
    """
    from dagster_jet.connectors.trial import ConsoleSink

    return ConsoleSink(rows)
