"""A pipeline that changed under its saved state: what can go on goes on; what cannot is planned so,
refused at the start by name, and damages nothing: the old pipeline goes on where it was."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.errors import ConfigurationError, JetError, OutputLostError
from dagster_jet.execution.events import SinkReopened
from dagster_jet.pipeline.windows import Window
from dagster_jet.snapshot.owed import SinkChange
from dagster_jet.snapshot.plan import Change
from tests.long import long

from . import changed_child, child
from .oracle import Rows, committed, input_rows, visible_files, windowed
from .world import WINDOW_COLUMNS, World, write_input

SECONDS = windows.tumbling("1 second")
Pipelines = Callable[..., Pipeline]


@pytest.fixture
def pipeline(world: World) -> Pipelines:
    """Makes the pipeline as it was, or with a change."""

    def make(
        keys: tuple[str, ...] = ("k",),
        window: Window = SECONDS,
        name: str = "counts",
        schema: str = "k string, ts long, v long",
        *,
        key: str = "k",
        with_rows: bool = False,
        source_name: str = "rows",
    ) -> Pipeline:
        p = Pipeline("changing")
        source = sources.files(f"{world.folder}/in/left", format="json", schema=schema)
        read = p.read_from(source, name=source_name).with_timestamps("ts", allowed_lag="500 ms")
        rows = read.select(f"{key} AS k", "ts", "v")
        counts = (
            rows.group_by(*keys)
            .window(window)
            .aggregate(n=agg.count(), total=agg.sum("v"), name=name)
        )
        counts.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
        if with_rows:
            total = rows.rolling_aggregate(n=agg.count(), name="total")
            total.write_to(sinks.files(f"{world.folder}/total", format="json"), name="total_out")
        return p

    return make


def expected(world: World) -> Rows:
    return windowed(input_rows(world.folder / "in" / "left"), 1000)


def test_a_change_that_state_cannot_follow_is_planned_refused_and_harmless(
    world: World, pipeline: Pipelines
) -> None:
    world.fill(3)
    config = JobConfig(parallelism=2)
    with world.jet() as jet:
        jet.run(pipeline(), config, until="drained")
        before = visible_files(world.folder / "out")
        state = jet.job("changing").read_state("counts")
        world.fill(3, first=3)
        refused = {
            "keys was ['k'], is ['k', 'v']": pipeline(keys=("k", "v")),
            "size or slide of its windows was 1 second, is 2 seconds": pipeline(
                window=windows.tumbling("2 seconds")
            ),
        }
        for reason, changed in refused.items():
            (change,) = [c for c in jet.plan(changed) if c.is_refused]
            assert (change.stage, change.change) == ("counts", Change.INCOMPATIBLE)
            assert change.reason == reason
            with pytest.raises(JetError, match="Undo the change, or drop the state") as e:
                jet.run(changed, config, until="drained")
            assert "job 'changing', stage 'counts'" in str(e.value) and reason in str(e.value)
        renamed = pipeline(name="sums")
        assert [(c.stage, c.change) for c in jet.plan(renamed)] == [
            ("rows", Change.KEPT),
            ("sums", Change.NEW),
            ("counts", Change.DROPPED),
        ]
        with pytest.raises(JetError, match=r"state of counts, .*renamed=\{'counts': \.\.\.\}"):
            jet.run(renamed, config, until="drained")
        assert visible_files(world.folder / "out") == before
        assert jet.job("changing").read_state("counts").equals(state)
        assert not [c for c in jet.plan(pipeline()) if c.change is not Change.KEPT]
        jet.run(pipeline(), config, until="completed")
    assert committed(world.folder / "out", WINDOW_COLUMNS) == expected(world)


def test_renamed_stages_and_sources_keep_their_state(world: World, pipeline: Pipelines) -> None:
    """Several runs with the same words, which have an effect once; only one snapshot is kept."""
    config = JobConfig(parallelism=2, max_items_per_epoch=1, retained_snapshots=1)
    with world.jet() as jet:
        world.fill(3)
        jet.run(pipeline(), config, until="drained")
        changed = pipeline(name="sums", source_name="events")
        words = jet.plan(changed).needs.renamed
        assert words == {"rows": "events", "counts": "sums"}
        assert {c.change for c in jet.plan(changed, renamed=words)} == {Change.KEPT}
        with pytest.raises(
            ConfigurationError, match=r"renamed: .* no source or stateful stage 'x'"
        ):
            jet.run(changed, config, renamed={"counts": "x"})
        jet.run(changed, config, until="drained", renamed=words)  # without input
        for turn in (1, 2):
            world.fill(3, first=3 * turn)
            until = "completed" if turn == 2 else "drained"
            jet.run(changed, config, until=until, renamed=words)
    assert committed(world.folder / "out", WINDOW_COLUMNS) == expected(world)


def test_state_that_is_dropped_by_word_begins_empty_once(
    world: World, pipeline: Pipelines, caplog: pytest.LogCaptureFixture
) -> None:
    config = JobConfig(parallelism=2)
    with world.jet() as jet:
        world.fill(3)
        jet.run(pipeline(), config, until="drained")
        changed = pipeline(window=windows.tumbling("2 seconds"))
        needs = jet.plan(changed).needs
        assert (needs.renamed, needs.dropped) == ({}, {"counts"})
        for turn in (1, 2):
            world.fill(3, first=3 * turn)
            until = "completed" if turn == 2 else "drained"
            jet.run(changed, config, until=until, dropped_state=["counts"])
            assert ("dropped_state 'counts': the pipeline can use" in caplog.text) == (turn == 2)
    rows = committed(world.folder / "out", ("window_start", "window_end", "n"))
    of_two_seconds = sum(n * times for (start, end, n), times in rows.items() if end - start > 1000)
    assert of_two_seconds == 6 * 12, "the rows read since the change"


def test_a_stage_that_is_added_begins_empty_and_the_others_go_on(
    world: World, pipeline: Pipelines
) -> None:
    world.fill(3)
    with world.jet() as jet:
        jet.run(pipeline(), until="drained")
        world.fill(3, first=3)
        more = pipeline(with_rows=True)
        assert {c.stage: c.change for c in jet.plan(more)} == {
            "rows": Change.KEPT,
            "counts": Change.KEPT,
            "total": Change.NEW,
        }
        jet.run(more, JobConfig(parallelism=3), until="completed")
    assert committed(world.folder / "out", WINDOW_COLUMNS) == expected(world)
    totals = [
        json.loads(line)["n"]
        for path in (world.folder / "total").glob("*.json")
        for line in path.read_text("utf-8").splitlines()
    ]
    assert max(totals) == 3 * 12, "what was read before it was there is not read again"


@long
def test_a_key_of_another_type_is_planned_and_refused(world: World, pipeline: Pipelines) -> None:
    world.fill(2)
    with world.jet() as jet:
        jet.run(pipeline(), JobConfig(parallelism=2), until="drained")
        before = visible_files(world.folder / "out")
        changed = pipeline(schema="k binary, ts long, v long")
        reason = "its state has 'k' as string, it is binary now"
        assert [c.reason for c in jet.plan(changed) if c.is_refused] == [reason]
        with pytest.raises(JetError, match=f"stage 'counts': .* {reason}. Undo the change"):
            jet.run(changed, until="drained")
        assert visible_files(world.folder / "out") == before
        # Whether it may be null is no other type: it goes on so, and back again.
        for turn, key in enumerate(("coalesce(k, '')", "k", "coalesce(k, '')"), start=1):
            world.fill(2, first=2 * turn)
            until = "completed" if turn == 3 else "drained"
            jet.run(pipeline(key=key), JobConfig(parallelism=2), until=until)
    assert committed(world.folder / "out", WINDOW_COLUMNS) == expected(world)


# --- columns that a state needs, or has and would lose ------------------------------------------


def rows_kept(
    world: World,
    unique: str = "k ts v",
    left: str = "k ts",
    right: str = "k ts v",
    suffix: str = "_right",
) -> Pipeline:
    """Whole rows without duplicates, and each row of the left with its neighbours on the right."""
    p = Pipeline("kept")
    rows, others = (
        p.read_from(
            sources.files(
                f"{world.folder}/in/{side}",
                format="json",
                schema="k string, ts long, v long, v2 long",
            ),
            name=side,
        ).with_timestamps("ts", allowed_lag="500 ms")
        for side in ("left", "right")
    )
    stages = {
        "unique": rows.select(*unique.split()).deduplicate(within="1 s", name="unique"),
        "pairs": rows.select(*left.split()).join(
            others.select(*right.split()),
            on="k",
            within="1 s",
            how="left",
            suffix=suffix,
            name="pairs",
        ),
    }
    for name, stage in stages.items():
        sink = sinks.files(f"{world.folder}/out/{name}", format="json")
        stage.write_to(sink, name=f"{name}_out")
    return p


@long  # other changes are refused above
def test_a_column_that_the_state_lacks_or_would_lose_is_planned_and_refused(world: World) -> None:
    world.fill(2)
    config = JobConfig(parallelism=2)
    has = "its state has the keys ['k', 'ts', 'v'], they are"
    with world.jet() as jet:
        jet.run(rows_kept(world), config, until="drained")
        before = visible_files(world.folder / "out")
        world.fill(2, first=2)
        for stage, reason, changed in (
            ("unique", f"{has} ['k', 'ts'] now", rows_kept(world, unique="k ts")),
            ("unique", f"{has} ['k', 'ts', 'v', 'v2'] now", rows_kept(world, "k ts v v2")),
            ("unique", f"{has} ['v', 'k', 'ts'] now", rows_kept(world, unique="v k ts")),
            ("pairs", "its state has no column 'ts_other'", rows_kept(world, suffix="_other")),
            ("pairs", "its state has no column 'v'", rows_kept(world, left="k ts v", right="k ts")),
        ):
            (change,) = [c for c in jet.plan(changed) if c.is_refused]
            assert change.stage == stage and change.reason.startswith(reason)
            with pytest.raises(JetError, match="Undo the change") as e:
                jet.run(changed, config, until="drained")
            assert f"stage '{stage}'" in str(e.value) and change.reason in str(e.value)
        assert visible_files(world.folder / "out") == before
        less = rows_kept(world, right="k ts")
        assert not [c for c in jet.plan(less) if c.change is not Change.KEPT]
        jet.run(less, config, until="completed")
    rows, others = (input_rows(world.folder / "in" / side) for side in ("left", "right"))
    pairs = Counter(
        (r["k"], r["ts"], o["ts"])
        for r in rows
        for o in others
        if o["k"] == r["k"] and abs(o["ts"] - r["ts"]) <= 1000
    )
    matched = {(k, ts) for k, ts, _ in pairs}
    alone = Counter((r["k"], r["ts"], None) for r in rows if (r["k"], r["ts"]) not in matched)
    found = [
        tuple(row.get(name) for name in ("k", "ts", "ts_right"))
        for path in (world.folder / "out" / "pairs").glob("*.json")
        for row in map(json.loads, path.read_text("utf-8").splitlines())
    ]
    assert Counter(found) == pairs + alone


# --- sinks that leave between a decision and its commits -----------------------------------------


def test_what_was_decided_for_a_sink_is_committed_although_it_left_or_moved(world: World) -> None:
    """The driver is killed between record and commit; the next start has other sinks."""
    world.driver = changed_child.main
    world.fill(6)
    config = JobConfig(**child.CONFIG)
    world.run_child("commit.before:2=kill")
    with world.jet() as jet:
        manifest = jet.job(changed_child.JOB).manifest()
        files = manifest.counters["rows"].rows_in // 12
        assert {a.sink for a in manifest.artifacts} >= set(changed_child.BEFORE)
        after = {"kept": "kept", "new name": "renamed too", "moved": "moved away"}
        jet.run(
            changed_child.rows_into(world.folder, after),
            config,
            until="drained",
            on_event=world.see,
        )
        told = {(e.sink, e.change, e.place) for e in world.events_of(SinkReopened)}
        assert told == {
            ("dropped", SinkChange.LEFT, f"{world.folder}/out/dropped"),
            ("renamed", SinkChange.LEFT, f"{world.folder}/out/renamed"),
            ("moved", SinkChange.MOVED, f"{world.folder}/out/moved"),
        }
        # And back again, where files of an earlier time are.
        world.fill(2, first=6)
        jet.run(
            changed_child.rows_into(world.folder, changed_child.BEFORE), config, until="completed"
        )

    def rows(*places: str) -> Rows:
        return sum((committed(world.folder / "out" / p, ("k", "ts", "v")) for p in places), Rows())

    def read(first: int, end: int) -> Rows:
        found = Rows()
        for number in range(first, end):
            path = world.folder / "in" / "left" / f"{number:05d}.json"
            for row in map(json.loads, path.read_text("utf-8").splitlines()):
                found[row["k"], row["ts"], row["v"]] += 1
        return found

    assert 0 < files < 6
    assert rows("kept") == read(0, 8)
    assert rows("dropped") == read(0, files) + read(6, 8)
    assert rows("renamed") == read(0, files) + read(6, 8)
    assert rows("moved") == read(0, files) + read(6, 8)
    assert rows("renamed too") == rows("moved away") == read(files, 6)
    assert committed(world.folder / "out" / "counts", WINDOW_COLUMNS) == expected(world)
    assert world.staged() == []


@long  # a sink is renamed below, the driver is killed above
def test_renamed_sinks_keep_their_places(world: World) -> None:
    """The driver is killed in the middle of a commit, and again after the folder has changed hands
    and before that commit is completed."""
    world.driver = changed_child.main
    world.fill(4)
    before, after = ("a", "table"), ("b", "sheet")
    with closing(sqlite3.connect(world.folder / "rows.db")) as database:
        database.execute("create table rows (k text, ts bigint, v bigint)")
    world.run_child("files.commit.file:2=kill", sinks=before)
    p = changed_child.rows_into_both(world.folder, *after)
    config = JobConfig(**child.CONFIG)
    with world.jet() as jet:
        needed = jet.plan(p).needs.renamed
        assert needed == {"a": "b"}, "a table has no owner"
        assert jet.plan(changed_child.rows_into_both(world.folder, *before)).needs.renamed == {}
        with pytest.raises(
            ConfigurationError, match=r"belongs to 'changing-sinks/a'.*renamed=\{'a': 'b'\}"
        ):
            jet.run(p, config, until="drained")
    words = {"renamed": {"a": "b", "table": "sheet"}}
    world.run_child("commit.before:1=kill", sinks=after, start=words)
    with world.jet() as jet:
        jet.run(p, config, until="drained", on_event=world.see)  # the folder knows its owner
        assert {event.sink for event in world.events_of(SinkReopened)} == set(before)
        assert jet.plan(p).needs.renamed == {}
        world.fill(2, first=4)
        jet.run(p, config, until="completed")
    rows = Counter((r["k"], r["ts"], r["v"]) for r in input_rows(world.folder / "in" / "left"))
    assert committed(world.folder / "out" / "rows", ("k", "ts", "v")) == rows
    with closing(sqlite3.connect(world.folder / "rows.db")) as database:
        assert Counter(database.execute("select k, ts, v from rows").fetchall()) == rows
    assert world.staged() == []


def test_the_output_of_a_renamed_sink_is_still_its_own(world: World) -> None:
    """A start misses it in a folder that came back empty, and refuses to repeat it."""
    world.fill(2)
    config = JobConfig(**child.CONFIG)
    before, after = (changed_child.rows_into_both(world.folder, n, "table") for n in "ab")
    with closing(sqlite3.connect(world.folder / "rows.db")) as database:
        database.execute("create table rows (k text, ts bigint, v bigint)")
    with world.jet() as jet:
        jet.run(before, config, until="drained")
        folder = world.folder / "out" / "rows"
        folder.rename(world.folder / "elsewhere")
        folder.mkdir()
        with pytest.raises(OutputLostError, match="stage 'b'"):
            jet.run(after, config, until="drained", renamed={"a": "b"})
        assert not [*folder.iterdir()]
        folder.rmdir()
        (world.folder / "elsewhere").rename(folder)
        jet.run(after, config, until="drained", renamed={"a": "b"})
        # Its rows of before are its own: going back would write them again.
        oldest = jet.job(changed_child.JOB).snapshots()[-1].snapshot_id
        with pytest.raises(ConfigurationError, match=r"stage 'b, table'.*written again"):
            words = {"renamed": {"a": "b"}, "initial_snapshot": oldest}
            jet.run(after, config, until="drained", **words)


# --- what has died stays dead; what has not is not lost -----------------------------------------

Session = tuple[int, int, int, int]
"""First and last event, rows, total."""


@pytest.mark.parametrize(("before_s", "after_s"), [pytest.param(10, 100, marks=long), (100, 10)])
def test_a_session_ends_once_by_the_gap_of_its_time(
    world: World, pipeline: Pipelines, before_s: int, after_s: int
) -> None:
    """Chains of chunks still have sessions that are over. A longer gap would have them open again,
    at the restart after the change and at every later one; under a shorter gap those that were open
    are over, and due."""
    old, new = (pipeline(window=windows.session(f"{s} seconds")) for s in (before_s, after_s))
    # An epoch and a snapshot per file.
    config = JobConfig(parallelism=2, max_items_per_epoch=1, snapshot_interval="0 ms")
    with world.jet() as jet:
        fill_with_sessions(world, range(3))
        jet.run(old, config, until="drained")
        until_ms = jet.job("changing").manifest().watermarks["reached_ms"]["counts"]
        pieces = sessions(input_rows(world.folder / "in" / "left"), before_s * 1000)
        assert not [c for c in jet.plan(new) if c.change is not Change.KEPT]
        for numbers, until in ((range(3, 5), "drained"), (range(5, 6), "completed")):
            fill_with_sessions(world, numbers)
            jet.run(new, config, until=until)
    over = {
        (k, piece): piece[1] + before_s * 1000
        for k, mine in pieces.items()
        for piece in mine
        if piece[1] + before_s * 1000 < until_ms
    }
    later = sessions(
        [r for r in input_rows(world.folder / "in" / "left") if r["ts"] >= FILE_MS * 3], 1
    )
    expected: Rows = Counter()
    for (k, (first, _, n, total)), end in over.items():
        expected[k, first, end, n, total] += 1
    for k in pieces.keys() | later.keys():
        mine = [piece for piece in pieces.get(k, []) if (k, piece) not in over]
        if k in later:
            mine = merged([*mine, *later[k]], after_s * 1000)
        for first, last, n, total in mine:
            expected[k, first, last + after_s * 1000, n, total] += 1
    assert bool(over) == (before_s < after_s)
    assert committed(world.folder / "out", WINDOW_COLUMNS) == expected


FILE_MS = 30_000


def fill_with_sessions(world: World, numbers: Iterable[int]) -> None:
    """A file's rows lie within 20 seconds of its 30; not every key is in every file."""
    for number in numbers:
        rng = random.Random(f"sessions {number}")
        rows = [
            {"k": f"key-{key}", "ts": number * FILE_MS + 1000 * rng.randrange(20), "v": key}
            for key in range(100)
            if rng.random() < 0.3
            for _ in range(2)
        ]
        write_input(world.folder / "in" / "left", number, rows)


def sessions(rows: Iterable[dict[str, Any]], gap_ms: int) -> dict[str, list[Session]]:
    events = defaultdict(list)
    for row in rows:
        events[row["k"]].append((row["ts"], row["ts"], 1, row["v"]))
    return {k: merged(mine, gap_ms) for k, mine in events.items()}


def merged(pieces: Iterable[Session], gap_ms: int) -> list[Session]:
    found: list[Session] = []
    for first, last, n, total in sorted(pieces):
        if found and first < found[-1][1] + gap_ms:
            begin, end, m, sum_ = found.pop()
            found.append((begin, max(end, last), m + n, sum_ + total))
        else:
            found.append((first, last, n, total))
    return found
