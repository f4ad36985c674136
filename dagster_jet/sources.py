"""Where streams come from. A connector is loaded when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from dagster_jet.connectors.files import FilesSource, FilesTable
    from dagster_jet.connectors.generated.items import ItemsSource
    from dagster_jet.connectors.generated.nexmark.source import NexmarkSource
    from dagster_jet.connectors.generated.sequence import SequenceSource
    from dagster_jet.connectors.kafka import KafkaSource
    from dagster_jet.connectors.maps import MapEntriesSource, MapJournalSource, MapTable
    from dagster_jet.connectors.postgres import ChangesSource
    from dagster_jet.connectors.rabbitmq import RabbitSource
    from dagster_jet.connectors.sql.table_rows import TableRowsSource
    from dagster_jet.connectors.sqs import SqsSource
    from dagster_jet.core.secret import Secret

Format: TypeAlias = Literal["json", "csv", "parquet"]


def files(
    path: str,
    *,
    format: Format,
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    asset: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
    remember: str | timedelta = "7 days",
    horizon: str | timedelta | None = None,
) -> FilesSource:
    """Return a source that reads the finished files of a folder, by modification time, then name.

    A file must be complete when it appears: write it elsewhere on the same file system, then
    rename it.

    Args:
        path: a folder, or a glob pattern: local (also as `file:///` URL), or in a bucket:
            `s3://bucket/folder`. A relative path is made absolute when the pipeline is built. A
            file that was read is known by its absolute path.
        format: "json" (lines of objects), "csv" or "parquet".
        schema: column names and types as DDL: "id long, at timestamp". The header of a CSV file
            must have these names in this order, unless `options` say otherwise
            (``{"enforceSchema": "true"}``: by position). Parquet files need none:
            the first file that is there at the start decides, and all others must agree.
        options: for Spark's reader, for example ``{"header": "true"}``.
        asset: the key of the Dagster asset that writes these files ("raw/flights"); the lineage
            begins there.
        storage_options: of a bucket, as for `sinks.files`.
        shared: a local folder is the same one on every machine of a cluster.
        remember: for how long a file is remembered after it was read and is gone. Until then it is
            not read again if it comes back. A file that comes later, and is as old as forgotten
            ones, ends the job: it may have been read before.
        horizon: for folders from which nothing is deleted: files whose modification time is longer
            ago are neither remembered nor read. By default all are.

    Raises:
        ConfigurationError: a path, format or option is not known, or the schema is missing.

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
        _key(asset),
        remember_ms=to_ms(remember, "remember"),
        horizon_ms=None if horizon is None else to_ms(horizon, "horizon"),
    )


def map_journal(
    name: str, *, schema: str | None = None, start: Literal["oldest", "newest"] = "oldest"
) -> MapJournalSource:
    """Return a source of the changes of a map of the job's own store, read from its journal.

    Columns: kind ("put" or "delete"), key (text; keys of other types as JSON), value (null for a
    delete), partition, sequence, timestamp. Rows of one partition, so also of one key, come in
    order. Events that the journal drops before they are read are counted as lost, and the event
    `ItemsLost` reports them.

    Args:
        name: of the map; it must exist and have a journal when the job starts.
        schema: of JSON values, as DDL: an object's fields ("price double, at timestamp"), or one
            type ("double"). By default `value` is the JSON text, or the bytes of other formats.
        start: where a new job begins: at the "oldest" event that is still there, or at the
            "newest", so that it reads only what comes next.

    Example:
        >>> changes = map_journal("prices", schema="price double", start="newest")
    """
    from dagster_jet.connectors.maps import MapJournalSource

    return MapJournalSource(name, schema, start)


def map_entries(name: str, *, schema: str | None = None) -> MapEntriesSource:
    """Return a source that reads the content of a map of the job's own store once, and ends.

    Columns: key (text; keys of other types as JSON), value. Each partition is read as it is at
    that moment; later changes are not seen.

    Args:
        name: of the map; it must exist when the job starts.
        schema: as for `map_journal`.

    Example:
        >>> prices = map_entries("prices", schema="price double")
    """
    from dagster_jet.connectors.maps import MapEntriesSource

    return MapEntriesSource(name, schema)


