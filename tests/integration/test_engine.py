"""Pipelines compute the rows that are expected from the input files, and jobs start and end."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, tables, windows
from dagster_jet import aggregates as agg
from dagster_jet.errors import (
    ConfigurationError,
    JetError,
    LeaseHeldError,
    SnapshotInvalidError,
    SourceError,
)
from dagster_jet.execution import epoch_driver
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionRestarting,
    ExecutionStarted,
    InputIgnored,
    JobEvent,
    SnapshotCommitted,
    SnapshotDropped,
)
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.system import failpoint
from tests.long import long

from . import child, oracle
from .crash_table import REWINDING_KILLED
from .world import WINDOW_COLUMNS, World, random_rows, wait_until, write_input

if TYPE_CHECKING:
    from dagster_jet import JobResult
    from dagster_jet.pipeline import Stage

SCHEMA = "k string, ts long, v long"


def rows_from(p: Pipeline, folder: Path, name: str = "rows", **timestamps: str) -> Stage:
    source = sources.files(str(folder), format="json", schema=SCHEMA)
    return p.read_from(source, name=name).with_timestamps("ts", **timestamps)


def counted(rows: Stage, size: str = "1 second", name: str = "counts") -> Stage:
    return (
        rows.group_by("k")
        .window(windows.tumbling(size))
        .aggregate(n=agg.count(), total=agg.sum("v"), name=name)
    )


def run(world: World, p: Pipeline, until: str = "completed", **config: Any) -> JobResult:
    with world.jet() as jet:
        return jet.run(p, JobConfig(**config), until=until, on_event=world.events.append)


# --- what is computed -----------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_all_aggregates_and_formats(world: World, format: str) -> None:
    """Nulls, negative numbers, odd keys; files of random sizes, also empty ones."""
    rng = random.Random(format)
    keys = ["a", "B b", "ü", "c,d"] if format == "csv" else ["a", "B b", "ü", 'c,"d"', ""]
    everything: list[dict[str, Any]] = []
    folder = world.folder / "in"
    folder.mkdir()
    for number in range(5):
        rows = [
            {
                "k": rng.choice(keys),
                "part": rng.randrange(2),
                "ts": number * 1000 + rng.randrange(1000),
                "v": None if rng.random() < 0.2 else rng.randrange(-50, 50),
            }
            for _ in range(rng.choice([1, 7, 60]) if number != 2 else 0)
        ]
        everything += rows
        columns = {name: [row[name] for row in rows] for name in ("k", "part", "ts", "v")}
        types = {"k": pa.string(), "part": pa.int64(), "ts": pa.int64(), "v": pa.int64()}
        table = pa.table({name: pa.array(c, types[name]) for name, c in columns.items()})
        if format == "json":
            write_input(folder, number, rows)
        elif format == "csv":
            pyarrow.csv.write_csv(table, folder / f"{number}.csv")
        else:
            pq.write_table(table, folder / f"{number}.parquet")

    p = Pipeline("all")
    source = sources.files(
        str(folder),
        format=format,
        schema="k string, part long, ts long, v long",
        options={"header": "true"} if format == "csv" else {},
    )
    read = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag="1 second")
    results = (
        read.group_by("k", "part")
        .window(windows.tumbling("1500 ms"))
        .aggregate(
            n=agg.count(),
            known=agg.count("v"),
            total=agg.sum("v"),
            average=agg.mean("v"),
            least=agg.min("v"),
            most=agg.max("v"),
            name="counts",
        )
    )
    results.write_to(sinks.files(f"{world.folder}/out/{format}", format=format), name="out")
    run(world, p, max_items_per_epoch=1, snapshot_interval="0 ms")

    groups: dict[tuple[str, int, int], list[int | None]] = defaultdict(list)
    for row in everything:
        groups[row["k"], row["part"], row["ts"] - row["ts"] % 1500].append(row["v"])
    expected: oracle.Rows = Counter()
    for (k, part, start), values in groups.items():
        known = [v for v in values if v is not None]
        least, most = (min(known), max(known)) if known else (None, None)
        total, mean = (sum(known), sum(known) / len(known)) if known else (None, None)
        expected[k, part, start, start + 1500, len(values), len(known), total, least, most] += 1
        expected["mean", k, part, start, None if mean is None else f"{mean:.9f}"] += 1
    found: oracle.Rows = Counter()
    columns = ("k", "part", "window_start", "window_end")
    names = (*columns, "n", "known", "total", "least", "most", "average")
    for row, times in oracle.committed(world.folder / "out" / format, names).items():
        values = [None if v == "" and i > 3 else v for i, v in enumerate(row)]
        mean = values.pop()
        found[tuple(values)] += times
        found[
            "mean", values[0], values[1], values[2], None if mean is None else f"{float(mean):.9f}"
        ] += times
    assert not oracle.difference(found, expected)


@pytest.mark.parametrize(
    ("sharded", "parallelism", "interval"),
    [
        pytest.param(False, 1, "0 ms", marks=long),
        pytest.param(True, 1, "1 hour", marks=long),
        pytest.param(False, 4, "1 hour", marks=long),
        (True, 4, "0 ms"),
    ],
)
def test_chained_stages_at_any_cut(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    sharded: bool,
    parallelism: int,
    interval: str,
) -> None:
    if sharded:
        monkeypatch.setattr(epoch_driver, "FEW_GROUPS", -1)
    world.fill(files=4, rows=30, seed=parallelism)
    world.run(parallelism=parallelism, snapshot_interval=interval)
    world.assert_exactly_once()


def test_a_source_that_lags_is_passed_after_the_maximum_retention(world: World) -> None:
    """Its rows are late from then on: counted, and left out. Nothing of the other one waits."""
    for number in range(4):
        write_input(world.folder / "in" / "left", number, random_rows(number, 12, seed=3))
    behind = [{"k": "slow", "ts": 100, "v": 1}]
    write_input(world.folder / "in" / "right", 0, behind)
    out = world.folder / "out"

    def lagging() -> Pipeline:
        p = Pipeline("lagging")
        lag = {"allowed_lag": "500 ms", "idle_timeout": "0 ms"}
        left, right = (rows_from(p, world.folder / "in" / n, n, **lag) for n in ("left", "right"))
        counted(left.merge(right)).write_to(sinks.files(str(out), format="json"), name="out")
        return p

    run(world, lagging(), until="drained")
    assert not oracle.committed(out, WINDOW_COLUMNS), "held back by the slow one"
    rows = oracle.input_rows(world.folder / "in" / "left")
    reached = max(row["ts"] for row in rows) - 500
    every = oracle.windowed([*rows, *behind], 1000)
    closed = Counter({row: count for row, count in every.items() if row[2] <= reached})
    assert closed
    config = JobConfig(**{**child.CONFIG, "max_watermark_retention": "200 ms"})
    with world.jet() as jet:
        job = jet.submit(lagging(), config, on_event=world.see)
        # By the manifests: a look at the folder may come in the middle of a commit.
        wait_until(lambda: oracle.by_manifest(out, WINDOW_COLUMNS) == closed, "left is not held")
        write_input(world.folder / "in" / "right", 1, [{"k": "slow", "ts": 200, "v": 1}])

        def late() -> int:
            told = [event.stages["counts"].late for event in world.events_of(SnapshotCommitted)]
            return told[-1]

        wait_until(lambda: late() == 1, "the laggard's row is late")
        job.cancel()
    assert oracle.committed(out, WINDOW_COLUMNS) == closed


def test_late_rows_are_counted_and_left_out(world: World) -> None:
    """An epoch's own rows are never late; a window that an earlier epoch closed takes no more."""
    on_time = [{"k": "a", "ts": ts, "v": 1} for ts in (500, 1500, 10_500)]
    write_input(world.folder / "in", 1, on_time)
    write_input(world.folder / "in", 2, [{"k": "a", "ts": 10_600, "v": 1}])
    late = [{"k": "a", "ts": ts, "v": 1} for ts in (600, 700, 1600)]
    write_input(world.folder / "in", 3, [*late, {"k": "a", "ts": 10_700, "v": 1}])
    p = Pipeline("late")
    counted(rows_from(p, world.folder / "in")).write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    run(world, p, max_items_per_epoch=1, snapshot_interval="0 ms")
    assert oracle.committed(world.folder / "out", WINDOW_COLUMNS) == Counter(
        [("a", 0, 1000, 1, 1), ("a", 1000, 2000, 1, 1), ("a", 10_000, 11_000, 3, 3)]
    )
    last = world.events_of(SnapshotCommitted)[-1]
    assert last.stages["counts"].late == 3
    assert last.stages["counts"].rows_in == 8
    assert last.stages["rows"].rows_in == 8


