"""A job on the changes of a table: killed, restarted, every change in the files once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from dagster_jet import JobConfig
from dagster_jet.snapshot.record import JobStatus
from tests.integration import child
from tests.integration.connectors import changes_child
from tests.integration.oracle import Rows, by_manifest
from tests.integration.world import World
from tests.long import long
from tests.servers.postgres import PostgresDatabase, postgres

COLUMNS = ("op", "id", "text")
CONFIG = {**child.CONFIG, "max_items_per_epoch": 3}
KILLS = (
    "epoch.acked:2=kill",  # read, and in no snapshot
    "record.snapshot.after:2=kill",  # decided, and not committed
    "postgres.advance.before:1=kill",  # committed, and the slot does not know
    "postgres.advance.after:1=kill",  # the slot knows, the record does not
)


class ChangesWorld(World):
    driver = staticmethod(changes_child.main)
    database: PostgresDatabase

    def use(self, database: PostgresDatabase) -> None:
        self.database, slot = database, f"s_{database.name}"
        database.run("create table t (id bigint primary key, text text)")
        database.run("create publication p for table t")
        database.run(f"select pg_create_logical_replication_slot('{slot}', 'pgoutput')")
        place = {"url": database.url, "slot": slot}
        (self.folder / "changes.json").write_text(json.dumps(place))

    def change(self, turn: int) -> Rows:
        """Transactions of several rows, which an epoch's end divides; what must come of them."""
        first = 10 * turn
        self.database.run(
            f"insert into t select n, 'a' from generate_series({first}, {first + 7}) n"
        )
        self.database.run(f"update t set text = 'b' where id in ({first}, {first + 1})")
        self.database.run(f"delete from t where id = {first + 2}")
        made: Rows = Counter(("insert", first + n, "a") for n in range(8))
        made.update([("update", first, "b"), ("update", first + 1, "b")])
        made.update([("delete", first + 2, None)])
        return made

    def rows(self) -> Rows:
        return by_manifest(self.folder / "out", COLUMNS)


@pytest.fixture
def world(world: World) -> Iterator[ChangesWorld]:
    found = ChangesWorld(world.folder, world.fail_points, world.spark)
    found.use(postgres())
    yield found
    found.database.run(f"select pg_drop_replication_slot('s_{found.database.name}')")


@pytest.mark.parametrize(
    "kills", [pytest.param(KILLS, id="all", marks=long), pytest.param(KILLS[2:3], id="before it")]
)
def test_killed_again_and_again_around_the_advance_of_its_slot(
    world: ChangesWorld, kills: Sequence[str]
) -> None:
    expected: Rows = Counter()
    for turn, rules in enumerate(kills):
        expected += world.change(turn)
        world.run_child(rules, config=CONFIG)
        assert not world.rows() - expected
    with world.jet() as jet:
        pipeline = changes_child.changes_pipeline(world.folder)
        result = jet.run(pipeline, JobConfig(**CONFIG), until="drained")
    assert result.status is JobStatus.DRAINED
    assert world.rows() == expected


def test_a_quiet_table_lets_the_server_forget_what_others_write(world: ChangesWorld) -> None:
    """By an epoch without rows, with its snapshot; also of a run that drains."""
    database, slot = world.database, f"s_{world.database.name}"
    begins = "select confirmed_flush_lsn - '0/0' from pg_replication_slots where slot_name = %s"
    database.run("create table foreign_rows (text text)")
    expected: Rows = Counter()
    with world.jet() as jet:
        for turn in range(2):
            [(before,)] = database.run(begins, slot)
            database.run(
                "insert into foreign_rows select repeat('x', 900) from generate_series(1, 8000)"
            )
            pipeline = changes_child.changes_pipeline(world.folder)
            jet.run(pipeline, JobConfig(**CONFIG), until="drained")
            [(after,)] = database.run(begins, slot)
            assert after - before > 7_000_000
            assert world.rows() == expected
            expected += world.change(turn)
            jet.run(pipeline, JobConfig(**CONFIG), until="drained")
            assert world.rows() == expected


def test_a_plan_creates_no_slot_and_a_start_does(world: ChangesWorld) -> None:
    """A slot that nobody reads keeps the server's log for ever."""
    place = json.loads((world.folder / "changes.json").read_text())
    place["slot"] += "_planned"
    (world.folder / "changes.json").write_text(json.dumps(place))
    slots = "select count(*) from pg_replication_slots where slot_name = %s"
    with world.jet() as jet:
        pipeline = changes_child.changes_pipeline(world.folder)
        jet.plan(pipeline)
        assert world.database.run(slots, place["slot"]) == [(0,)]
        jet.run(pipeline, JobConfig(**CONFIG), until="drained")
        assert world.database.run(slots, place["slot"]) == [(1,)]
        jet.plan(pipeline)
        assert world.rows() == Counter()
        made = world.change(0)
        jet.run(pipeline, JobConfig(**CONFIG), until="drained")
    assert world.rows() == made
    world.database.run(f"select pg_drop_replication_slot('{place['slot']}')")
