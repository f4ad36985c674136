"""`sinks.foreach_epoch` in a job: frames of decided epochs, and the same again after an error or a
kill."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.execution.events import ExecutionRestarting
from tests.long import long_but_for

from . import child, foreach_child
from .crash_table import FOREACH_KILLED, Crash
from .foreach_child import COLUMNS, loading
from .oracle import Rows, difference, input_rows
from .world import World


def test_a_function_that_fails_gets_the_same_rows_and_id_again(world: World) -> None:
    world.fill(3)
    calls: list[tuple[str, Counter[tuple[Any, ...]]]] = []

    def load(rows: Any, epoch: str) -> None:
        calls.append((epoch, Counter(map(tuple, rows.select("k", "ts", "v").collect()))))
        if len(calls) == 2:
            raise RuntimeError("the warehouse has answered, and nobody has heard it")

    p = Pipeline("loading")
    source = sources.files(
        f"{world.folder}/in/left", format="json", schema="k string, ts long, v long"
    )
    p.read_from(source, name="rows").write_to(sinks.foreach_epoch(load), name="out")
    with world.jet() as jet:
        jet.run(p, JobConfig(max_items_per_epoch=1), until="completed", on_event=world.see)
    assert len(world.events_of(ExecutionRestarting)) == 1
    assert calls[1] == calls[2], "the same rows and the same id"
    by_id = dict(calls)
    assert len(by_id) == len(calls) - 1 == 3
    wanted = Counter((r["k"], r["ts"], r["v"]) for r in input_rows(world.folder / "in" / "left"))
    assert sum(by_id.values(), Counter()) == wanted


def test_a_function_that_ends_its_process_has_committed_nothing(world: World) -> None:
    """Beside another sink, so that both commit on threads of a pool."""
    world.fill(3)
    calls: list[Counter[tuple[Any, ...]]] = []

    def load(rows: Any, epoch: str) -> None:
        calls.append(Counter(map(tuple, rows.select(*COLUMNS).collect())))
        if len(calls) == 2:
            sys.exit("the warehouse is closed")

    p = Pipeline("loading")
    source = sources.files(
        f"{world.folder}/in/left", format="json", schema="k string, ts long, v long"
    )
    rows = p.read_from(source, name="rows")
    rows.write_to(sinks.foreach_epoch(load), name="out")
    rows.write_to(sinks.files(f"{world.folder}/copied", format="json"), name="copied")
    config = JobConfig(max_items_per_epoch=1)
    with world.jet() as jet, pytest.raises(SystemExit, match="is closed"):
        jet.run(p, config, until="completed")
    with world.jet() as jet:
        jet.run(p, config, until="completed")
    wanted = Counter(
        tuple(row[name] for name in COLUMNS) for row in input_rows(world.folder / "in" / "left")
    )
    assert calls[1] == calls[2]
    assert not difference(sum(calls[2:], calls[0]), wanted)


# --- killed ---------------------------------------------------------------------------------------


class LoadedWorld(World):
    """A world whose child runs the pipeline of `foreach_child`."""

    driver = staticmethod(foreach_child.main)

    def loaded(self) -> Rows:
        with closing(sqlite3.connect(self.folder / "loaded.db")) as database:
            return Counter(database.execute("select k, ts, v from rows").fetchall())

    def replaced(self) -> Rows:
        rows: Rows = Counter()
        for part in (self.folder / "replaced").glob("*/*.json"):
            found = map(json.loads, part.read_text().splitlines())
            rows.update(tuple(row[name] for name in COLUMNS) for row in found)
        return rows

    def appended(self) -> list[tuple[str, Rows]]:
        """(id, rows) of each call, in order."""
        lines = map(json.loads, (self.folder / "appended.json").read_text().splitlines())
        return [(epoch, Counter(map(tuple, rows))) for epoch, rows in lines]

    def check(self) -> int:
        """Returns how many calls there were for an id that had one."""
        given = input_rows(self.folder / "in" / "left")
        wanted = Counter(tuple(row[name] for name in COLUMNS) for row in given)
        assert not difference(self.loaded(), wanted)
        assert not difference(self.replaced(), wanted)
        calls = self.appended()
        by_id = dict(calls)
        assert all(rows == by_id[epoch] for epoch, rows in calls), "an id has the same rows"
        assert not difference(sum(by_id.values(), Counter()), wanted), "no epoch is left out"
        numbers = [int(epoch.rpartition("-")[2]) for epoch, _ in calls]
        assert numbers == sorted(numbers), "in order of epochs"
        return len(calls) - len(by_id)


@pytest.fixture
def loaded(world: World) -> LoadedWorld:
    return LoadedWorld(world.folder, world.fail_points, world.spark)


@pytest.mark.parametrize("crash", long_but_for(FOREACH_KILLED, "F9-foreach.called@5"), ids=str)
def test_killed_around_the_function(loaded: LoadedWorld, crash: Crash) -> None:
    """The successor is killed as well once it has called the function for what was decided."""
    loaded.fill(files=4)
    loaded.run_child(crash.rules, sharded=crash.sharded)
    if crash.row in ("F8", "F9"):
        loaded.run_child("foreach.called:1=kill")
    with loaded.jet() as jet:
        config = JobConfig(**{**child.CONFIG, "parallelism": 12})
        jet.run(loading(loaded.folder), config, until="completed")
        again = loaded.check()
        for sink in ("loaded", "replaced", "appended"):
            kept = [key.name for key in jet.store.map(f"jobs/loading/staged/{sink}").keys("")]
            assert all("-done/" in name for name in kept), "markers only"
    assert again <= 2, "each death repeats one epoch"
