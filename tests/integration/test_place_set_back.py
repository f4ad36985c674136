"""A sink's place that comes back empty is not written on: the start is refused, until the place is
back or the loss is accepted. Also of a sink that had nothing in all retained snapshots."""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, Secret, sinks, sources
from dagster_jet.connectors.files import old_markers
from dagster_jet.connectors.files.old_markers import OldMarkers
from dagster_jet.connectors.sql.held_rows import SqlHeldCommitter
from dagster_jet.connectors.sql.sql_committer import SqlCommitter
from dagster_jet.errors import ConfigurationError, JetError, OutputLostError
from dagster_jet.execution.events import OutputLost
from dagster_jet.system import failpoint
from tests.long import long
from tests.servers import launch, own_folder, postgres, stop

from .oracle import committed, input_rows, rows_of
from .world import World, known_to_tasks

COLUMNS = ("k", "ts", "v")
FIRST = 1000
"""Rows before this time go to the quiet sink, too."""


def pipeline(world: World, guarantee: str) -> Pipeline:
    p = Pipeline("set-back")
    rows = p.read_from(
        sources.files(f"{world.folder}/in/left", format="json", schema="k string, ts long, v long"),
        name="rows",
    )
    for name, some in {"all": rows, "quiet": rows.filter(f"ts < {FIRST}")}.items():
        sink = sinks.files(f"{world.folder}/{name}", format="json", guarantee=guarantee)
        some.write_to(sink, name=f"{name}_out")
    return p


def run(
    world: World,
    number: int,
    guarantee: str,
    retained_snapshots: int = 1,
    restart_attempts_max: int = 5,
    **options: Any,
) -> None:
    world.fill(1, first=number)
    with world.jet() as jet:
        jet.run(
            pipeline(world, guarantee),
            JobConfig(
                parallelism=1,
                retained_snapshots=retained_snapshots,
                restart_attempts_max=restart_attempts_max,
            ),
            until="drained",
            on_event=world.see,
            **options,
        )


def found(folder: Path) -> Counter[Any]:
    return committed(folder, COLUMNS)


@pytest.mark.parametrize("guarantee", ["exactly-once", pytest.param("at-least-once", marks=long)])
def test_a_folder_that_is_empty_is_refused_until_it_is_back(world: World, guarantee: str) -> None:
    quiet, away = world.folder / "quiet", world.folder / "away"
    for number in (0, 2):
        run(world, number, guarantee)
    had = found(quiet)
    assert had, "the first file has rows for it, the second one has none"
    quiet.rename(away)
    quiet.mkdir()
    with pytest.raises(OutputLostError, match=r"'quiet_out'.*no longer has it.*mounted"):
        run(world, 3, guarantee)
    assert not [*quiet.iterdir()], "nothing is written before it is known to be the right one"
    quiet.rmdir()
    away.rename(quiet)
    run(world, 4, guarantee)
    assert found(quiet) == had
    rows = Counter((r["k"], r["ts"], r["v"]) for r in input_rows(world.folder / "in" / "left"))
    assert found(world.folder / "all") == rows

    shutil.rmtree(quiet)
    run(world, 5, guarantee, accept_loss=True)
    [lost] = world.events_of(OutputLost)
    assert lost.sink == "quiet_out" and lost.epoch_ids == (1,)
    run(world, 6, guarantee)
    assert len(world.events_of(OutputLost)) == 1, "what was accepted is asked for no more"


def taken(folder: Path) -> Counter[Any]:
    """Rows that a reader finds and takes away."""
    rows: Counter[Any] = Counter()
    for path in folder.glob("part-*"):
        rows.update(rows_of(path, COLUMNS))
        path.unlink()
    return rows


