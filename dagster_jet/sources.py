"""Sources of streams. Connectors are imported on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from dagster_jet.core.asset_key import asset_path

if TYPE_CHECKING:
    from dagster_jet.connectors.delta import DeltaSource
    from dagster_jet.connectors.files import FilesSource
    from dagster_jet.connectors.files.formats import FileFormat
    from dagster_jet.connectors.generated.items import ItemsSource
    from dagster_jet.connectors.generated.nexmark.source import NexmarkSource
    from dagster_jet.connectors.generated.sequence import SequenceSource
    from dagster_jet.connectors.iceberg import IcebergSource
    from dagster_jet.connectors.kafka import KafkaSource
    from dagster_jet.connectors.maps import MapEntriesSource, MapJournalSource
    from dagster_jet.connectors.postgres import ChangesSource
    from dagster_jet.connectors.rabbitmq import RabbitSource
    from dagster_jet.connectors.sql.table_rows import TableRowsSource
    from dagster_jet.connectors.sqs import SqsSource
    from dagster_jet.core.durations import Duration
    from dagster_jet.core.secret import Secret


def files(
    path: str,
    *,
    format: FileFormat,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    asset: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
    remember: Duration = "7 days",
    max_file_age: Duration | None = None,
) -> FilesSource:
    """Return a source that reads the complete files of a folder, by modification time, then name.

    A file must be complete when it appears: write it elsewhere on the file system, then rename it.

    Args:
        path: a folder, or a glob pattern: local (also as `file:///` URL), or in a bucket:
            `s3://bucket/folder`. A relative path is made absolute when the pipeline is built. Files
            that were read are identified by their absolute paths.
        format: "json" (lines of objects), "csv" or "parquet".
        schema: column names and types as DDL: "id long, at timestamp". The header of a CSV file
            must have these names in this order, unless `options` say otherwise
            (``{"enforceSchema": "true"}``: by position). Optional for Parquet: the first file found
            at the start defines it, and all others must match.
        options: options of Spark's reader, for example ``{"header": "true"}``.
        asset: the key of the Dagster asset that writes these files ("raw/flights"), for lineage.
        storage_options: options of a bucket, as for `sinks.files`.
        shared: whether a local folder is the same on every machine of a cluster.
        remember: how long a file is remembered after it was read and has disappeared. During that
            time it is not read again if it comes back. A new file that is as old as forgotten files
            fails the job, because it may have been read before.
        max_file_age: for folders from which nothing is deleted: older files, by modification time,
            are neither remembered nor read. By default unlimited.

    Raises:
        ConfigurationError: a path, format or option is not valid, or the schema is missing.

    Example:
        >>> flights = files("/in", format="json", schema="origin string, at timestamp")
    """
    from dagster_jet.connectors.files import FilesSource
    from dagster_jet.core.durations import to_ms

    return FilesSource(
        str(path),
        format,
        schema,
        tuple(sorted((options or {}).items())),
        tuple((storage_options or {}).items()),
        shared,
        asset_path(asset),
        remember_ms=to_ms(remember, "remember"),
        max_file_age_ms=None if max_file_age is None else to_ms(max_file_age, "max_file_age"),
    )


def delta(
    uri: str,
    *,
    start: Literal["earliest", "latest"] | int | datetime = "earliest",
    deletes: Literal["stop", "skip"] = "stop",
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> DeltaSource:
    """Return a source of the rows that are appended to a Delta Lake table, version by version.

    The driver lists the files that each version adds; tasks read their rows. Compaction adds none.
    The log and the files have to be kept for longer than a job can be down.

    Args:
        uri: the table's folder, as for `sinks.delta`. It must exist at the start, whose columns
            count: a column that the table gets later is read after the next start.
        start: start position of a new job: "earliest" reads the table's contents first, in epochs
            of bounded size, "latest" only later versions; a version reads it and later ones; a time
            (with a zone) the versions of that time and later.
        deletes: what to do at a version that updates or deletes rows: "stop" fails the job, "skip"
            leaves it out whole.
        storage_options: options of a bucket, as for `sinks.files`.
        shared: whether a local folder is the same on every machine of a cluster.

    Raises:
        ConfigurationError: the place or an option is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> flights = delta("/lake/flights", start="latest")
    """
    from dagster_jet.connectors.delta import DeltaSource

    storage = tuple((storage_options or {}).items())
    return DeltaSource(str(uri), start, deletes, storage, shared)


def iceberg(
    catalog: str,
    table: str,
    *,
    start: Literal["earliest", "latest"] | int | datetime = "earliest",
    deletes: Literal["stop", "skip"] = "stop",
    branch: str = "main",
    tag: bool = True,
    catalog_options: Mapping[str, str | Secret] | None = None,
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> IcebergSource:
    """Return a source of the rows that are appended to an Iceberg table, snapshot by snapshot.

    The driver lists the files that each snapshot adds; tasks read their rows. Compaction adds none.

    Args:
        catalog: name of the catalog, as for `sinks.iceberg`.
        table: namespace and name of the table, such as "lake.flights". It must exist at the start,
            whose columns count: a column that the table gets later is read after the next start.
        start: start position of a new job: "earliest" reads the table's contents first, in epochs
            of bounded size, "latest" only later snapshots; the id of a snapshot reads it and later
            ones; a time (with a zone) the snapshots of that time and later.
        deletes: what to do at a snapshot that updates or deletes rows: "stop" fails the job, "skip"
            leaves it out whole.
        branch: of the table.
        tag: whether a tag of the table keeps the snapshot that the job goes on from after a
            restart. The catalog then has to let the job write. Otherwise snapshots have to be kept
            for longer than a job can be down.
        catalog_options: as for `sinks.iceberg`.
        storage_options: options of a bucket, as for `sinks.files`.
        shared: whether a local folder is the same on every machine of a cluster.

    Raises:
        ConfigurationError: an option or a name is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> place = {"type": "sql", "uri": "sqlite:////lake/c.db", "warehouse": "/lake"}
        >>> flights = iceberg("lake", "flights.late", start="latest", catalog_options=place)
    """
    from dagster_jet.connectors.iceberg import IcebergSource
    from dagster_jet.connectors.iceberg.catalog import CatalogPlace

    place = CatalogPlace(catalog, tuple((catalog_options or {}).items()))
    storage = tuple((storage_options or {}).items())
    return IcebergSource(place, table, start, deletes, branch, tag, storage, shared)


def map_journal(
    name: str, *, schema: str | None = None, start: Literal["earliest", "latest"] = "earliest"
) -> MapJournalSource:
    """Return a source of the changes of a map of the job's own store, read from the map's journal.

    Columns: kind ("put" or "delete"), key (text; keys of other types as JSON), value (null for a
    delete), partition, sequence, timestamp. Rows of one partition, and so of one key, are in order.
    Events that the journal drops before they are read are counted and reported by `ItemsLost`.

    Args:
        name: name of the map, which must exist and have a journal when the job starts.
        schema: DDL of JSON values: an object's fields ("price double, at timestamp"), or a single
            type ("double"). By default `value` is the JSON text, or the bytes of other formats.
        start: start position of a new job: "earliest" is the oldest event still in the journal,
            "latest" reads later events only.

    Example:
        >>> changes = map_journal("prices", schema="price double", start="latest")
    """
    from dagster_jet.connectors.maps import MapJournalSource

    return MapJournalSource(name, schema, start)


def map_entries(name: str, *, schema: str | None = None) -> MapEntriesSource:
    """Return a source that reads the content of a map of the job's own store once, and ends.

    Columns: key (text; keys of other types as JSON), value. Each partition is read once, as it is
    at that time; later changes are not seen.

    Args:
        name: name of the map, which must exist when the job starts.
        schema: as for `map_journal`.

    Example:
        >>> prices = map_entries("prices", schema="price double")
    """
    from dagster_jet.connectors.maps import MapEntriesSource

    return MapEntriesSource(name, schema)


def kafka(
    servers: str | Secret,
    *,
    topics: str | Sequence[str] = (),
    pattern: str | None = None,
    format: Literal["json", "avro", "raw"] = "json",
    schema: str | None = None,
    avro_schema: str | None = None,
    registry: str | Secret | None = None,
    start: Literal["earliest", "latest"] | str | datetime | Mapping[str, Mapping[int, int]] = (
        "earliest"
    ),
    metadata: bool = False,
    on_data_loss: Literal["fail", "skip"] = "fail",
    tombstones: Literal["skip", "pass", "dead-letter"] | None = None,
    group: str | None = None,
    options: Mapping[str, str | Secret] | None = None,
    asset: str | Sequence[str] | None = None,
) -> KafkaSource:
    """Return a source of the committed messages of Kafka topics (`read_committed`).

    Offsets are kept in the snapshot; no consumer group is joined. Each partition has its own
    watermark. New partitions, and new topics that match a pattern, are read from their beginning.

    Args:
        servers: "host:port", or several separated by commas.
        topics: one topic, or several; alternative to `pattern`.
        pattern: regular expression that matches whole names of topics.
        format: "json" (one object per message), "avro" (one record) or "raw" (``value binary``).
        schema: DDL of JSON and Avro values: the fields that become columns.
        avro_schema: writer schema of all messages, as Avro JSON.
        registry: URL of a schema registry (Confluent's protocol); each message then begins with its
            schema id. A URL with a password is a `Secret`.
        start: start position of a job without a snapshot: "earliest", "latest", a time (`datetime`
            or ISO text; the first message at or after it), or {topic: {partition: offset}}.
        metadata: adds ``_key binary, _headers array<struct<name string, value binary>>, _topic
            string, _partition int, _offset long, _timestamp timestamp``.
        on_data_loss: reaction if retention has removed unread messages: "fail" ends the job, "skip"
            continues, counts them and reports `ItemsLost`.
        tombstones: treatment of messages without a value, which delete their key in a compacted
            topic: "skip" ignores them, "pass" turns them into rows whose columns are null
            (`metadata` has the key), "dead-letter" treats them as bad rows. Default: "skip" for
            JSON and Avro, "pass" for raw values.
        group: consumer group whose offsets are written after each snapshot, for dashboards only.
            Default: ``dagster_jet.<job>.<stage>``; "": none.
        options: settings of librdkafka: ``{"security.protocol": "SASL_SSL", "sasl.password":
            Secret(env="KAFKA_PASSWORD")}``.
        asset: the key of the Dagster asset of these messages.

    Raises:
        ConfigurationError: an argument is not valid, or a password is written out.
        MissingEnvironmentError: confluent-kafka, or fastavro for Avro, is not installed.

    Example:
        >>> bids = kafka("kafka:9092", topics=["bids"], schema="auction long, price long")
    """
    from dagster_jet.connectors.kafka import KafkaSource
    from dagster_jet.connectors.kafka.cluster import Cluster
    from dagster_jet.connectors.kafka.offsets import Topics, start_of
    from dagster_jet.connectors.values.avro_records import avro_of

    has_avro = format == "avro" or avro_schema is not None or registry is not None
    return KafkaSource(
        Cluster.of(servers, options),
        Topics((topics,) if isinstance(topics, str) else tuple(topics), pattern),
        format,
        schema,
        start_of(start),
        metadata,
        on_data_loss,
        tombstones or ("pass" if format == "raw" else "skip"),
        group,
        avro_of(avro_schema, registry) if has_avro else None,
        asset_path(asset),
    )


def postgres_changes(
    url: str | Secret,
    *,
    slot: str,
    publication: str,
    renamed: Mapping[str, str | None] | None = None,
    asset: str | Sequence[str] | None = None,
) -> ChangesSource:
    """Return a source of the changes of a PostgreSQL table, exactly once, by logical decoding.

    Columns: ``op`` ("insert", "update", "delete" or "truncate"), then the table's columns, without
    generated ones, as of the start of the job. A deleted row has the columns of the table's replica
    identity, by default its primary key; the others are null. Times without a zone are taken as
    UTC. Types that Spark lacks become text. Transactions are read in sequence, their rows in order.

    Additional columns: ``_lsn bigint`` (the position after the transaction's commit) and
    ``_row bigint`` (the change's number in its transaction), which together increase from row to
    row. ``_old struct<...>`` has the columns before an update as far as the log contains them: the
    old key if it changed, or all columns with ``replica identity full``.
    ``_unchanged array<string>`` names large columns that an update did not change; they are null,
    as the log lacks them.

    Args:
        url: database URL; a `Secret(env=...)` if it has a password. The user needs REPLICATION.
        slot: name of a logical replication slot used by this job only. A missing slot is created;
            changes committed after that are read.
        publication: name of a publication of one table: ``create publication p for table t``.
        renamed: columns that were renamed or dropped while the job was down: current name by former
            name; None leaves the values out.
        asset: the key of the table's Dagster asset.

    Raises:
        ConfigurationError: the URL or a name is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> orders = postgres_changes("postgresql://me@host/db", slot="jet", publication="orders")
    """
    from dagster_jet.connectors.postgres import ChangesSource
    from dagster_jet.connectors.sql.place import SqlPlace

    place = SqlPlace(url, publication or "publication")
    pairs = tuple((renamed or {}).items())
    return ChangesSource(place, slot, publication, pairs, asset_key=asset_path(asset))


def sql(
    url: str | Secret, *, table: str, column: str, asset: str | Sequence[str] | None = None
) -> TableRowsSource:
    """Return a source of the new rows of a table of any SQL database, by an increasing column.

    Each row that it sees is read exactly once, with its values at that time. Updates and deletions
    are not seen, nor is a row that is committed after a row with a higher value was read: sequence
    numbers are assigned before the commit. Use it for tables with a single appending writer;
    otherwise use `postgres_changes`.

    Args:
        url: SQLAlchemy URL of the database; a `Secret(env=...)` if it has a password.
        table: `table` or `schema.table`; its columns as of the start of the job are read. Types
            that Spark lacks become text.
        column: a column of whole numbers or times, with its own unique index.
        asset: the key of the table's Dagster asset.

    Raises:
        ConfigurationError: the URL or a name is not valid.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> orders = sql("postgresql://me@host/db", table="orders", column="id")
    """
    from dagster_jet.connectors.sql.place import SqlPlace
    from dagster_jet.connectors.sql.table_rows import TableRowsSource

    return TableRowsSource(SqlPlace(url, table), column, asset_key=asset_path(asset))


def rabbitmq(
    url: str | Secret,
    *,
    queue: str,
    format: Literal["json", "raw"] = "json",
    schema: str | None = None,
    metadata: bool = False,
    prefetch: int = 10_000,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    asset: str | Sequence[str] | None = None,
) -> RabbitSource:
    """Return a source of a RabbitMQ queue; messages are acknowledged once a snapshot has them.

    Only this job may read the queue. A redelivered message counts once, by its ``message_id``.

    Args:
        url: ``amqp://user@host:5672/vhost``; a `Secret(env=...)` if it has a password.
        queue: name of the queue, which must exist.
        format: "json" (an object per message) or "raw" (a column ``value binary``).
        schema: DDL of JSON values.
        metadata: adds ``_message_id string, _exchange string, _routing_key string, _redelivered
            boolean, _timestamp timestamp, _headers map<string,string>``.
        prefetch: number of unacknowledged messages that the server delivers; at least as many as
            arrive between two snapshots. They are held in the driver's memory.
        guarantee: "at-least-once" accepts messages without ``message_id``; a crash may repeat some.
        asset: the key of the Dagster asset of these messages.

    Raises:
        ConfigurationError: an argument or the URL is not valid.
        MissingEnvironmentError: pika is not installed.

    Example:
        >>> orders = rabbitmq("amqp://me@host/shop", queue="orders", schema="id long, at timestamp")
    """
    from dagster_jet.connectors.guarantees import guarantee_named
    from dagster_jet.connectors.rabbitmq import RabbitSource
    from dagster_jet.connectors.rabbitmq.server import RabbitServer

    limit = guarantee_named(guarantee)
    return RabbitSource(
        RabbitServer(url), queue, format, schema, metadata, prefetch, limit, asset_path(asset)
    )


def sqs(
    url: str | Secret,
    *,
    format: Literal["json", "raw"] = "json",
    schema: str | None = None,
    metadata: bool = False,
    message_id: str | None = None,
    prefetch: int = 10_000,
    receivers: int = 4,
    visibility_timeout: Duration | None = None,
    region: str | None = None,
    endpoint_url: str | Secret | None = None,
    access_key_id: Secret | None = None,
    secret_access_key: Secret | None = None,
    session_token: Secret | None = None,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    asset: str | Sequence[str] | None = None,
) -> SqsSource:
    """Return a source of an Amazon SQS queue; messages are deleted once a snapshot has them.

    Only this job may read the queue. A redelivered message is recognized by its id and counts once.

    Args:
        url: ``https://sqs.<region>.amazonaws.com/<account>/<queue>``; the queue must exist.
        format: "json" (an object per message) or "raw" (a column ``value binary``).
        schema: DDL of JSON values.
        metadata: adds ``_message_id string, _sent timestamp, _receive_count int, _group string,
            _sequence_number string, _attributes map<string,string>``.
        message_id: name of a message attribute, set by the publisher, that identifies a message;
            one published twice counts once. By default SQS's own id, which differs per sending.
        prefetch: number of messages received before they are deleted; at least as many as arrive
            between two snapshots. They are held in the driver's memory.
        receivers: number of receiving threads while messages arrive, 10 messages per call.
        visibility_timeout: time for which a received message is hidden from other receivers;
            renewed after half of it. After a crash redelivery waits for it. By default the queue's.
        region: by default taken from the URL, else determined by boto3.
        endpoint_url: endpoint of a server other than AWS; by default taken from the URL.
        access_key_id: credentials, together with the next two; by default determined by boto3
            (environment, profile, role).
        secret_access_key: see `access_key_id`.
        session_token: only if the credentials have one.
        guarantee: "at-least-once" does not remember ids: snapshots are smaller, but a crash may
            repeat messages.
        asset: the key of the Dagster asset of these messages.

    Raises:
        ConfigurationError: an argument or the URL is not valid.

    Example:
        >>> orders = sqs("https://sqs.eu-west-1.amazonaws.com/12/orders", schema="id long")
    """
    from dagster_jet.connectors.guarantees import guarantee_named
    from dagster_jet.connectors.sqs import SqsSource
    from dagster_jet.connectors.sqs.queue import SqsQueue
    from dagster_jet.core.durations import to_ms

    keys = {
        "access_key_id": access_key_id,
        "secret_access_key": secret_access_key,
        "session_token": session_token,
    }
    hidden_s = None
    if visibility_timeout is not None:
        hidden_s = to_ms(visibility_timeout, "visibility_timeout") // 1000
    return SqsSource(
        SqsQueue.of(url, region, endpoint_url, keys),
        format,
        schema,
        metadata,
        prefetch,
        receivers,
        hidden_s,
        message_id,
        guarantee_named(guarantee),
        asset_path(asset),
    )


def items(
    rows: Sequence[Mapping[str, Any] | Sequence[Any] | str],
    *,
    schema: str,
    rate: float | None = None,
) -> ItemsSource:
    """Return a source of the given rows, in order, for experiments and tests.

    Args:
        rows: each is a mapping by column, a sequence of values, or the text of a JSON object as in
            a message, valid or not. Times are `datetime` or ISO text.
        schema: column names and types as DDL.
        rate: rows per second from the start of the job; by default all rows are available at once.

    Raises:
        ConfigurationError: a row's columns differ from the schema, or the rate is not above 0.

    Example:
        >>> trades = items([{"symbol": "A", "price": 1.5}], schema="symbol string, price double")
    """
    from dagster_jet.connectors.generated.items import ItemsSource

    return ItemsSource.of(rows, schema, rate)


def sequence(*, rate: float, count: int | None = None) -> SequenceSource:
    """Return a source of the numbers 0, 1, 2, ...: columns ``value long, timestamp timestamp``.

    The first number is emitted when the job starts for the first time. Numbers that were due while
    the job was down are read afterwards, with their original times.

    Args:
        rate: rows per second.
        count: number of rows; by default unlimited.

    Raises:
        ConfigurationError: the rate is not above 0.

    Example:
        >>> ticks = sequence(rate=1_000)
    """
    from dagster_jet.connectors.generated.sequence import SequenceSource

    return SequenceSource(rate, count)


def nexmark(
    *,
    count: int = 1_000_000,
    rate: float | None = None,
    events_per_second: int = 1_000,
    seed: int = 2026,
) -> NexmarkSource:
    """Return a source of the auction events of the NEXMark benchmark.

    Columns: ``number long, event_type int`` (0 a person, 1 an auction, 2 a bid), ``date_time``, and
    the structs ``person``, ``auction`` and ``bid``, of which only the event's is not null. Events
    within one tenth of a second are out of order. Equal arguments give equal streams.

    Args:
        count: number of events.
        rate: rows per second from the start of the job; by default all rows are available at once.
        events_per_second: events per second of event time, which starts at 2026-07-15 18:59 UTC.
        seed: seed of the random numbers.

    Raises:
        ConfigurationError: a number is not above 0.

    Example:
        >>> auctions = nexmark(count=50_000)
    """
    from dagster_jet.connectors.generated.nexmark.model import Model
    from dagster_jet.connectors.generated.nexmark.source import NexmarkSource

    group = max(1, events_per_second // 10)
    return NexmarkSource(Model(count, events_per_second, group=group, seed=seed), rate)


__all__ = [
    "delta",
    "files",
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
