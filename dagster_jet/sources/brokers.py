"""Sources of the messages of Kafka topics and of queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from dagster_jet.core.asset_key import asset_path

if TYPE_CHECKING:
    from dagster_jet.connectors.kafka import KafkaSource
    from dagster_jet.connectors.rabbitmq import RabbitSource
    from dagster_jet.connectors.sqs import SqsSource
    from dagster_jet.core.durations import Duration
    from dagster_jet.core.secret import Secret


def kafka(
    servers: str | Secret,
    *,
    topics: str | Sequence[str] = (),
    pattern: str | None = None,
    format: Literal["json", "avro", "debezium", "raw"] = "json",
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
        pattern: regular expression that matches whole names of topics. Topics of Kafka itself
            (``__...``) and the default ones of sinks' markers are left out.
        format: "json" (one object per message), "avro" (one record), "debezium" (the changes of a
            table, for sinks with ``mode="mirror"``) or "raw" (``value binary``).
        schema: DDL of JSON and Avro values: the fields that become columns. For Debezium, the
            table's columns; the rows also have ``op, _old, _unchanged, _ordered_by, _partition,
            _offset``.
        avro_schema: writer schema of all messages, as Avro JSON.
        registry: URL of a schema registry (Confluent's protocol); each message then begins with its
            schema id. A URL with a password is a `Secret`.
        start: start position of a job without a snapshot: "earliest", "latest", a time (`datetime`
            or ISO text; the first message at or after it), or {topic: {partition: offset}}.
        metadata: adds ``_key binary, _headers array<struct<name string, value binary>>, _topic
            string, _partition int, _offset long, _timestamp timestamp``. The last is null if the
            message's time does not fit a column, such as nanoseconds given as milliseconds.
        on_data_loss: reaction if retention has removed unread messages: "fail" ends the job, "skip"
            continues, counts them and reports `ItemsLost`.
        tombstones: treatment of messages without a value, which delete their key in a compacted
            topic: "skip" ignores them, "pass" turns them into rows whose columns are null
            (`metadata` has the key), for Debezium into deletions, "dead-letter" treats them as bad
            rows. Default: "skip", but "pass" for raw values.
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
        avro_of(avro_schema, registry, schema) if has_avro else None,
        asset_path(asset),
    )


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

    return RabbitSource(
        server=RabbitServer(url),
        queue=queue,
        format=format,
        value_schema=schema,
        metadata=metadata,
        prefetch=prefetch,
        max_guarantee=guarantee_named(guarantee),
        asset_key=asset_path(asset),
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
        queue=SqsQueue.of(url, region, endpoint_url, keys),
        format=format,
        value_schema=schema,
        metadata=metadata,
        prefetch=prefetch,
        receivers=receivers,
        visibility_s=hidden_s,
        message_id=message_id,
        max_guarantee=guarantee_named(guarantee),
        asset_key=asset_path(asset),
    )