def map_table(name: str, *, key: str = "key", schema: str | None = None) -> MapTable:
    """Return a map of the job's own store as a table, for `enrich`.

    Columns: the key (text) under the name `key`, then the value: the fields of `schema`, or one
    column `value`.

    Args:
        name: of the map; it must exist when the job starts.
        key: the name of the key's column, which `enrich(on=...)` joins on.
        schema: as for `map_journal`.

    Example:
        >>> prices = map_table("prices", key="symbol", schema="price double")
    """
    from dagster_jet.connectors.maps import MapTable

    return MapTable(name, key, schema)


def table(
    path: str,
    *,
    format: Format = "parquet",
    schema: str | None = None,
    options: Mapping[str, str] | None = None,
    asset: str | Sequence[str] | None = None,
    storage_options: Mapping[str, str | Secret] | None = None,
    shared: bool = False,
) -> FilesTable:
    """Return a batch table of files, for `enrich`.

    Args:
        path: a file or folder: local (also as `file:///` URL), or in a bucket:
            `s3://bucket/folder`.
        format: "json" (one object per line), "csv" or "parquet".
        schema: column names and types as DDL; by default those of the files. A CSV file must have a
            header with these names in this order, unless `options` say otherwise
            (``{"enforceSchema": "true"}``: by position, ``{"header": "false"}``).
        options: for Spark's reader.
        asset: the key of the Dagster asset that this table is ("dim/airports"); later stages depend
            on it in the lineage.
        storage_options: of a bucket, as for `sinks.files`.
        shared: a local path is the same one on every machine of a cluster.

    Raises:
        ConfigurationError: a path, format or option is not known.

    Example:
        >>> airports = table("/dim/airports", asset="dim/airports")
    """
    from dagster_jet.connectors.files import FilesTable

    given = tuple(sorted((options or {}).items()))
    storage = tuple((storage_options or {}).items())
    return FilesTable(str(path), format, schema, given, _key(asset), storage, shared)


def kafka(
    servers: str | Secret,
    *,
    topics: Sequence[str] = (),
    pattern: str | None = None,
    value: Literal["json", "avro", "raw"] = "json",
    schema: str | None = None,
    avro_schema: str | None = None,
    registry: str | Secret | None = None,
    start: Literal["earliest", "latest"] | str | datetime | Mapping[str, Mapping[int, int]] = (
        "earliest"
    ),
    metadata: bool = False,
    lost: Literal["fail", "skip"] = "fail",
    tombstones: Literal["skip", "pass", "dead-letter"] | None = None,
    group: str | None = None,
    options: Mapping[str, str | Secret] | None = None,
    asset: str | Sequence[str] | None = None,
) -> KafkaSource:
    """Return a source of the messages of Kafka topics, committed ones only (`read_committed`).

    Offsets are in the snapshot; no consumer group is joined. Each partition has a watermark of its
    own. New partitions, and new topics of a pattern, are read from their beginning.

    Args:
        servers: "host:port", or several with commas.
        topics: their names; or give a pattern.
        pattern: a regular expression that a topic's whole name matches.
        value: "json" (an object per message), "avro" (a record per message) or "raw" (a column
            ``value binary``).
        schema: of JSON and Avro values, as DDL: the fields that become columns.
        avro_schema: what all messages were written with, as Avro's JSON.
        registry: the URL of a schema registry (Confluent's protocol), where each message begins
            with the number of its schema. With a password it is a `Secret`.
        start: where a job begins that has no snapshot yet: "earliest", "latest", a time (as
            `datetime` or ISO text: the first message that is as new), or {topic: {partition:
            offset}}.
        metadata: adds ``_key binary, _headers array<struct<name string, value binary>>, _topic
            string, _partition int, _offset long, _timestamp timestamp``.
        lost: what follows when retention has removed messages that were not read: "fail" ends the
            job, "skip" goes on, counts them and reports `ItemsLost`.
        tombstones: what becomes of messages without a value, which delete their key in a compacted
            topic: "skip" leaves them out, "pass" makes them rows whose columns are null (`metadata`
            has the key), "dead-letter" takes them for bad rows. By default JSON and Avro skip them;
            raw values pass them.
        group: whose offsets are written after each snapshot, for dashboards only; by default
            ``dagster_jet.<job>.<stage>``, and "" for none.
        options: librdkafka's settings: ``{"security.protocol": "SASL_SSL", "sasl.password":
            Secret(env="KAFKA_PASSWORD")}``.
        asset: the key of the Dagster asset that these messages are.

    Raises:
        ConfigurationError: an argument is not known, or a password is written out.
        MissingEnvironmentError: confluent-kafka, or fastavro for Avro, is not installed.

    Example:
        >>> bids = kafka("kafka:9092", topics=["bids"], schema="auction long, price long")
    """
    from dagster_jet.connectors.kafka import KafkaSource
    from dagster_jet.connectors.kafka.cluster import Cluster
    from dagster_jet.connectors.kafka.offsets import Topics, start_of
    from dagster_jet.connectors.values.avro_records import avro_of

    has_avro = value == "avro" or avro_schema is not None or registry is not None
    return KafkaSource(
        Cluster.of(servers, options),
        Topics((topics,) if isinstance(topics, str) else tuple(topics), pattern),
        value,
        schema,
        start_of(start),
        metadata,
        lost,
        tombstones or ("pass" if value == "raw" else "skip"),
        group,
        avro_of(avro_schema, registry) if has_avro else None,
        _key(asset),
    )


