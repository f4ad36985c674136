"""Sinks of streams. Connectors are imported on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from dagster_jet.connectors.lake import TARGET_FILE_BYTES

if TYPE_CHECKING:
    from dagster_jet.connectors.delta import DeltaSink
    from dagster_jet.connectors.files import FilesSink
    from dagster_jet.connectors.files.formats import Compression, FileFormat
    from dagster_jet.connectors.foreach_epoch import EpochFunction, ForeachEpochSink
    from dagster_jet.connectors.iceberg import IcebergSink
    from dagster_jet.connectors.kafka import HeldKafkaSink, KafkaSink
    from dagster_jet.connectors.maps import MapSink
    from dagster_jet.connectors.sql import HeldSqlSink, SqlSink
    from dagster_jet.connectors.trial import CollectSink, ConsoleSink
    from dagster_jet.core.durations import Duration
    from dagster_jet.core.secret import Secret


def files(
    path: str,
    *,
    format: FileFormat,
    partition_by: str | Sequence[str] = (),
    compression: Compression | None = None,
    max_file_bytes: int | None = None,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    storage_options: Mapping[str, str | float | Secret] | None = None,
    shared: bool = False,
) -> FilesSink:
    """Return a sink that writes files into a folder, exactly once: staged, then committed.

    `_epochs/<epoch>.json` in the folder lists the files of each committed epoch. Readers may move
    or delete listed files only.

    Args:
        path: a folder used by this sink only: local (also as `file:///` URL), or in a bucket:
            `s3://bucket/folder`. A relative path is made absolute when the pipeline is built.
        format: "json" (one object per line), "csv" (with header) or "parquet".
        partition_by: column or columns whose values become folders, `day=2026-07-15/country=FR/`,
            named as Spark and Hive do it; files do not have these columns. Types: text, integers,
            boolean, date. A task writes a file for each partition of an epoch.
        compression: "gzip" or "none" (the default) for JSON and CSV; "snappy" (the default),
            "zstd", "gzip" or "none" for Parquet.
        max_file_bytes: size at which a task ends a file and begins another one. A file is larger by
            the rows written last: at most 8 MiB of them in memory. By default a task writes one
            file per epoch and partition.
        guarantee: guarantee of this sink. With "at-least-once" rows are visible after their epoch
            instead of after the next snapshot, and may be repeated after a restart.
        storage_options: options of a bucket: `region`; `endpoint_url` for a server other than AWS;
            `connect_timeout` and `timeout` in seconds; and `access_key_id`, `secret_access_key` and
            `session_token`, each as `Secret(env=...)`. Those of gcsfs and adlfs for other buckets.
        shared: whether a local folder is the same on every machine of a cluster.

    Raises:
        ConfigurationError: a path, format, guarantee or option is not valid.

    Example:
        >>> hourly = files("/out/hourly", format="parquet", partition_by="day", compression="zstd")
    """
    from dagster_jet.connectors.files import FilesSink
    from dagster_jet.connectors.guarantees import guarantee_named

    return FilesSink(
        str(path),
        format,
        guarantee_named(guarantee),
        tuple((storage_options or {}).items()),
        (partition_by,) if isinstance(partition_by, str) else tuple(partition_by),
        compression,
        max_file_bytes,
        shared,
    )


def delta(
    uri: str,
    *,
    mode: Literal["append", "upsert", "mirror"] = "append",
    key: str | Sequence[str] = (),
    order_by: str | None = None,
    partition_by: str | Sequence[str] = (),
    schema_evolution: Literal["stop", "extend"] = "stop",
    target_file_bytes: int = TARGET_FILE_BYTES,
    min_file_bytes: int | None = None,
    max_delay: Duration | None = None,
    create_table: bool = True,
    owns: Mapping[str, str | int | bool] | None = None,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> DeltaSink:
    """Return a sink that writes to a Delta Lake table, exactly once.

    Tasks write Parquet files into the table's folder. All epochs of a snapshot become one version
    of the table, with a marker in it. Others may read, write and compact the table meanwhile.

    Args:
        uri: the table's folder: local (also as `file:///` URL), or in a bucket:
            `s3://bucket/folder`. A missing table is created at the start, with the rows' columns.
        mode: "append" adds every row. "upsert" inserts a row or updates the row with its key.
            "mirror" applies the changes read by `sources.postgres_changes` in order, to keep a copy
            of that table. Upserts and mirrors run in the job's process: see the page.
        key: column or columns by which rows are found; for all modes except "append". Types: as of
            `partition_by`, and times and bytes.
        order_by: for "upsert": if several rows of an epoch have the same key, the row with the
            highest value of this column is written; by default an arbitrary one.
        partition_by: column or columns by which the table is partitioned; by default those of the
            table. Types: text, integers, boolean, date.
        schema_evolution: what a start does if rows have a column that the table lacks: "stop", or
            "extend" to add it to the table. It is null in the rows that are there.
        target_file_bytes: size at which a task ends a file; it may be larger by some MB. For
            "append" only: a MERGE goes by the table's property `delta.targetFileSize`.
        min_file_bytes: staged rows wait until their files have this size together, and are then
            written together; for "append" only. By default each snapshot commits them.
        max_delay: longest time that they wait, such as "10 minutes"; needed with `min_file_bytes`.
        create_table: whether a start creates a missing table; False: it is refused.
        owns: as for `sql`; for "append" only. Best the columns of `partition_by`: whole files then
            go, and others are rewritten.
        guarantee: as for `files`.
        storage_options: options of a bucket, as for `files`.
        shared: whether a local folder is the same on every machine of a cluster.

    Raises:
        ConfigurationError: the place, an option or a name is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> late = delta("/lake/late_flights", partition_by="day")
    """
    from dagster_jet.connectors.delta import DeltaSink
    from dagster_jet.connectors.guarantees import guarantee_named

    return DeltaSink(
        str(uri),
        mode,
        (key,) if isinstance(key, str) else tuple(key),
        order_by,
        (partition_by,) if isinstance(partition_by, str) else tuple(partition_by),
        guarantee_named(guarantee),
        tuple((storage_options or {}).items()),
        tuple((owns or {}).items()),
        shared,
        schema_evolution=schema_evolution,
        target_file_bytes=target_file_bytes,
        min_file_bytes=min_file_bytes,
        max_delay=max_delay,
        creates_table=create_table,
    )


def iceberg(
    catalog: str,
    table: str,
    *,
    mode: Literal["append", "upsert", "mirror"] = "append",
    key: str | Sequence[str] = (),
    order_by: str | None = None,
    partition_by: str | Sequence[str] = (),
    branch: str = "main",
    catalog_options: Mapping[str, str | Secret] | None = None,
    schema_evolution: Literal["stop", "extend"] = "stop",
    target_file_bytes: int = TARGET_FILE_BYTES,
    min_file_bytes: int | None = None,
    max_delay: Duration | None = None,
    create_table: bool = True,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> IcebergSink:
    """Return a sink that writes to an Iceberg table, exactly once.

    Tasks write Parquet files into the table's folder. All epochs of a snapshot of the job become
    one snapshot of the table, with a marker beside it. Others may read, write and maintain the
    table meanwhile.

    Args:
        catalog: name of the catalog.
        table: namespace and name: "lake.flights". A missing table is created at the start, with the
            rows' columns.
        mode: "append" adds every row. "upsert" inserts a row or updates the row with its key.
            "mirror" applies the changes read by `sources.postgres_changes` in order, to keep a copy
            of that table. Files with a changed row are written anew, large ones in tasks.
        key: column or columns by which rows are found; for all modes except "append": text,
            integers, booleans, dates, times or bytes.
        order_by: as for `delta`.
        partition_by: field or fields by which the table is partitioned: a column, or
            `year(c)`, `month(c)`, `day(c)`, `hour(c)`, `bucket(16, c)`, `truncate(4, c)`. By
            default those of the table.
        branch: of the table; one other than "main" has to exist.
        catalog_options: properties by which `pyiceberg` opens the catalog: `type`, `uri`,
            `warehouse`. By default those of its configuration file.
        schema_evolution: as for `delta`; "extend" widens types, too: int to long, float to double,
            and decimals.
        target_file_bytes: as for `delta`, for all modes.
        min_file_bytes: as for `delta`.
        max_delay: as for `delta`.
        create_table: as for `delta`.
        guarantee: as for `files`.
        storage_options: options of a bucket, as for `files`.
        shared: whether a local folder is the same on every machine of a cluster.

    Raises:
        ConfigurationError: an option or a name is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> place = {"type": "sql", "uri": "sqlite:////lake/c.db", "warehouse": "/lake"}
        >>> late = iceberg("lake", "flights.late", partition_by="day(at)", catalog_options=place)
    """
    from dagster_jet.connectors.guarantees import guarantee_named
    from dagster_jet.connectors.iceberg import IcebergSink
    from dagster_jet.connectors.iceberg.catalog import CatalogPlace

    return IcebergSink(
        CatalogPlace(catalog, tuple((catalog_options or {}).items())),
        table,
        mode,
        (partition_by,) if isinstance(partition_by, str) else tuple(partition_by),
        branch,
        guarantee_named(guarantee),
        tuple((storage_options or {}).items()),
        (key,) if isinstance(key, str) else tuple(key),
        order_by,
        shared=shared,
        schema_evolution=schema_evolution,
        target_file_bytes=target_file_bytes,
        min_file_bytes=min_file_bytes,
        max_delay=max_delay,
        creates_table=create_table,
    )


def map_entries(
    name: str,
    *,
    key: str | Sequence[str],
    value: str | Sequence[str] | None = None,
    order_by: str | None = None,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
) -> MapSink:
    """Return a sink that writes to a map of the job's own store (`jet.map(name)`), exactly once.

    Later epochs overwrite the values of earlier ones. A row whose value is null (all columns, if
    there are several) deletes its key.

    Args:
        name: name of the map. A missing map is created, with JSON values.
        key: the key column (text, integer, boolean, bytes), or several columns for a tuple.
        value: the value column, or several for an object; by default all except the key columns.
        order_by: if several rows of an epoch have the same key, the row with the highest value of
            this column is written; by default an arbitrary one.
        guarantee: as for `files`.

    Raises:
        ConfigurationError: the guarantee is not valid, or no key column is named.

    Example:
        >>> alerts = map_entries("alerts", key="symbol", value="price", order_by="sequence")
    """
    from dagster_jet.connectors.guarantees import guarantee_named
    from dagster_jet.connectors.maps import MapSink

    keys = (key,) if isinstance(key, str) else tuple(key)
    values = value if value is None or isinstance(value, str) else tuple(value)
    return MapSink(name, keys, values, order_by, guarantee_named(guarantee))


def kafka(
    servers: str | Secret,
    *,
    topic: str | None = None,
    topics: Sequence[str] = (),
    topic_column: str | None = None,
    key: str | Sequence[str] = (),
    format: Literal["json", "raw"] = "json",
    headers: str | None = None,
    partition: str | None = None,
    timestamp: str | None = None,
    tombstone: str | None = None,
    transactions: Literal["roll-forward", "held"] = "roll-forward",
    writers: int = 2,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    marker_topic: str = "dagster-jet-markers",
    options: Mapping[str, str | Secret] | None = None,
) -> KafkaSink | HeldKafkaSink:
    """Return a sink that produces messages to a topic, or to several, exactly once.

    Each epoch is one transaction, with a marker in a compacted topic. Consumers with
    ``isolation.level=read_committed`` see each epoch completely and once.

    Args:
        servers: "host:port", or several separated by commas.
        topic: name of the topic, which must exist.
        topics: instead of `topic`: the topics that rows may name, which must exist. An epoch is one
            transaction over all of them. Not with "held".
        topic_column: with `topics`: a string column with the message's topic. A row that names none
            of `topics` is a dead letter, or fails the job.
        key: the key column (text and bytes unchanged, nested types as JSON, others as text), or
            several for a JSON object; by default messages have no key.
        format: "json" (an object of all columns except those of topic, headers, partition,
            timestamp and tombstone) or "raw" (the column ``value``, binary or string).
        headers: a column of type ``map<string,string>`` or ``map<string,binary>``.
        partition: a column with the partition number; by default the key's hash as in Java clients
            (librdkafka's option ``partitioner`` selects another).
        timestamp: a column with the message's time; by default the time of producing.
        tombstone: a boolean column. Where it is true, the message has its key and no value, which
            deletes the key in a compacted topic. JSON values do not have this column.
        transactions: "roll-forward" stages rows in the job's store; the driver produces them in
            phase 2, in one transaction. "held" also produces them in phase 1, in tasks, in
            transactions that stay open until phase 2 commits them. Needs kafka-python.
        writers: number of held transactions per epoch; each becomes visible separately.
        guarantee: with "at-least-once" an epoch is produced at its end and may be repeated.
        marker_topic: compacted topic for markers, created if missing; jobs may share it. Held
            transactions use a second topic with the suffix ``-held``.
        options: settings of librdkafka, as for `sources.kafka`.

    Raises:
        ConfigurationError: an argument is not valid, or a password is written out.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> out = kafka("kafka:9092", topic="hourly_delays", key="origin")
    """
    from dagster_jet.connectors.guarantees import guarantee_named
    from dagster_jet.connectors.kafka import HeldKafkaSink, KafkaSink
    from dagster_jet.connectors.kafka.cluster import Cluster
    from dagster_jet.errors import ConfigurationError

    keys = (key,) if isinstance(key, str) else tuple(key)
    several = tuple(sorted({topics} if isinstance(topics, str) else set(topics)))
    if (topic is None) == (not several) or bool(several) != (topic_column is not None):
        raise ConfigurationError(
            "topic: either topic is needed, or both topics and topic_column.",
            cure='topic="orders", or topics=["orders", "refunds"] and topic_column="kind".',
        )
    sink = KafkaSink(
        Cluster.of(servers, options),
        ", ".join(several) if topic is None else topic,
        keys,
        format,
        headers,
        partition,
        timestamp,
        tombstone,
        marker_topic,
        guarantee_named(guarantee),
        several,
        topic_column,
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
    owns: Mapping[str, str | int | bool] | None = None,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
) -> SqlSink | HeldSqlSink:
    """Return a sink that writes to a database table, exactly once.

    An epoch's rows and its marker are written in one transaction. Markers are in the table
    `dagster_jet_epochs`, which the sink creates beside the table. PostgreSQL gets the rows by
    `COPY`, MariaDB and SQLite by statements; other databases are refused.

    Args:
        url: SQLAlchemy URL of the database; a `Secret(env=...)` if it has a password.
        table: `table` or `schema.table`.
        mode: "append" inserts every row. "upsert" inserts a row or updates the row with its key.
            "delete" deletes the row with its key. "mirror" applies the changes read by
            `sources.postgres_changes` in order, to keep a copy of that table.
        key: column or columns of a unique index that compares exactly; for all modes except
            "append". For "mirror" also the replica identity of the source's table.
        order_by: if several rows of an epoch have the same key, the row with the highest value of
            this column is written; by default an arbitrary one.
        create_table: create a missing table, with the rows' columns and the key as primary key.
        transactions: "roll-forward" stages rows in the job's store and writes them in phase 2.
            "held" writes them in phase 1, in transactions that PostgreSQL or MariaDB keeps prepared
            until phase 2; for "append" only, because prepared rows stay locked.
        writers: number of held transactions per epoch.
        owns: columns and values that only this job's rows have, as in ``{"day": key}`` for the
            pipeline of a partition. What removes the job's output, such as computing a partition
            `anew`, deletes the rows with them. A row with another value fails the job. For "append"
            with "roll-forward" only.
        guarantee: as for `files`.

    Raises:
        ConfigurationError: the URL, mode, key or guarantee is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> results = sql("postgresql://me@host/db", table="results", mode="upsert", key="id")
    """
    from dagster_jet.connectors.guarantees import guarantee_named
    from dagster_jet.connectors.owned_rows import owned_rows
    from dagster_jet.connectors.sql import HeldSqlSink, SqlSink
    from dagster_jet.connectors.sql.place import SqlPlace

    keys = (key,) if isinstance(key, str) else tuple(key)
    place, limit = SqlPlace(url, table), guarantee_named(guarantee)
    if transactions == "roll-forward":
        ours = owned_rows(owns, mode)
        return SqlSink(place, mode, keys, order_by, create_table, limit, ours)
    return HeldSqlSink.of(place, transactions, mode, create_table, writers, limit, owns=owns)


def collect(name: str) -> CollectSink:
    """Return a sink that keeps rows in the memory of the process that runs the job.

    `dagster_jet.testing.collected(name)` returns them as an Arrow table. For tests and notebooks:
    all rows stay in memory and are lost with the process.

    Args:
        name: name of the table; sinks with the same name add to the same table.

    Raises:
        ConfigurationError: the name is empty.

    Example:
        >>> kept = collect("late_flights")
    """
    from dagster_jet.connectors.trial import CollectSink

    return CollectSink(name)


def console(*, num_rows: int = 20) -> ConsoleSink:
    """Return a sink that prints each epoch's rows as a table on the console of the job's process.

    The guarantee is at-least-once: after a crash a table may be printed again.

    Args:
        num_rows: largest number of rows shown per epoch; the title has the total.

    Raises:
        ConfigurationError: `num_rows` is below 0.

    Example:
        >>> shown = console()
    """
    from dagster_jet.connectors.trial import ConsoleSink

    return ConsoleSink(num_rows)


def foreach_epoch(
    function: EpochFunction, *, rows_as: Literal["spark", "arrow"] = "spark"
) -> ForeachEpochSink:
    """Return a sink that calls `function(rows, epoch)` with the rows of each decided epoch.

    For any writer: a warehouse's client, a Spark connector, a REST call. Rows are staged in the
    job's store first. The function is called on the driver, in order of epochs, and never before a
    snapshot has decided the epoch. After a crash it may be called again for the last epoch, with
    the same rows and the same id. So the output is exactly-once if the function does nothing for an
    id that its outside system knows; otherwise at-least-once.

    If the function raises an `OSError` that may pass (a refused connection, a time-out) it is
    called again, with growing pauses. After any other error the job restarts and calls it again.

    Args:
        function: its arguments are the rows, in the columns of the stream, and a text of letters,
            digits and dashes (and the characters of the names of job and sink).
        rows_as: "spark": a Spark DataFrame in a session of its own. "arrow": an Arrow table, which
            costs no Spark job.

    Raises:
        ConfigurationError: `function` cannot be called, or `rows_as` is unknown.

    Example:
        >>> def load(rows, epoch):
        ...     rows.write.mode("overwrite").parquet(f"s3a://lake/orders/{epoch}")
        >>> loaded = foreach_epoch(load)
    """
    from dagster_jet.connectors.foreach_epoch import ForeachEpochSink

    return ForeachEpochSink(function, rows_as)


__all__ = [
    "collect",
    "console",
    "delta",
    "files",
    "foreach_epoch",
    "iceberg",
    "kafka",
    "map_entries",
    "sql",
]
