"""Opens sinks from a manifest, without their pipeline.

A start completes the commits that the last snapshot decided, including those of a sink that was
removed from the pipeline or has another destination now (`snapshot.owed`).
"""

from __future__ import annotations

from typing import Any

from dagster_jet.connectors.delta import DeltaSink
from dagster_jet.connectors.files import FilesSink
from dagster_jet.connectors.iceberg import IcebergSink
from dagster_jet.connectors.kafka import HeldKafkaSink, KafkaSink
from dagster_jet.connectors.maps import MapSink
from dagster_jet.connectors.sql import HeldSqlSink, SqlSink
from dagster_jet.connectors.trial import CollectSink, ConsoleSink
from dagster_jet.contract import Sink
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.owed import Destination
from dagster_jet.store import Store

SINK_KINDS: dict[str, type[Sink]] = {
    "collect": CollectSink,
    "console": ConsoleSink,
    "delta": DeltaSink,
    "files": FilesSink,
    "iceberg": IcebergSink,
    "kafka": KafkaSink,
    "kafka_held": HeldKafkaSink,
    "map": MapSink,
    "sql": SqlSink,
    "sql_held": HeldSqlSink,
}
"""Sink class by `kind`; `connector_kit.add_sink_kind` adds those of users."""


def destination_of(sink: Sink) -> dict[str, Any]:
    """Returns a sink's entry in the manifest. If it cannot be reopened, the entry only serves to
    tell whether the sink is the same."""
    kind = sink.describe()["kind"]
    destination = sink.destination()
    if destination is not None:
        return {**destination, "kind": kind}
    described = sink.describe()
    described.pop("guarantee", None)  # does not change the place
    return {**described}


def reopen_sink(destination: Destination, store: Store) -> Sink:
    """Opens the sink at a destination, to commit and to abort, on the job's store.

    Raises:
        ConfigurationError: the kind is unknown, or its connector cannot open the destination.
    """
    kind = destination["kind"]
    if kind not in SINK_KINDS:
        raise ConfigurationError(
            f"no connector can open a sink of kind {kind!r} without its pipeline; known are "
            f"{', '.join(sorted(SINK_KINDS))}."
        )
    try:
        reopened = SINK_KINDS[kind].reopen(destination)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"a sink of kind {kind!r} cannot be opened from {dict(destination)!r}: {error!r}."
        ) from error
    sink: Any = reopened.with_store(store)
    opened: Sink = sink
    return opened