def postgres_changes(
    url: str | Secret,
    *,
    slot: str,
    publication: str,
    renamed: Mapping[str, str | None] | None = None,
    asset: str | Sequence[str] | None = None,
) -> ChangesSource:
    """Return a source of the changes of a table of PostgreSQL, exactly once, by logical decoding.

    Columns: ``op`` ("insert", "update", "delete" or "truncate"), then those of the table that are
    not generated, as they are when the job starts. A deleted row has the columns of the table's
    replica identity, by default its primary key; the others are null. Times without a zone are UTC;
    what Spark has no type for is text. Rows of a transaction come in order, one transaction after
    the other.

    Then ``_lsn bigint`` (the position behind the transaction's commit) and ``_row bigint`` (the
    change in its transaction), which together grow from row to row; ``_old struct<...>``, a table's
    columns before an update, as far as the log has them: the old key, if that has changed, or all
    of them with ``replica identity full``; ``_unchanged array<string>``, the large columns that an
    update left alone, which the log does not repeat: they are null.

    Args:
        url: of the database; with a password it is a `Secret(env=...)`. The user needs REPLICATION.
        slot: the name of a logical replication slot for this job alone; made if there is none: what
            is committed from then on is read.
        publication: of one table: ``create publication p for table t``.
        renamed: what became of columns that were renamed or dropped while the job was down: by
            former name the name of today, or None, which leaves the values out.
        asset: the key of the Dagster asset that the table is.

    Raises:
        ConfigurationError: the URL or a name is none.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> orders = postgres_changes("postgresql://me@host/db", slot="jet", publication="orders")
    """
    from dagster_jet.connectors.postgres import ChangesSource
    from dagster_jet.connectors.sql.place import SqlPlace

    place = SqlPlace(url, publication or "publication")
    pairs = tuple((renamed or {}).items())
    return ChangesSource(place, slot, publication, pairs, asset_key=_key(asset))


