"""Jobs with held transactions of Kafka: killed, restarted, told otherwise in between.

What is visible is judged by a plain consumer that reads committed messages, as multisets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources
from dagster_jet.errors import ConfigurationError
from dagster_jet.execution.events import SinkReopened
from tests.long import long
from tests.servers import wait_until

from .kafka_job import KafkaPipelineWorld
from .kafka_world import KafkaWorld

HELD = {"transactions": "held"}
ROLLED: dict[str, Any] = {}
DECIDED = "record.snapshot.after:3=kill"


@pytest.fixture
def world(world: Any) -> KafkaPipelineWorld:
    made = KafkaPipelineWorld(world.folder, world.fail_points, world.spark)
    made.set_up(KafkaWorld())
    return made


def kill(world: KafkaPipelineWorld, rules: str) -> None:
    world.send(5)
    world.run_child(rules, config={"max_items_per_epoch": 12})
    world.assert_nothing_doubled()


@pytest.mark.parametrize(
    "rules",
    [
        DECIDED,
        pytest.param("kafka.held.commit.after:3=kill", marks=long),  # half of an epoch is
        pytest.param("epoch.acked:3=kill", marks=long),  # prepared, and undecided
        pytest.param("kafka.held.begun:3=kill", marks=long),
        pytest.param("kafka.held.before:3=kill", marks=long),
        pytest.param("kafka.held.prepared:3=kill", marks=long),
        pytest.param("record.committed.after:2=kill", marks=long),
    ],
)
def test_held_transactions_survive_their_driver(world: KafkaPipelineWorld, rules: str) -> None:
    world.write_to(**HELD, writers=3)
    kill(world, rules)
    writers = {part.partition("-")[0] for part in world.open_transactions()}
    assert writers <= {"0", "1", "2"}, "numbers that the next start asks for"
    world.write_to(**HELD, writers=1)
    world.run()
    world.assert_exactly_once()
    assert not world.open_transactions()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(HELD, ROLLED, id="held to roll-forward", marks=long),
        pytest.param(ROLLED, HELD, id="roll-forward to held", marks=long),
    ],
)
def test_another_kind_of_transactions_with_a_snapshot_that_is_decided(
    world: KafkaPipelineWorld, before: dict[str, Any], after: dict[str, Any]
) -> None:
    """A decided transaction is committed in the way in which it was prepared."""
    world.write_to(**before)
    kill(world, DECIDED)
    world.write_to(**after)
    world.run(until="drained")
    assert {e.sink for e in world.events if isinstance(e, SinkReopened)} != set()
    world.send(2, first=5)
    world.write_to(**before)
    world.run()
    world.assert_exactly_once()


@long
def test_transactions_that_time_out_while_the_job_is_down(world: KafkaPipelineWorld) -> None:
    """Their rows are produced again, from what is staged."""
    world.write_to(**HELD, options={"transaction.timeout.ms": "33000"})
    kill(world, DECIDED)
    assert world.open_transactions()
    wait_until(lambda: not world.open_transactions(), within=120)
    world.assert_nothing_doubled()
    world.run()
    world.assert_exactly_once()


def test_a_time_out_that_a_restart_would_not_survive_is_refused(tmp_path: Path, spark: Any) -> None:
    kafka = KafkaWorld()
    topic = kafka.topic()
    p = Pipeline("too_short")
    source = sources.kafka(kafka.servers, topics=[topic], schema="v long")
    sink = sinks.kafka(
        kafka.servers,
        topic=kafka.topic(),
        transactions="held",
        options={"transaction.timeout.ms": "60000"},
    )
    p.read_from(source, name="rows").write_to(sink, name="out")
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0, show_progress=False) as jet:
        with pytest.raises(ConfigurationError) as told:
            jet.run(p, JobConfig(snapshot_interval="20 seconds"))
        assert "stage 'out': transactions are held for 60 seconds" in str(told.value)
        assert "the snapshot interval (20 seconds) and a restart (40 seconds)" in str(told.value)
        assert "transaction.timeout.ms" in str(told.value)
        jet.run(p, JobConfig(snapshot_interval="19 seconds"))
