"""Maps as sources and sinks of real pipelines: killed, restarted, contents compared.

What a map must hold is computed by the oracle from the input files; how often it was written is
read from its journal, so that a change that was applied twice shows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import Jet, JetMap, JobConfig, JobResult, JournalConfig, Pipeline, sinks, sources
from dagster_jet.connectors.maps import map_sink
from dagster_jet.errors import BadRowError, PipelineError, SourceError
from dagster_jet.execution.events import ItemsLost, SnapshotCommitted
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.system import failpoint
from tests.long import long_but_for

from . import child, map_child
from .crash_table import MAPS_KILLED, Crash
from .oracle import by_manifest, committed, input_rows, windowed
from .world import World

CHANGE_COLUMNS = ("kind", "key", "price", "by", "partition", "sequence")
ENTRY_COLUMNS = ("key", "price", "by")


class MapWorld(World):
    """A world whose child and whose runs take a pipeline of `map_child`."""

    driver = staticmethod(map_child.main)

    def run_pipeline(
        self, make: Callable[[Path], Pipeline], until: str = "completed", **config: Any
    ) -> JobResult:
        with self.jet() as jet:
            return jet.run(
                make(self.folder),
                JobConfig(**{**child.CONFIG, **config}),
                until=until,
                on_event=self.see,
            )


@pytest.fixture
def world(world: World) -> MapWorld:
    return MapWorld(world.folder, world.fail_points, world.spark)


def journal_of(m: JetMap) -> list[tuple[str, str, str | None, int, int]]:
    """All events: kind, key, value as text, partition, sequence."""
    state = m.log.read_applied()
    assert state is not None and m.journal is not None
    return [
        (e.kind, e.key, e.value.decode() if e.kind == "put" else None, partition, e.version)
        for partition, tail in state.tails.items()
        for e in m.journal.read(partition, 0, tail)
    ]


# --- sinks.map_entries ----------------------------------------------------------------------------


def fill_totals(world: MapWorld) -> None:
    world.fill(files=4)
    with world.jet() as jet:
        jet.map("totals", journal=JournalConfig())


def expected_totals(world: MapWorld) -> dict[tuple[str, int], dict[str, int]]:
    counted = windowed(input_rows(world.folder / "in" / "left"), map_child.WINDOW_MS)
    return {(k, end): {"n": n, "total": total} for k, _, end, n, total in counted}


def assert_totals(world: MapWorld, jet: Jet) -> None:
    expected = expected_totals(world)
    totals = jet.map("totals")
    assert dict(totals.items()) == expected
    written = Counter(event[1] for event in journal_of(totals))
    assert set(written.values()) == {1} and len(written) == len(expected), "each window once"
    newest = {k: value["total"] for (k, _), value in sorted(expected.items())}
    assert dict(jet.map("newest").items()) == newest


@pytest.mark.parametrize("crash", long_but_for(MAPS_KILLED, "F9-maps.apply"), ids=str)
def test_files_to_windows_to_maps_killed(world: MapWorld, crash: Crash) -> None:
    fill_totals(world)
    world.run_child(crash.rules, pipeline="totals", sharded=crash.sharded)
    result = world.run_pipeline(map_child.totals)
    assert result.status is JobStatus.COMPLETED
    with world.jet() as jet:
        assert_totals(world, jet)
        for sink in ("totals_out", "newest_out"):
            assert jet.store.map(f"jobs/totals/staged/{sink}").keys("") == []


def test_large_epochs_are_applied_in_tasks(
    world: MapWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every epoch is large here."""
    monkeypatch.setattr(map_sink, "IN_PROCESS_BYTES_MAX", 0)
    applied_here = []
    monkeypatch.setattr(
        JetMap, "apply", lambda self, changes, producer=None: applied_here.append(changes)
    )
    fill_totals(world)
    assert world.run_pipeline(map_child.totals).status is JobStatus.COMPLETED
    assert applied_here == [], "no row passes the driver"
    with world.jet() as jet:
        assert_totals(world, jet)