def table_rows(
    url: str | Secret, *, table: str, column: str, asset: str | Sequence[str] | None = None
) -> TableRowsSource:
    """Return a source of the new rows of a table of any SQL database, by a column that grows.

    Each row that it sees is read exactly once, as it was when it was read. It does not see updates
    and deletions, and not a row that is committed after one with a higher value was read: numbers
    of a sequence are given out before they are committed. Use it for tables that one writer
    appends to; for others `postgres_changes`.

    Args:
        url: of the database, as SQLAlchemy takes it; with a password it is a `Secret(env=...)`.
        table: `table` or `schema.table`; its columns are those of the rows, as they are when the
            job starts. What Spark has no type for is text.
        column: of whole numbers or times, with a unique index of its own.
        asset: the key of the Dagster asset that the table is.

    Raises:
        ConfigurationError: the URL or a name is none.
        MissingEnvironmentError: a package is missing; names the extra.

    Example:
        >>> orders = table_rows("postgresql://me@host/db", table="orders", column="id")
    """
    from dagster_jet.connectors.sql.place import SqlPlace
    from dagster_jet.connectors.sql.table_rows import TableRowsSource

    return TableRowsSource(SqlPlace(url, table), column, asset_key=_key(asset))


def rabbitmq(
    url: str | Secret,
    *,
    queue: str,
    value: Literal["json", "raw"] = "json",
    schema: str | None = None,
    metadata: bool = False,
    prefetch: int = 10_000,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    asset: str | Sequence[str] | None = None,
) -> RabbitSource:
    """Return a source of a queue of RabbitMQ; messages are acknowledged once a snapshot has them.

    The queue is read by this job alone. A message that is delivered again is known by its
    ``message_id``, and counts once.

    Args:
        url: ``amqp://user@host:5672/vhost``; with a password it is a `Secret(env=...)`.
        queue: its name; it exists.
        value: "json" (an object per message) or "raw" (a column ``value binary``).
        schema: of JSON values, as DDL.
        metadata: adds ``_message_id string, _exchange string, _routing_key string, _redelivered
            boolean, _timestamp timestamp, _headers map<string,string>``.
        prefetch: how many messages the server hands out before they are acknowledged: as many as
            come between two snapshots, or more. They are held in the driver's memory.
        guarantee: "at-least-once" takes messages without ``message_id``; after a crash some count
            twice.
        asset: the key of the Dagster asset that these messages are.

    Raises:
        ConfigurationError: an argument is not known, or the URL is none.
        MissingEnvironmentError: pika is not installed.

    Example:
        >>> orders = rabbitmq("amqp://me@host/shop", queue="orders", schema="id long, at timestamp")
    """
    from dagster_jet.connectors.contract import guarantee_named
    from dagster_jet.connectors.rabbitmq import RabbitSource
    from dagster_jet.connectors.rabbitmq.server import RabbitServer

    limit = guarantee_named(guarantee)
    return RabbitSource(
        RabbitServer(url), queue, value, schema, metadata, prefetch, limit, _key(asset)
    )


def sqs(
    queue_url: str | Secret,
    *,
    value: Literal["json", "raw"] = "json",
    schema: str | None = None,
    metadata: bool = False,
    message_id: str | None = None,
    prefetch: int = 10_000,
    receivers: int = 4,
    visibility_timeout: str | timedelta | None = None,
    region: str | None = None,
    endpoint_url: str | Secret | None = None,
    access_key_id: Secret | None = None,
    secret_access_key: Secret | None = None,
    session_token: Secret | None = None,
    guarantee: Literal["exactly-once", "at-least-once"] = "exactly-once",
    asset: str | Sequence[str] | None = None,
) -> SqsSource:
    """Return a source of a queue of Amazon SQS; messages are deleted once a snapshot has them.

    The queue is read by this job alone. A message that is delivered again is known by its id, and
    counts once.

    Args:
        queue_url: ``https://sqs.<region>.amazonaws.com/<account>/<queue>``; the queue exists.
        value: "json" (an object per message) or "raw" (a column ``value binary``).
        schema: of JSON values, as DDL.
        metadata: adds ``_message_id string, _sent timestamp, _receive_count int, _group string,
            _sequence_number string, _attributes map<string,string>``.
        message_id: the name of a message attribute by which a message is known, set by its
            publisher: what it sends twice counts once. By default SQS's own id, which is another
            one for each sending.
        prefetch: how many messages are received before they are deleted: as many as come between
            two snapshots, or more. They are held in the driver's memory.
        receivers: how many threads receive while messages come in, 10 messages a call.
        visibility_timeout: for how long a received message is hidden from others; renewed at half
            time. After a crash messages come again once it is over. By default the queue's.
        region: by default the one in the URL, else as boto3 finds it.
        endpoint_url: of a server that is not AWS's; by default that of the URL.
        access_key_id: with the two that follow; by default as boto3 finds them (environment,
            profile, role).
        secret_access_key: belongs to it.
        session_token: if the credentials have one.
        guarantee: "at-least-once" remembers no ids: snapshots are smaller, and after a crash some
            messages count twice.
        asset: the key of the Dagster asset that these messages are.

    Raises:
        ConfigurationError: an argument is not known, or the URL is none.

    Example:
        >>> orders = sqs("https://sqs.eu-west-1.amazonaws.com/12/orders", schema="id long")
    """
    from dagster_jet.connectors.contract import guarantee_named
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
        SqsQueue.of(queue_url, region, endpoint_url, keys),
        value,
        schema,
        metadata,
        prefetch,
        receivers,
        hidden_s,
        message_id,
        guarantee_named(guarantee),
        _key(asset),
    )


