"""Rows wait for larger files while a job dies, and its settings, sinks and columns change."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_jet import JobConfig
from dagster_jet.errors import ConfigurationError, JobStateError
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long
from tests.unit.connectors.delta_rows import by_library as by_delta
from tests.unit.connectors.iceberg_rows import by_library as by_pyiceberg

from . import child, hold_child
from .oracle import by_manifest
from .test_hold_back import HELD, ROWS, TABLE, HoldWorld
from .world import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POINTS = (
    "lake.prepare.after",
    "record.snapshot.before",
    "record.snapshot.after",
    "lake.gather.before",
    "lake.gather.written",
    "lake.gather.after",
    "lake.commit.before",
    "lake.commit.after",
    "record.committed.before",
    "record.committed.after",
)
STEPS = 5


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession, fail_points: FailPoints) -> HoldWorld:
    return HoldWorld(tmp_path, fail_points, spark)


def drawn_words(rng: random.Random) -> dict[str, Any]:
    """Words of the tables: none, or sizes that no rows, some or many reach."""
    size = rng.choice((None, 5_000, 40_000, 60_000, 1_000_000))
    return {} if size is None else {"min_file_bytes": size, "max_delay": rng.choice(DELAYS)}


DELAYS = ("1 second", "10 minutes", "1 hour")


def drawn_config(rng: random.Random) -> dict[str, Any]:
    """Where an epoch and a snapshot end, and in how many parts stages run."""
    return {
        "parallelism": rng.randint(1, 4),
        "max_items_per_epoch": rng.choice((1, 2, 3, 50, ROWS)),
        "snapshot_interval": rng.choice(("0 ms", "50 ms", "400 ms")),
        "retained_snapshots": rng.randint(1, 4),
    }


@long  # words and sinks change one at a time in test_hold_back.py
@pytest.mark.parametrize("seed", range(6))
def test_settings_change_while_rows_wait(world: HoldWorld, seed: int) -> None:
    """Each start has other words, parallelism and cuts, maybe another name of a sink, and
    most die somewhere: each row comes once."""
    rng, file, former, deaths = random.Random(seed), 0, "delta", 0
    for step in range(STEPS + 1):
        world.send(count := rng.randint(3, 6), first=file)
        file, name = file + count, rng.choice(("delta", "renamed"))
        renamed = {} if name == former else {former: name}
        former, is_last = name, step == STEPS
        death = world._until_death(
            "" if is_last else f"{rng.choice(POINTS)}:{rng.randint(1, 3)}=kill",
            {
                "pipeline": {"words": drawn_words(rng), "delta": name},
                "config": drawn_config(rng),
                "start": {"renamed": renamed},
                "until": "completed" if is_last else "drained",
            },
            own_jvm=False,
        )
        assert death.was_killed or death.returncode == 0, death.output
        deaths += death.was_killed
        expected, found = world.expected(), world.committed()
        if death.was_killed:
            assert not any(rows - expected[name] for name, rows in found.items())
        else:
            world.assert_exactly_once()
    assert deaths


@long  # it leaves in test_hold_back.py
def test_a_sink_leaves_with_waiting_rows_and_comes_back(world: HoldWorld) -> None:
    """It has the rows of the times when it was there, also those that waited."""
    world.send(6)
    world.run_child(HELD)
    assert not world.committed()["pyiceberg"]
    with world.jet() as jet:
        left = jet.job(world.job).manifest().epoch_id
        for tables in (("delta",), ("delta", "iceberg")):
            jet.run(
                hold_child.pipeline(world.folder, hold_child.WAITS, tables=tables),
                JobConfig(**child.CONFIG),
                until="drained",
            )
            came = jet.job(world.job).consumed_files("rows")
            world.send(4, first=len(came))
        jet.run(hold_child.waiting(world.folder), JobConfig(**child.CONFIG), until="completed")
    expected, found = world.expected(), world.committed()
    missing = range(ROWS * left, ROWS * 6)
    for name, rows in found.items():
        gone = missing if "iceberg" in name else ()
        assert rows == Counter(row for row in expected[name] if row[0] not in gone), name


def test_the_tables_get_a_column_while_rows_wait(world: HoldWorld) -> None:
    """Rows that were staged without it have a null, the others their value."""
    world.send(6)
    world.run_child(HELD)
    with world.jet() as jet:
        before = ROWS * jet.job(world.job).manifest().epoch_id
        words = {**hold_child.WAITS, "schema_evolution": "extend"}
        wider = hold_child.pipeline(world.folder, words, has_more=True)
        jet.run(wider, JobConfig(**child.CONFIG), until="completed")
    world.assert_exactly_once()
    for rows in (by_delta(str(world.delta)), by_pyiceberg(world.lake, TABLE)):
        assert {row["id"]: row["more"] for row in rows} == {
            n: None if n < before else n + 1 for n in range(6 * ROWS)
        }


@pytest.mark.parametrize("format", ["iceberg", pytest.param("delta", marks=long)])
def test_a_refused_start_leaves_waiting_rows_for_the_next(world: HoldWorld, format: str) -> None:
    """The tables were made without partitions."""
    world.send(6)
    world.run_child(HELD)
    with world.jet() as jet:
        words = {**hold_child.WAITS, "partition_by": ["id"]}
        other = hold_child.pipeline(world.folder, words, tables=(format,))
        with pytest.raises(ConfigurationError, match="is partitioned by nothing"):
            jet.run(other, JobConfig(**child.CONFIG), until="drained")
        with pytest.raises(JobStateError, match="would lose rows"):
            jet.job(world.job).reset()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()


@long  # rows that do not wait: test_guarantee_changed.py
def test_the_guarantee_changes_while_rows_wait(world: HoldWorld) -> None:
    """Below exactly-once markers go by execution. None dies there, so no row comes twice."""
    world.send(6)
    world.run_child(HELD)
    weaker = hold_child.pipeline(world.folder, {"guarantee": "at-least-once"})
    with world.jet() as jet:
        jet.run(weaker, JobConfig(**child.CONFIG), until="drained")
    world.assert_exactly_once()
    world.send(6, first=6)
    world.run_child("record.snapshot.after:4=kill")
    assert not any(rows - world.expected()[name] for name, rows in world.committed().items())
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()


def test_a_table_is_merged_into_after_its_rows_have_waited(world: HoldWorld) -> None:
    """The sink has another mode, which counts as another place: what waits is appended first."""
    world.send(6)
    world.run_child(HELD)
    merging = hold_child.pipeline(world.folder, {"mode": "upsert", "key": "id"})
    with world.jet() as jet:
        jet.run(merging, JobConfig(**child.CONFIG), until="completed")
    world.assert_exactly_once()


def test_an_export_has_rows_that_waited_and_another_job_goes_on_from_it(world: HoldWorld) -> None:
    world.send(4)
    with world.running() as job:
        wait_until(lambda: world.plain().total() == 4 * ROWS, "files are there")
        assert not world.committed()["deltalake"]
        export = job.export_snapshot("cut")
        assert {rows.total() for rows in world.committed().values()} == {4 * ROWS}
        world.send(3, first=4)
    world.assert_exactly_once()
    other = hold_child.pipeline(world.folder, hold_child.WAITS, job="other", out="out2")
    with world.jet() as jet:
        start = {"initial_snapshot": export.name}
        jet.run(other, JobConfig(**child.CONFIG), until="completed", **start)
    expected = Counter(row for row in world.expected()["plain"] if row[0] >= 4 * ROWS)
    found = {
        "plain": by_manifest(world.folder / "out2" / "plain", ("id", "text")),
        "delta": rows_in(by_delta(str(world.folder / "out2" / "held"))),
        "iceberg": rows_in(by_pyiceberg(world.lake, f"{TABLE}_out2")),
    }
    assert found == dict.fromkeys(found, expected)


def test_a_dead_job_exports_no_snapshot_whose_rows_wait(world: HoldWorld) -> None:
    """The older one has all of its rows; the start commits the others as ever."""
    world.send(6)
    world.run_child(HELD)
    with world.jet() as jet:
        epoch = jet.job(world.job).export_snapshot("of-the-dead").epoch_id
        assert epoch is not None and epoch < jet.job(world.job).manifest().epoch_id
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()


def test_a_job_is_deleted_when_its_rows_are_there(world: HoldWorld) -> None:
    world.send(6)
    world.run_child(HELD)
    with world.jet() as jet, pytest.raises(JobStateError, match="would lose rows"):
        jet.job(world.job).delete()
    assert world.run("drained").status is JobStatus.DRAINED
    with world.jet() as jet:
        jet.job(world.job).delete()
    world.assert_exactly_once()


def rows_in(rows: list[dict[str, Any]]) -> Counter[Any]:
    return Counter((row["id"], row["text"]) for row in rows)