def test_null_deletes_and_the_newest_row_of_an_epoch_wins(world: MapWorld) -> None:
    """Rows of one key in one epoch: the highest `order_by` counts, wherever it was read."""
    from .world import write_input

    rows = [{"k": f"k{n % 5}", "ts": n, "v": n} for n in range(50)]
    deletes = [{"k": "k1", "ts": 100, "v": None}, {"k": "k2", "ts": -1, "v": None}]
    write_input(world.folder / "in", 0, rows[::-1])
    write_input(world.folder / "in", 1, deletes)
    p = Pipeline("nulls")
    source = sources.files(f"{world.folder}/in", format="json", schema=map_child.SCHEMA)
    read = p.read_from(source, name="rows")
    read.write_to(sinks.map_entries("v", key="k", value="v", order_by="ts"), name="v_out")
    read.write_to(sinks.map_entries("rows", key=("k", "ts"), value=("ts", "v")), name="rows_out")
    world.run_pipeline(lambda _: p, max_items_per_epoch=10_000)
    with world.jet() as jet:
        # All in one epoch: k2's delete is older than its rows, k1's is not.
        assert dict(jet.map("v").items()) == {"k0": 45, "k2": 47, "k3": 48, "k4": 49}
        assert jet.map("rows").get(("k3", 8)) == {"ts": 8, "v": 8}
        assert jet.map("rows").size() == 52, "a value with one null among others is a value"


def test_rows_without_a_key_are_dead_letters(world: MapWorld) -> None:
    """Each of them, though they are in one epoch. Failed before: the job ended, whatever sink for
    dead letters it had."""
    from .world import write_input

    rows = [{"k": None if n % 3 == 0 else f"k{n}", "ts": n, "v": n} for n in range(9)]
    write_input(world.folder / "in", 0, rows)
    source = sources.files(f"{world.folder}/in", format="json", schema=map_child.SCHEMA)

    def pipeline(folder: Path, *, letters: bool = True) -> Pipeline:
        p = Pipeline("no_key")
        out = p.read_from(source, name="rows").write_to(sinks.map_entries("m", key="k"), name="out")
        if letters:
            to = sinks.files(f"{world.folder}/letters", format="json")
            out.dead_letter_to(to, name="letters")
        return p

    with pytest.raises(BadRowError, match="a column of its key is null"):
        world.run_pipeline(partial(pipeline, letters=False))
    world.run_pipeline(pipeline)
    raw = [json.loads(letter) for (letter,) in committed(world.folder / "letters", ("raw",))]
    found = Counter(json.loads(one["value"])["v"] for one in raw)
    assert found == Counter([0, 3, 6]) and {one["k"] for one in raw} == {None}
    with world.jet() as jet:
        assert sorted(v["v"] for _, v in jet.map("m").items()) == [1, 2, 4, 5, 7, 8]


def test_a_column_with_a_dot_is_no_field_of_a_struct(world: MapWorld) -> None:
    from .world import write_input

    write_input(world.folder / "in", 0, [{"k": "k0", "ts": 1, "v": 7}])
    p = Pipeline("dots")
    source = sources.files(f"{world.folder}/in", format="json", schema=map_child.SCHEMA)
    named = "named_struct('b', 'wrong') AS a", "v AS `a.b`", "k AS `k.k`", "ts AS `t.t`"
    rows = p.read_from(source, name="rows").select(*named)
    one = sinks.map_entries("one", key="k.k", value="a.b", order_by="t.t")
    rows.write_to(one, name="one_out")
    rows.write_to(sinks.map_entries("all", key="k.k"), name="all_out")
    world.run_pipeline(lambda _: p)
    with world.jet() as jet:
        assert jet.map("one").get("k0") == 7
        assert jet.map("all").get("k0") == {"a": {"b": "wrong"}, "a.b": 7, "t.t": 1}


def test_a_key_that_is_no_key_is_refused(world: MapWorld) -> None:
    world.fill(files=1)
    p = Pipeline("bad_key")
    source = sources.files(f"{world.folder}/in/left", format="json", schema="k double, v long")
    p.read_from(source, name="rows").write_to(sinks.map_entries("m", key="k"), name="out")
    with pytest.raises(PipelineError, match="key column 'k' is double"):
        world.run_pipeline(lambda _: p)


# --- sources.map_journal --------------------------------------------------------------------------


def put_prices(jet: Jet, first: int, count: int) -> None:
    """Puts, and a delete for every tenth key."""
    prices = jet.map("prices")
    numbers = range(first, first + count)
    prices.put_all([(f"k{n % 40}", {"price": n, "by": "test"}) for n in numbers])
    prices.delete_all([f"k{n % 40}" for n in numbers if n % 10 == 0])