def test_epochs_without_rows(world: World) -> None:
    for number in (1, 2, 4):
        write_input(world.folder / "in", number, [])
    write_input(world.folder / "in", 3, [{"k": "a", "ts": 1, "v": 2}])
    p = Pipeline("empty")
    rows = rows_from(p, world.folder / "in")
    rows.filter("1 = 0").write_to(
        sinks.files(f"{world.folder}/out/none", format="json"), name="none"
    )
    counted(rows.filter("v > 1")).write_to(
        sinks.files(f"{world.folder}/out/some", format="json"), name="some"
    )
    # Nobody else reads these: Spark would neither read them nor start the stage's tasks.
    alone = rows_from(p, world.folder / "in", "alone").filter("1 = 0")
    counted(alone, name="never").write_to(
        sinks.files(f"{world.folder}/out/never", format="json"), name="never_out"
    )
    result = run(world, p, max_items_per_epoch=1, snapshot_interval="0 ms")
    assert result.status is JobStatus.COMPLETED and result.rows_in == 2
    assert oracle.committed(world.folder / "out/none", ("v",)) == Counter()
    assert oracle.committed(world.folder / "out/never", ("k", "n")) == Counter()
    assert oracle.committed(world.folder / "out/some", ("k", "n")) == Counter([("a", 1)])