def test_going_back_where_readers_take_files_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job goes back to a snapshot, and to an export, with more epochs since then than markers
    are kept for."""
    look = OldMarkers.remove

    def look_at_once(self: OldMarkers, *args: Any) -> None:
        self._period = 1
        look(self, *args)

    monkeypatch.setattr(old_markers, "KEPT", 1)
    monkeypatch.setattr(OldMarkers, "remove", look_at_once)
    out, written, heads = world.folder / "all", [], []
    for number in range(5):
        run(world, number, "exactly-once", retained_snapshots=3)
        written.append(taken(out))
        with world.jet() as jet:
            heads.append(jet.job("set-back").snapshots()[0].snapshot_id)
            if number == 1:
                jet.job("set-back").export_snapshot("kept")
            retained = {ref.snapshot_id for ref in jet.job("set-back").snapshots()}
    epochs = sorted(int(path.stem) for path in (out / "_epochs").glob("*.json"))
    assert 1 not in epochs and len(epochs) <= 4, "of epochs that nobody asks for"
    oldest = next(n for n, snapshot_id in enumerate(heads) if snapshot_id in retained)
    assert oldest < 4
    for begin, number in ((heads[oldest], oldest), ("kept", 1)):
        start = {"initial_snapshot": begin, "repeat_output": True}
        run(world, 4, "exactly-once", retained_snapshots=3, **start)
        assert taken(out) == sum(written[number + 1 :], Counter()), begin


def test_going_back_while_the_newest_snapshot_is_not_committed(world: World) -> None:
    """The places have the output of the one before it, although they lack its own (F8)."""
    for number in range(3):
        run(world, number, "exactly-once", retained_snapshots=9)
        if number == 1:
            with world.jet() as jet:
                wanted = jet.job("set-back").snapshots()[0].snapshot_id
    had = found(world.folder / "all")
    failpoint.configure("commit.before:1=raise")
    with pytest.raises(JetError, match=r"commit\.before"):
        run(world, 3, "exactly-once", retained_snapshots=9, restart_attempts_max=0)
    with world.jet() as jet:
        newest, before, *_ = jet.job("set-back").snapshots()
    assert not newest.committed and newest.epoch_id > before.epoch_id
    assert found(world.folder / "all") == had
    with pytest.raises(ConfigurationError, match=r"'all_out'.*repeat_output"):
        run(world, 3, "exactly-once", retained_snapshots=9, initial_snapshot=wanted)
    assert found(world.folder / "all") == had, "nothing is written"
    run(world, 3, "exactly-once", retained_snapshots=9)
    rows = Counter((r["k"], r["ts"], r["v"]) for r in input_rows(world.folder / "in" / "left"))
    assert found(world.folder / "all") == rows


@pytest.mark.parametrize("since", ["reset", pytest.param("went back", marks=long)])
def test_an_export_from_before_the_job_was_reset_or_went_back(world: World, since: str) -> None:
    """Its epoch has the larger number, although the job has read further since, in larger
    epochs."""
    for number in range(3):
        run(world, number, "exactly-once", retained_snapshots=9)
        if number == 0:
            with world.jet() as jet:
                first = jet.job("set-back").snapshots()[0].snapshot_id
    with world.jet() as jet:
        epoch_id = jet.job("set-back").export_snapshot("kept").epoch_id
        if since == "reset":
            jet.job("set-back").reset()
            for name in ("all", "quiet"):
                shutil.rmtree(world.folder / name)
    back = {"initial_snapshot": first, "repeat_output": True} if since == "went back" else {}
    run(world, 3, "exactly-once", retained_snapshots=9, **back)
    had = found(world.folder / "all")
    with world.jet() as jet:
        newest = jet.job("set-back").snapshots()[0]
    assert epoch_id is not None and newest.epoch_id < epoch_id
    with pytest.raises(ConfigurationError, match=r"'all_out.*output since then.*repeat_output"):
        run(world, 3, "exactly-once", retained_snapshots=9, initial_snapshot="kept")
    assert found(world.folder / "all") == had, "nothing is written"
    run(world, 4, "exactly-once", retained_snapshots=9)
    rows = Counter((r["k"], r["ts"], r["v"]) for r in input_rows(world.folder / "in" / "left"))
    assert not rows - found(world.folder / "all")
    if since == "reset":
        assert found(world.folder / "all") == rows


def test_going_back_with_a_sink_that_was_renamed_without_a_word(world: World) -> None:
    """The table has rows of later epochs under the sink's former name: they would be written
    twice."""
    database = f"sqlite:///{world.folder}/out.db"

    def run_named(sink: str, **options: Any) -> None:
        p = Pipeline("renamed")
        rows = p.read_from(sources.items([{"v": 1}, {"v": 2}], schema="v long"), name="rows")
        rows.write_to(sinks.sql(database, table="results", create_table=True), name=sink)
        with world.jet() as jet:
            jet.run(p, JobConfig(parallelism=1, max_items_per_epoch=1), until="drained", **options)

    def found() -> list[Any]:
        with closing(sqlite3.connect(world.folder / "out.db")) as connection:
            return connection.execute("select v from results order by v").fetchall()

    run_named("out")
    with world.jet() as jet:
        first = jet.job("renamed").snapshots()[-1]
    before = found()
    with pytest.raises(ConfigurationError, match=r"'new_out.*repeat_output"):
        run_named("new_out", initial_snapshot=first.snapshot_id)
    assert found() == before == [(1,), (2,)]


@pytest.mark.parametrize("mode", [pytest.param("append", marks=long), "upsert"])
def test_a_database_that_comes_back_older_while_the_job_runs(
    world: World, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Last night's copy takes the place of the database between two commits."""
    path, copy, right = (world.folder / name for name in ("out.db", "copy.db", "right.db"))
    items, key = [{"v": number} for number in range(12)], ["v"] if mode == "upsert" else ()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table results (v integer primary key)")
    commit, sizes = SqlCommitter.commit, list[int]()

    def commit_and_come_back_older(*asked: Any) -> None:
        commit(*asked)
        sizes.append(len(written()))
        if len(sizes) == 1:
            shutil.copy(path, copy)
        elif len(sizes) == 3:
            path.rename(right)
            shutil.copy(copy, path)

    monkeypatch.setattr(SqlCommitter, "commit", commit_and_come_back_older)

    def run() -> None:
        p = Pipeline("comes-back")
        rows = p.read_from(sources.items(items, schema="v long"), name="rows")
        rows.write_to(
            sinks.sql(f"sqlite:///{path}", table="results", mode=mode, key=key), name="out"
        )
        config = JobConfig(parallelism=1, max_items_per_epoch=1, snapshot_interval="0 s")
        with world.jet() as jet:
            jet.run(p, config, until="drained")

    def written() -> list[int]:
        with closing(sqlite3.connect(path)) as connection:
            return [v for (v,) in connection.execute("select v from results order by v")]

    for _ in range(2):
        with pytest.raises(OutputLostError, match=r"'out'.*restored from an older copy"):
            run()
        assert written() == list(range(sizes[0])), "nothing is written to it"
    assert len(sizes) == 3 and sizes[0] < sizes[2] < 12
    right.replace(path)
    run()
    assert written() == list(range(12))