def items(
    rows: Sequence[Mapping[str, Any] | Sequence[Any] | str],
    *,
    schema: str,
    rate: float | None = None,
) -> ItemsSource:
    """Return a source of rows that are given here, in order: for trials and tests.

    Args:
        rows: each a mapping by column, its values in order, or the text of a JSON object as a
            message might bring it, broken or not. Times as `datetime` or ISO text.
        schema: column names and types as DDL.
        rate: rows per second from the start of the job on; by default all are there at once.

    Raises:
        ConfigurationError: a row has other columns than the schema, or the rate is not above 0.

    Example:
        >>> trades = items([{"symbol": "A", "price": 1.5}], schema="symbol string, price double")
    """
    from dagster_jet.connectors.generated.items import ItemsSource

    return ItemsSource.of(rows, schema, rate)


def sequence(*, rate: float, count: int | None = None) -> SequenceSource:
    """Return a source of the numbers 0, 1, 2, ...: columns ``value long, timestamp timestamp``.

    The first comes when the job starts for the first time. What came while the job was down is read
    when it is back, with the times at which it came.

    Args:
        rate: rows per second.
        count: how many there are; by default they do not end.

    Raises:
        ConfigurationError: the rate is not above 0.

    Example:
        >>> ticks = sequence(rate=1_000)
    """
    from dagster_jet.connectors.generated.sequence import SequenceSource

    return SequenceSource(rate, count)


def nexmark(
    *,
    events: int = 1_000_000,
    rate: float | None = None,
    events_per_second: int = 1_000,
    seed: int = 2026,
) -> NexmarkSource:
    """Return a source of the events of an auction house, after the NEXMark benchmark.

    Columns: ``number long, event_type int`` (0 a person, 1 an auction, 2 a bid), ``date_time``, and
    of the structs ``person``, ``auction`` and ``bid`` the one that the event is; the others are
    null. Events of one tenth of a second come out of order. Equal arguments are equal streams.

    Args:
        events: how many there are.
        rate: rows per second from the start of the job on; by default all are there at once.
        events_per_second: of event time, from 2026-07-15 18:59 UTC on.
        seed: of what is drawn.

    Raises:
        ConfigurationError: a number is not above 0.

    Example:
        >>> auctions = nexmark(events=50_000)
    """
    from dagster_jet.connectors.generated.nexmark.model import Model
    from dagster_jet.connectors.generated.nexmark.source import NexmarkSource

    group = max(1, events_per_second // 10)
    return NexmarkSource(Model(events, events_per_second, group=group, seed=seed), rate)


def _key(asset: str | Sequence[str] | None) -> tuple[str, ...]:
    """The path of an asset's key."""
    return tuple(asset.split("/")) if isinstance(asset, str) else tuple(asset or ())