def test_no_input_at_all(world: World) -> None:
    (world.folder / "in").mkdir()
    p = Pipeline("nothing")
    counted(rows_from(p, world.folder / "in")).write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    assert run(world, p, until="drained").rows_in == 0
    assert run(world, p).status is JobStatus.COMPLETED


def test_an_idle_source_does_not_hold_windows_back(world: World) -> None:
    for number in range(3):
        write_input(world.folder / "left", number, random_rows(number, 20, 1))
    (world.folder / "right").mkdir()
    p = Pipeline("idle")
    times = {"allowed_lag": "500 ms", "idle_timeout": "500 ms"}
    left, right = (rows_from(p, world.folder / n, n, **times) for n in ("left", "right"))
    counted(left.merge(right)).write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    with world.jet() as jet:
        job = jet.submit(p, JobConfig(snapshot_interval="0 ms"))
        try:
            out = world.folder / "out"
            wait_until(
                lambda: oracle.by_manifest(out, ("k",)).total() > 0,
                "windows close although the right source is silent",
            )
        finally:
            job.suspend()
    rows = oracle.input_rows(world.folder / "left")
    assert not oracle.committed(out, WINDOW_COLUMNS) - oracle.windowed(rows, 1000)


def test_the_last_windows_close_by_the_clock_in_a_lull(world: World) -> None:
    for number in range(2):
        write_input(world.folder / "in", number, random_rows(number, 20, 1))
    p = Pipeline("lull")
    times = {"allowed_lag": "500 ms", "idle_timeout": "0 ms", "max_lull": "100 ms"}
    counted(rows_from(p, world.folder / "in", **times)).write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    expected = oracle.windowed(oracle.input_rows(world.folder / "in"), 1000)
    with world.jet() as jet:
        job = jet.submit(p, JobConfig(snapshot_interval="0 ms"))
        try:
            out = world.folder / "out"
            wait_until(
                lambda: oracle.by_manifest(out, ("k",)).total() == expected.total(),
                "all windows close although nothing follows",
            )
        finally:
            job.suspend()
    assert oracle.committed(out, WINDOW_COLUMNS) == expected


