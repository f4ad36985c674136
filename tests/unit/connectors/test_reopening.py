"""Whatever a pipeline commits to can be committed to without the pipeline."""

import json
import uuid

import pytest

from dagster_jet import sinks
from dagster_jet.connectors.reopening import SINK_KINDS, destination_of, reopen_sink
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