def test_a_server_that_comes_back_older_while_the_job_runs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby takes over that has a transaction prepared, which the job has committed since."""
    folder = own_folder("postgresql")
    copy = own_folder("postgresql") / "copy"
    running = launch("postgresql", folder, postgres.prepared(folder))
    commit, sizes, is_copied = SqlHeldCommitter.commit, list[int](), False

    def restart(*commands: str) -> None:
        nonlocal running
        stop(running, signal.SIGKILL)
        for command in commands:
            subprocess.run(command.split(), check=True)
        running = launch("postgresql", folder, postgres.prepared(folder))

    def commit_and_come_back_older(*asked: Any) -> None:
        nonlocal is_copied
        if len(sizes) == 1 and not is_copied:
            is_copied = True
            restart(f"cp -a {folder} {copy}")
        commit(*asked)
        sizes.append(len(written()))
        if len(sizes) == 2:
            restart(f"rm -r {folder}", f"cp -a {copy} {folder}")

    monkeypatch.setattr(SqlHeldCommitter, "commit", commit_and_come_back_older)

    def run() -> None:
        p, to = Pipeline("takes-over"), Secret("JET_TEST_HELD_URL")
        items = [{"v": number} for number in range(12)]
        rows = p.read_from(sources.items(items, schema="v long"), name="rows")
        held = sinks.sql(to, table="results", transactions="held", writers=1)
        rows.write_to(held, name="out")
        config = JobConfig(parallelism=1, max_items_per_epoch=1, snapshot_interval="0 s")
        with world.jet() as jet:
            jet.run(p, config, until="drained")

    def written() -> list[int]:
        return [v for (v,) in database.run("select v from results order by v")]

    try:
        database = postgres.new_database(running)
        database.run("create table results (v bigint)")
        with known_to_tasks(world.spark, {"JET_TEST_HELD_URL": database.url}):
            for _ in range(2):
                with pytest.raises(OutputLostError, match=r"'out'.*restored from an older copy"):
                    run()
                assert written() == list(range(sizes[0])), "nothing is written to it"
            assert len(sizes) == 2 and sizes[0] < sizes[1] < 12
    finally:
        stop(running)