@long  # another table is in test_enriched.py
def test_enriched_with_a_table(world: World) -> None:
    """A key of it is there twice, which is refused unless it is asked for, or does not matter."""
    for number in range(2):
        without_key = {"k": None, "ts": 1_000 * number + 300, "v": 7}
        write_input(world.folder / "in", number, [*random_rows(number, 20, 1), without_key])
    unique, double = (
        tables.files(f"{world.folder}/{name}.csv", format="csv") for name in ("unique", "double")
    )
    (world.folder / "unique.csv").write_text("k,name\nkey-0,Zero\nkey-1,One\n")
    (world.folder / "double.csv").write_text("k,name\nkey-0,Zero\nkey-1,One\nkey-1,Ona\n,Null\n")
    asked: dict[str, dict[str, Any]] = {
        "left": {"table": unique},
        "inner": {"table": unique, "how": "inner"},
        "multiplied": {"table": double, "how": "inner", "duplicates": "multiply"},
        "semi": {"table": double, "how": "semi"},
        "anti": {"table": double, "how": "anti"},
    }
    p = Pipeline("enriched")
    rows = rows_from(p, world.folder / "in")
    for name, options in asked.items():
        rows.enrich(on="k", name=f"by {name}", **options).write_to(
            sinks.files(f"{world.folder}/{name}", format="json"), name=name
        )
    run(world, p)
    names = {"key-0": ["Zero"], "key-1": ["One"]}
    given = [(r["k"], r["v"]) for r in oracle.input_rows(world.folder / "in")]
    joined = [(k, v, name) for k, v in given for name in names.get(k, [])]
    expected: dict[str, list[tuple[Any, ...]]] = {
        "left": [*joined, *((k, v, None) for k, v in given if k not in names)],
        "inner": joined,
        "multiplied": [*joined, *((k, v, "Ona") for k, v in given if k == "key-1")],
        "semi": [(k, v) for k, v in given if k in names],
        "anti": [(k, v) for k, v in given if k not in names],
    }
    for name, wanted in expected.items():
        found = oracle.committed(world.folder / name, ("k", "v", "name")[: len(wanted[0])])
        assert found == Counter(wanted), name


def test_enriched_with_a_map_that_changes(world: World) -> None:
    """Read when the execution starts; with `refresh` a later epoch sees what was put since."""
    for number in range(4):
        write_input(world.folder / "in", number, [{"k": "a", "ts": number, "v": number}])
    p = Pipeline("enriched")
    rows = rows_from(p, world.folder / "in")
    prices = tables.map("prices", key="k", schema="price long")
    for name, refresh in (("fixed", None), ("fresh", "0 ms")):
        rows.enrich(prices, on="k", refresh=refresh).write_to(
            sinks.files(f"{world.folder}/{name}", format="json"), name=name
        )
    with world.jet() as jet:
        with pytest.raises(SourceError, match="the map 'prices' does not exist"):
            jet.run(p, JobConfig(restart_attempts_max=0))
        jet.map("prices").put("a", {"price": 1})

        def see(event: JobEvent) -> None:
            if isinstance(event, EpochCompleted):
                jet.map("prices").put("a", {"price": 1 + event.epoch_id})

        jet.run(p, JobConfig(max_items_per_epoch=1), until="completed", on_event=see)
    fixed, fresh = (
        [price for (_, price) in sorted(oracle.committed(world.folder / name, ("v", "price")))]
        for name in ("fixed", "fresh")
    )
    assert fixed == [1, 1, 1, 1]
    assert fresh == sorted(fresh) and fresh[0] == 1 < fresh[-1]


