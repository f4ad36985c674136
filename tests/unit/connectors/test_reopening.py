"""A sink can be reopened and committed to without its pipeline."""

import json
import uuid
from collections.abc import Iterator

import pytest

from dagster_jet import sinks
from dagster_jet.connector_kit import StagedInStore, add_sink_kind
from dagster_jet.connectors.reopening import SINK_KINDS, destination_of, reopen_sink
from dagster_jet.connectors.trial import CollectSink
from dagster_jet.contract import Committer, Sink
from dagster_jet.errors import ConfigurationError
from dagster_jet.store import Store, StoreConfig

SINKS = {
    "collect": lambda: sinks.collect("name"),
    "console": sinks.console,
    "delta": lambda: sinks.delta(
        "s3://b/t", mode="upsert", key="id", storage_options={"region": "r"}
    ),
    "files": lambda: sinks.files("/out", format="json"),
    "iceberg": lambda: sinks.iceberg("c", "s.t", catalog_options={"uri": "sqlite:////c.db"}),
    "kafka": lambda: sinks.kafka("h:1", topic="t", key="k", options={"sasl.username": "me"}),
    "kafka_held": lambda: sinks.kafka("h:1", topic="t", transactions="held"),
    "map": lambda: sinks.map_entries("m", key="k"),
    "sql": lambda: sinks.sql("sqlite:////tmp/a.db", table="t"),
    "sql_held": lambda: sinks.sql(
        "postgresql://me@h/db", table="t", transactions="held", create_table=False
    ),
}


def test_every_kind_is_here():
    assert set(SINKS) == set(SINK_KINDS)


@pytest.mark.parametrize("kind", SINKS)
def test_a_sink_is_opened_from_its_destination(kind: str):
    sink = SINKS[kind]()
    destination = json.loads(json.dumps(destination_of(sink)))
    assert destination["kind"] == kind
    config = StoreConfig((f"memory://{uuid.uuid4().hex}",), allow_memory=True, backup_count=0)
    with Store.open(config) as store:
        reopened = reopen_sink(destination, store)
        assert destination_of(reopened) == destination
        reopened.open_committer("j", "s").close()


class OwnSink(CollectSink):
    def describe(self) -> dict[str, str]:
        return {**super().describe(), "kind": "own"}


class Unopened(StagedInStore):
    def describe(self) -> dict[str, str]:
        return {"kind": "own"}

    def open_committer(self, job: str, stage: str) -> Committer:
        raise AssertionError("nothing is committed")


@pytest.fixture
def kinds() -> Iterator[dict[str, type[Sink]]]:
    yield SINK_KINDS
    SINK_KINDS.pop("own", None)


def test_a_sink_of_a_users_own_kind_is_opened(kinds: dict[str, type[Sink]]):
    destination = destination_of(OwnSink("name"))
    config = StoreConfig((f"memory://{uuid.uuid4().hex}",), allow_memory=True, backup_count=0)
    with Store.open(config) as store:
        with pytest.raises(ConfigurationError, match="no connector can open a sink of kind 'own'"):
            reopen_sink(destination, store)
        add_sink_kind("own", OwnSink)
        add_sink_kind("own", OwnSink)
        assert type(reopen_sink(destination, store)) is OwnSink


def test_a_kind_of_another_class_is_not_replaced(kinds: dict[str, type[Sink]]):
    with pytest.raises(ConfigurationError, match=r"'collect' of OwnSink is that of .*CollectSink"):
        add_sink_kind("collect", OwnSink)
    assert kinds["collect"] is CollectSink


def test_a_class_that_cannot_be_reopened_is_refused(kinds: dict[str, type[Sink]]):
    with pytest.raises(ConfigurationError, match="Unopened has no `reopen`"):
        add_sink_kind("own", Unopened)
    assert "own" not in kinds
