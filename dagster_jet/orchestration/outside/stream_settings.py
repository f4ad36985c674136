"""Settings of observed streams, as YAML has them: one class per engine.

Connectors, and Arrow with them, are imported only for the engines that a component names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import dagster as dg
from pydantic import ConfigDict

from dagster_jet.core.durations import to_ms
from dagster_jet.core.secret import Secret, named
from dagster_jet.orchestration.component_settings import described
from dagster_jet.orchestration.outside.reading import Reading, StreamLimits

Read = Callable[[], Reading]


class ObservedStream(dg.Model, dg.Resolvable):
    """A job of another engine, with its asset and the limits of its checks."""

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    kinds: ClassVar[tuple[str, ...]] = ()

    key: Annotated[str, described("Key of the asset, with slashes.", "payments/enriched")]
    description: Annotated[
        str | None,
        described("Description of the asset.", "Payments, enriched with their accounts."),
    ] = None
    deps: Annotated[
        list[str], described("Keys of the assets that the stream reads.", ["kafka/payments"])
    ] = []  # noqa: RUF012  # pydantic copies it
    max_commit_age: Annotated[
        str,
        described(
            "Maximum age of the last commit while there is, or may be, unread input.", "10 minutes"
        ),
    ] = "10 minutes"
    max_lag: Annotated[
        int | None, described("Maximum number of unread rows; null: no check.", 100_000)
    ] = None
    max_watermark_lag: Annotated[
        str | None,
        described("Maximum lag of event time behind the clock; null: no check.", "1 hour"),
    ] = None

    def limits(self) -> StreamLimits:
        """Raises `ConfigurationError`: a limit is not a duration."""
        lag = self.max_watermark_lag
        return StreamLimits(
            to_ms(self.max_commit_age, f"{self.key}: max_commit_age"),
            self.max_lag,
            None if lag is None else to_ms(lag, f"{self.key}: max_watermark_lag"),
        )

    def reader(self) -> Read:
        """Returns a function that reads the job's state.

        Raises:
            ConfigurationError: a place or an option is not valid.
        """
        raise NotImplementedError


_OPTIONS = "A secret is written env:NAME, the name of a variable of the environment."


class StructuredStreaming(ObservedStream):
    """A query of Structured Streaming, by its checkpoint folder."""

    kinds = ("spark", "streaming")

    checkpoint: Annotated[
        str,
        described("The query's checkpointLocation.", "s3://bucket/checkpoints/payments"),
    ]
    storage_options: Annotated[
        dict[str, str],
        described(
            f"Options of the folder's storage, as for sources.files. {_OPTIONS}",
            {"secret_access_key": "env:S3_SECRET", "access_key_id": "env:S3_KEY"},
        ),
    ] = {}  # noqa: RUF012
    kafka_servers: Annotated[
        str | None,
        described("Brokers of the query's Kafka sources: the lag is then known.", "kafka:9092"),
    ] = None
    kafka_options: Annotated[
        dict[str, str],
        described(f"Options of Kafka's client. {_OPTIONS}", {"security.protocol": "SSL"}),
    ] = {}  # noqa: RUF012

    def reader(self) -> Read:
        from dagster_jet.connectors.kafka.cluster import Cluster
        from dagster_jet.orchestration.outside.streaming_query import Checkpoint

        cluster = None
        if self.kafka_servers is not None:
            cluster = Cluster.of(self.kafka_servers, self.kafka_options)
        options: dict[str, str | Secret] = {**self.storage_options}
        return Checkpoint.at(self.checkpoint, options, cluster).read


class Flink(ObservedStream):
    """A Flink job, by Flink's REST API."""

    kinds = ("flink", "streaming")

    url: Annotated[
        str, described("Address of the REST API; env:NAME names a variable.", "http://flink:8081")
    ]
    job: Annotated[
        str,
        described("Name or id of the job; of several with one name the newest.", "billing"),
    ]

    def reader(self) -> Read:
        from dagster_jet.orchestration.outside.flink_job import FlinkJob

        return FlinkJob(named(self.url), self.job).read


class KafkaGroup(ObservedStream):
    """A Kafka consumer group, by its committed offsets."""

    kinds = ("kafka", "streaming")

    servers: Annotated[
        str, described("Addresses of brokers; env:NAME names a variable.", "kafka:9092")
    ]
    group: Annotated[str, described("Id of the consumer group.", "billing")]
    options: Annotated[
        dict[str, str],
        described(
            f"Options of Kafka's client. {_OPTIONS}", {"sasl.password": "env:KAFKA_PASSWORD"}
        ),
    ] = {}  # noqa: RUF012

    def reader(self) -> Read:
        from dagster_jet.connectors.kafka.cluster import Cluster
        from dagster_jet.orchestration.outside.consumer_group import ConsumerGroup

        return ConsumerGroup(Cluster.of(self.servers, self.options), self.group).read


def asset_of(stream: ObservedStream, group_name: str | None) -> dg.AssetSpec:
    """Returns the external asset of a stream."""
    more: dict[str, Any] = {} if group_name is None else {"group_name": group_name}
    return dg.AssetSpec(
        dg.AssetKey.from_user_string(stream.key),
        description=stream.description or f"{type(stream).__doc__}",
        deps=[dg.AssetKey.from_user_string(each) for each in stream.deps],
        kinds=set(stream.kinds),
        **more,
    )