# --- how jobs live --------------------------------------------------------------------------------


def test_drained_again_and_again_then_completed(world: World) -> None:
    """Open windows stay in the state from run to run, however the input is cut."""
    for first in range(3):
        world.fill(files=2, rows=10 + first, first=2 * first)
        result = world.run(until="drained", max_items_per_epoch=10_000)
        assert result.status is JobStatus.DRAINED
        world.assert_nothing_doubled()
    assert world.run(until="drained").epochs == 0, "nothing new: nothing to do"
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    visible = world.visible()
    world.fill(files=1, first=6)
    again = world.run()
    assert again.status is JobStatus.COMPLETED and again.epochs == 0
    assert world.visible() == visible, "a completed job reads nothing more"
    assert {s: w["files"] for s, w in again.ignored_input.items()} == {"left": 1, "right": 1}
    assert {e.source for e in world.events_of(InputIgnored)} == {"left", "right"}, "and says so"


@long  # the same with a crash is below
@pytest.mark.parametrize("guarantee", ["none", "at-least-once"])
def test_weaker_guarantees_without_a_crash(world: World, guarantee: str) -> None:
    world.fill(files=4)
    world.run(guarantee=guarantee)
    world.assert_exactly_once()


@pytest.mark.parametrize("guarantee", ["at-least-once", pytest.param("none", marks=long)])
def test_weaker_guarantees_after_a_crash(world: World, guarantee: str) -> None:
    """Rows may come again, none is lost; also when the epochs are cut differently."""
    world.fill(files=5)
    config = {"guarantee": guarantee, "snapshot_interval": "1 hour"}
    world.run_child("epoch.before:4=kill", config=config)
    assert world.visible_rows() > 0, "below exactly-once, rows are visible at once"
    world.run(**config, max_items_per_epoch=10_000)
    found, expected = world.committed(), world.expected()
    assert not expected["big"] - found["big"], "rows are lost"
    assert found["big"].total() > expected["big"].total(), "the crash came too early"
    most: dict[tuple[Any, ...], int] = defaultdict(int)
    for k, start, end, n, _ in found["counts"]:
        most[k, start, end] = max(most[k, start, end], n)
    short = [row for row in expected["counts"] if most[row[:3]] < row[3]]
    assert not short, f"windows that miss rows: {short[:3]}"


@long  # test_crashes.py suspends at an event, and the next run goes on
def test_suspended_and_submitted_again(world: World) -> None:
    world.fill(files=3)
    with world.jet() as jet:
        settings = JobConfig(**child.CONFIG)
        job = jet.submit(child.crash_pipeline(world.folder), settings)
        wait_until(lambda: job.status is JobStatus.RUNNING, "the job runs")
        assert job.suspend().status is JobStatus.SUSPENDED
        world.fill(files=3, first=3)
        job = jet.submit(child.crash_pipeline(world.folder), settings)
        wait_until(
            lambda: oracle.by_manifest(world.folder / "out/rollup", ("k",)).total() > 0,
            "the job goes on",
        )
        assert job.complete().status is JobStatus.COMPLETED
    world.assert_exactly_once()


@long  # another process asks during a back-off below
def test_asked_to_suspend_by_another_process(world: World) -> None:
    """The request goes through the store; here another `Jet` on the same members stands for it."""
    world.fill(files=3)
    with world.jet() as jet, world.jet() as other:
        job = jet.submit(child.crash_pipeline(world.folder), JobConfig(**child.CONFIG))
        wait_until(lambda: job.status is JobStatus.RUNNING, "the job runs")
        other.job(child.JOB).request_stop(StopKind.SUSPEND)
        assert job.result(60).status is JobStatus.SUSPENDED
    world.run()
    world.assert_exactly_once()