def expected_changes(jet: Jet) -> Counter[tuple[Any, ...]]:
    rows: Counter[tuple[Any, ...]] = Counter()
    for kind, key, value, partition, sequence in journal_of(jet.map("prices")):
        read = json.loads(value) if value is not None else {"price": None, "by": None}
        row = (kind, json.loads(key), read["price"], read["by"], partition, sequence)
        rows[row] += 1
    return rows


def test_a_journal_to_files_killed_in_the_middle(world: MapWorld) -> None:
    config = {"max_items_per_epoch": 40}
    with world.jet() as jet:
        jet.map("prices", journal=JournalConfig())
        put_prices(jet, 0, 120)
    world.run_child("files.commit.file:2=kill", pipeline="changes", config=config)
    with world.jet() as jet:
        put_prices(jet, 120, 60)
        found = by_manifest(world.folder / "out" / "changes", CHANGE_COLUMNS)
        assert not found - expected_changes(jet)
    world.run_pipeline(map_child.changes, **config)
    with world.jet() as jet:
        expected = expected_changes(jet)
        assert expected.total() == 180 + 18
        assert committed(world.folder / "out" / "changes", CHANGE_COLUMNS) == expected
    assert world.events_of(ItemsLost) == []


def test_an_overflow_is_told_and_counted(world: MapWorld) -> None:
    with world.jet() as jet:
        prices = jet.map("prices", journal=JournalConfig(capacity=5))
        prices.put_all([("a", {"price": n}) for n in range(3)])
    world.run_pipeline(map_child.changes, until="drained")
    with world.jet() as jet:
        jet.map("prices").put_all([("a", {"price": n}) for n in range(3, 20)])
    world.run_pipeline(map_child.changes, until="drained")
    rows = committed(world.folder / "out" / "changes", CHANGE_COLUMNS)
    assert sorted(row[2] for row in rows) == [0, 1, 2, *range(15, 20)]
    [told] = world.events_of(ItemsLost)
    assert (told.source, told.lost, told.lost_in_all) == ("changes", 12, 12)
    assert world.events_of(SnapshotCommitted)[-1].sources["changes"].lost == 12
    with world.jet() as jet:
        counters = jet.job("changes").manifest().counters
        assert counters["changes"].lost == 12, "as durable as the position"
    world.run_pipeline(map_child.changes)
    assert len(world.events_of(ItemsLost)) == 1, "told once"


def test_values_that_do_not_fit_the_schema(world: MapWorld) -> None:
    """The job fails and says which event, or sets it aside."""
    with world.jet() as jet:
        prices = jet.map("prices", journal=JournalConfig())
        prices.put_all([("a", {"price": 1}), ("b", {"price": "dear"})])
    with pytest.raises(BadRowError, match='"dear"'):
        world.run_pipeline(map_child.changes)
    p = Pipeline("aside")
    source = sources.map_journal("prices", schema="price long")
    read = p.read_from(source, name="changes").dead_letter_to(
        sinks.files(f"{world.folder}/out/bad", format="json"), name="bad"
    )
    read.select("key", "value.price").write_to(
        sinks.files(f"{world.folder}/out/good", format="json"), name="good"
    )
    world.run_pipeline(lambda _: p)
    assert committed(world.folder / "out" / "good", ("key", "price")) == Counter([("a", 1)])
    [bad] = committed(world.folder / "out" / "bad", ("source", "reason", "raw"))
    assert bad == ("changes", "does not fit the schema", '{"price":"dear"}')


def test_a_pipeline_that_needs_a_journal_says_so(world: MapWorld) -> None:
    with world.jet() as jet:
        jet.map("prices").put("a", 1)
    with pytest.raises(SourceError, match="has no journal"):
        world.run_pipeline(map_child.changes)


# --- sources.map_entries --------------------------------------------------------------------------


def test_entries_to_files_restarted_in_the_middle(world: MapWorld) -> None:
    prices = {f"k{n}": {"price": n, "by": "test"} for n in range(200)}
    with world.jet() as jet:
        jet.map("prices").put_all(prices)
        jet.map("prices").delete("k7")
    failpoint.configure("epoch.acked:2=raise")
    result = world.run_pipeline(map_child.entries, max_items_per_epoch=10_000)
    assert (result.status, result.rows_out, result.restarts) == (JobStatus.COMPLETED, 199, 1)
    expected = Counter((k, v["price"], v["by"]) for k, v in prices.items() if k != "k7")
    assert committed(world.folder / "out" / "entries", ENTRY_COLUMNS) == expected