@pytest.mark.parametrize("kind", [StopKind.SUSPEND, pytest.param(StopKind.RESTART, marks=long)])
def test_asked_by_another_process_during_a_back_off(
    world: World, monkeypatch: pytest.MonkeyPatch, kind: StopKind
) -> None:
    """The record says RUNNING, so the request is accepted: it ends the back-off and is heard."""
    for limit in ("_PAUSE_FIRST_MS", "_PAUSE_MAX_MS"):
        monkeypatch.setattr(f"dagster_jet.jobs.restarts.{limit}", 600_000)
    world.fill(files=3)
    failpoint.configure("record.snapshot.after:2=raise")
    with world.jet() as jet, world.jet() as other:

        def ask(event: JobEvent) -> None:
            world.see(event)
            if isinstance(event, ExecutionRestarting):
                other.job(child.JOB).request_stop(kind)

        settings = JobConfig(**child.CONFIG)
        job = jet.submit(
            child.crash_pipeline(world.folder), settings, until="drained", on_event=ask
        )
        status = job.result(120).status
    assert len(world.events_of(ExecutionStarted)) == 2, "the next execution is the restart"
    assert status is (JobStatus.SUSPENDED if kind is StopKind.SUSPEND else JobStatus.DRAINED)
    world.run()
    world.assert_exactly_once()


def test_a_second_driver_is_refused_and_disturbs_nobody(world: World) -> None:
    world.fill(files=3)
    with world.jet() as jet, world.jet() as other:
        job = jet.submit(
            child.crash_pipeline(world.folder),
            JobConfig(**child.CONFIG),
            on_event=world.events.append,
        )
        wait_until(lambda: job.status is JobStatus.RUNNING, "the job runs")
        with pytest.raises(LeaseHeldError, match="is alive"):
            other.run(child.crash_pipeline(world.folder), JobConfig(**child.CONFIG))
        world.fill(files=3, first=3)
        assert job.complete().status is JobStatus.COMPLETED
    assert world.events_of(ExecutionRestarting) == []
    world.assert_exactly_once()


def test_a_stage_may_be_called_manifest(world: World) -> None:
    for number in range(3):
        write_input(world.folder / "in", number, random_rows(number, 20, 1))
    p = Pipeline("names")
    rows = rows_from(p, world.folder / "in", name="index", allowed_lag="500 ms")
    counted(rows, name="manifest").write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="state"
    )
    run(world, p, until="drained", max_items_per_epoch=1, snapshot_interval="0 ms")
    run(world, p)
    rows = oracle.input_rows(world.folder / "in")
    assert oracle.committed(world.folder / "out", WINDOW_COLUMNS) == oracle.windowed(rows, 1000)


# --- what can be asked ----------------------------------------------------------------------------


def test_state_ledger_and_snapshots(world: World) -> None:
    world.fill(files=4)
    world.run(until="drained")
    with world.jet() as jet:
        state = jet.job(child.JOB).read_state("counts")
        snapshots = jet.job(child.JOB).snapshots()
        ledger = jet.job(child.JOB).ledger().entries
        closed = jet.job(child.JOB).manifest().watermarks["reached_ms"]["counts"]
    assert state is not None
    state = state.filter(pc.greater(state.column("__window_end"), closed))
    sums = state.group_by(["k", "__window_end"]).aggregate([("__rows", "sum")]).to_pylist()
    found = Counter({(r["k"], r["__window_end"]): r["__rows_sum"] for r in sums})
    expected = Counter(
        {(k, end): n for k, _, end, n, _ in world.expected()["counts"] if end > closed}
    )
    assert found == expected and expected, "open windows are in the state, to the row"
    assert len(snapshots) == 3 and all(ref.committed for ref in snapshots)
    assert [s.snapshot_id for s in snapshots] == sorted(
        (s.snapshot_id for s in snapshots), reverse=True
    )
    assert {sink: entry.epoch_id for sink, entry in ledger.items()} == dict.fromkeys(
        ("counts_out", "rollup_out", "big_out"), snapshots[0].epoch_id
    )


def test_a_sink_that_was_put_back_to_an_old_copy_is_seen_in_the_ledger(world: World) -> None:
    world.fill(files=4)
    world.run(until="drained")
    before = {entry.sink: entry.epoch_id for entry in world.assert_ledger_is_true()}
    newest = max((world.folder / "out" / "big" / "_epochs").glob("[!.]*.json"))
    newest.unlink()
    after = {entry.sink: entry.epoch_id for entry in world.assert_ledger_is_true()}
    behind = after.pop("big_out")
    assert behind is None or behind < before.pop("big_out")
    assert after == {sink: before[sink] for sink in after}, "the others are where they were"
    with world.jet() as jet:
        assert jet.job(child.JOB).ledger().consistent_epoch == behind


def run_past_a_snapshot(
    world: World, files: int, until: str = "drained"
) -> tuple[int, dict[str, oracle.Rows]]:
    """The snapshot's id, and what was written after it, from so many files."""
    world.fill(files=2)
    world.run(until="drained")
    before = world.committed()
    with world.jet() as jet:
        wanted = jet.job(child.JOB).snapshots()[0].snapshot_id
    world.fill(files=files, first=2)
    world.run(until=until, snapshot_interval="1 hour")
    return wanted, {name: rows - before[name] for name, rows in world.committed().items()}


def assert_written_again(world: World, abandoned: Mapping[str, oracle.Rows]) -> None:
    """Everything once, and what the timeline that was left had written besides."""
    found, expected = world.committed(), world.expected()
    for name in expected:
        assert found[name] == expected[name] + abandoned[name], name


@long  # test_lake_recovery.py goes back and is killed
def test_back_to_an_older_snapshot(world: World) -> None:
    """A new timeline: what came after the snapshot is processed and written again, nothing else."""
    wanted, abandoned = run_past_a_snapshot(world, files=2)
    before = world.committed()
    with pytest.raises(JetError, match="snapshot 999 is not retained"):
        world.run(initial_snapshot=999)
    with pytest.raises(ConfigurationError, match=r"'big_out, .*repeat_output"):
        world.run(initial_snapshot=wanted)
    assert world.committed() == before, "nothing has changed"
    world.run(initial_snapshot=wanted, repeat_output=True)
    with world.jet() as jet:
        record = jet.job(child.JOB).record()
    assert record is not None and record.timeline == 2
    assert_written_again(world, abandoned)


@long
def test_back_from_the_end(world: World) -> None:
    """A completed job goes back when it is told to, once, and is completed again."""
    wanted, abandoned = run_past_a_snapshot(world, files=2, until="completed")
    for _ in range(2):
        assert world.run(initial_snapshot=wanted, repeat_output=True).status is JobStatus.COMPLETED
        assert_written_again(world, abandoned)
    record = world.record()
    assert record is not None and (record.timeline, record.rewound_to) == (2, wanted)


@long  # test_lake_recovery.py goes back and is killed
@pytest.mark.parametrize("end", ["kill", "raise"])
def test_back_to_an_older_snapshot_once(world: World, end: str) -> None:
    """Whoever begins with the same wish after a crash goes on: this process, or another one."""
    wanted, abandoned = run_past_a_snapshot(world, files=4)
    if end == "kill":
        for crash, timeline in zip(REWINDING_KILLED, (1, 2, 2), strict=True):
            world.run_child(crash.rules, start={"initial_snapshot": wanted, "repeat_output": True})
            died = world.record()
            assert died is not None and died.timeline == timeline
        world.run(until="drained", initial_snapshot=wanted, repeat_output=True)
    else:
        failpoint.configure(";".join(c.rules.replace("kill", "raise") for c in REWINDING_KILLED))
        world.run(until="drained", initial_snapshot=wanted, repeat_output=True)
        assert len(world.events_of(ExecutionRestarting)) == 3
    with world.jet() as jet:
        assert wanted not in [ref.snapshot_id for ref in jet.job(child.JOB).snapshots()]
    world.run(initial_snapshot=wanted)
    record = world.record()
    assert record is not None and (record.timeline, record.rewound_to) == (2, wanted)
    assert_written_again(world, abandoned)


def test_a_rewind_that_cannot_be_changes_nothing_and_damage_stops_no_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, _ = run_past_a_snapshot(world, files=2)
    with world.jet() as jet:
        before = jet.job(child.JOB).snapshots()
        manifest_name = next(r.manifest_name for r in before if r.snapshot_id == wanted)
        assert len(before) > 1 and before[0].snapshot_id != wanted
        pipeline = child.crash_pipeline(world.folder)
        assert not [c for c in jet.plan(pipeline, snapshot=wanted) if c.is_refused]

        # The pipeline does not fit: a typo, say.
        with monkeypatch.context() as changed:
            changed.setattr(child, "WINDOW_MS", 2 * child.WINDOW_MS)
            planned = jet.plan(child.crash_pipeline(world.folder), snapshot=wanted)
            assert [c.stage for c in planned if c.is_refused] == ["counts"]
            with pytest.raises(JetError, match=f"from the state in snapshot {wanted}"):
                world.run(initial_snapshot=wanted)
        assert jet.job(child.JOB).snapshots() == before

        # The snapshot is damaged.
        state = jet.store.map(f"jobs/{child.JOB}/state")
        state.delete_all([state.key(manifest_name)])
        with pytest.raises(SnapshotInvalidError, match="is missing"):
            world.run(initial_snapshot=wanted)
        assert jet.job(child.JOB).snapshots() == before
        record = jet.job(child.JOB).record()
        assert record is not None and (record.timeline, record.rewound_to) == (1, None)

        # Nor does the job need it.
        world.fill(files=1, first=4)
        world.run()
        [dropped] = world.events_of(SnapshotDropped)
        assert dropped.snapshot_id == wanted and "is missing" in dropped.reason
        assert wanted not in [ref.snapshot_id for ref in jet.job(child.JOB).snapshots()]
    world.assert_exactly_once()


def test_restarts_do_not_leak_scratch_files(world: World) -> None:
    world.fill(files=3)
    world.run_child("record.snapshot.after:2=kill")
    assert list((world.folder / "work").rglob("*.arrow")), "the dead child has left its runs"
    world.run()
    assert [p for p in (world.folder / "work").rglob("*") if p.is_file()] == []


def test_events_tell_the_story_in_order(world: World) -> None:
    world.fill(files=3)
    threads: set[str] = set()

    def remember(event: JobEvent) -> None:
        world.events.append(event)
        threads.add(threading.current_thread().name)

    with world.jet() as jet:
        result = jet.run(
            child.crash_pipeline(world.folder),
            JobConfig(**child.CONFIG),
            until="completed",
            on_event=remember,
        )
    assert threads == {f"jet-driver-{child.JOB}"}
    epochs = [e.epoch_id for e in world.events_of(EpochCompleted)]
    assert epochs == list(range(1, result.epochs + 1))
    last = world.events_of(SnapshotCommitted)[-1]
    rows = len(oracle.input_rows(world.folder / "in/left"))
    assert last.sources["left"].rows_read == rows == last.stages["left"].rows_out
    written = {f"{n}_out": r.total() for n, r in world.committed().items()}
    assert {n: last.stages[n].rows_out for n in written} == written
    assert result.rows_in == 2 * rows and result.rows_out == sum(written.values())
    manifest = sorted((world.folder / "out/big/_epochs").glob("*.json"))[-1]
    assert json.loads(manifest.read_text())["epoch"] <= last.epoch_id
