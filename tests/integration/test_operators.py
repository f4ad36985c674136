"""Every stateful operator on Spark, over several executions at changing parallelism, against
results recomputed from the input files one event at a time."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_jet import JobConfig, Pipeline, State, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.contract import Sink
from dagster_jet.dag import (
    Emitter,
    Inbox,
    ItemProcessor,
    Outbox,
    ProcessorContext,
    snapshot_emitter,
)
from dagster_jet.execution import epoch_driver
from dagster_jet.execution.events import SnapshotCommitted
from dagster_jet.pipeline import Stage
from tests.long import long

from .oracle import difference, input_rows
from .row_operators import (
    counted,
    expected_counted,
    expected_matched,
    expected_named,
    expected_running,
    expected_timed,
    matched,
    named,
    running,
    timed,
)
from .world import World, write_input

SCHEMA = "k string, ts long, v long"
LAG_MS = 400
Row = dict[str, Any]


def events(
    seed: str, files: int = 8, rows: int = 25, keys: Sequence[str] = "abcdef"
) -> list[list[Row]]:
    """Times go up from file to file and jump about within one, never further back than the lag."""
    rng = random.Random(seed)
    return [
        [
            {
                "k": rng.choice(keys),
                "ts": number * 1_000 + rng.randrange(LAG_MS) + (5_000 if number > 5 else 0),
                "v": rng.randrange(100),
            }
            for _ in range(rows)
        ]
        for number in range(files)
    ]


def sliding(rows: Stage, name: str = "op") -> Stage:
    keyed = rows.group_by("k").window(windows.sliding("3 seconds", "500 ms"))
    return keyed.aggregate(n=agg.count(), total=agg.sum("v"), name=name)


def expected_sliding(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows:
        first = row["ts"] - row["ts"] % 500 + 500
        for end in range(first, first + 3_000, 500):
            found[row["k"], end].append(row["v"])
    for (k, end), values in found.items():
        yield (k, iso(end - 3_000), iso(end), len(values), sum(values))


def session(rows: Stage, name: str = "op", most: str | None = None) -> Stage:
    keyed = rows.group_by("k").window(windows.session("700 ms", max_duration=most))
    return keyed.aggregate(n=agg.count(), top=agg.max("v"), name=name)


def expected_session(
    rows: list[Row], _: list[Row], most: int = 10**15
) -> Iterator[tuple[Any, ...]]:
    """`most`: largest duration, in ms."""
    by_key: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["ts"]):
        by_key[row["k"]].append(row)
    for k, mine in by_key.items():
        current = [mine[0]]
        for row in [*mine[1:], None]:
            end = min(current[-1]["ts"] + 700, current[0]["ts"] + most)
            if row is None or row["ts"] >= end:
                ends = (iso(current[0]["ts"]), iso(end))
                yield (k, *ends, len(current), max(r["v"] for r in current))
                current = []
            if row is not None:
                current.append(row)


def expressions(rows: Stage, name: str = "op") -> Stage:
    """Aggregates of expressions, under conditions, and of whole rows."""
    keyed = rows.group_by("k").window(windows.tumbling("2 seconds"))
    return keyed.aggregate(
        odd=agg.count_if("v % 2 = 1"),
        total=agg.sum("case when v > 50 then v - 50 else 0 end"),
        high=agg.max("v", where="v < 70"),
        last=agg.last("struct(ts, if(v > 30, v, null) as v)"),
        best=agg.min_by("struct(ts, v)", "abs(v - 42)"),
        values=agg.collect_set("v div 10", where="ts % 3 = 0"),
        usual=agg.mode("v div 10"),
        all=agg.bool_and("v < 90"),
        name=name,
    ).select(
        "k", "window_end", "to_json(struct(odd, total, high, last, best, values, usual, all)) r"
    )


def expected_expressions(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    found: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        found[row["k"], row["ts"] - row["ts"] % 2_000 + 2_000].append((row["ts"], row["v"]))
    for (k, end), mine in found.items():
        values = [v for _, v in mine]
        # Of equal times and ranks the greater, or the smaller, row counts; null is the smallest.
        last = max((ts, v if v > 30 else -1) for ts, v in mine)
        _, best = min((abs(v - 42), (ts, v)) for ts, v in mine)
        counts = Counter(v // 10 for v in values)
        result = {
            "odd": sum(v % 2 for v in values),
            "total": sum(max(v - 50, 0) for v in values),
            "high": max((v for v in values if v < 70), default=None),
            "last": {"ts": last[0], "v": last[1] if last[1] > 0 else None},
            "best": {"ts": best[0], "v": best[1]},
            "values": sorted({v // 10 for ts, v in mine if ts % 3 == 0}),
            "usual": min(counts, key=lambda value: (-counts[value], value)),
            "all": all(v < 90 for v in values),
        }
        yield (k, iso(end), without_nulls(result))


def without_nulls(value: Any) -> str:
    """Row as Spark's `to_json` writes it: without nulls."""
    if isinstance(value, dict):
        fields = {name: without_nulls(v) for name, v in value.items() if v is not None}
        return "{" + ",".join(f'"{name}":{text}' for name, text in fields.items()) + "}"
    return json.dumps(value, separators=(",", ":"))


def deduplicated(keep: str) -> Callable[..., Stage]:
    def build(rows: Stage, name: str = "op") -> Stage:
        kept = rows.deduplicate(within="2 seconds", on="k", keep=keep, name=name)
        return kept.select("k", "ts", "v")

    return build


def expected_deduplicated(keep: str) -> Callable[..., Iterator[tuple[Any, ...]]]:
    """Rows of one key and time in order of arrival: a file after the other, line by line."""

    def expect(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
        groups: dict[str, list[list[Row]]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row["ts"]):
            mine = groups[row["k"]]
            if not mine or row["ts"] > mine[-1][0]["ts"] + 2_000:
                mine.append([])
            mine[-1].append(row)
        for mine in groups.values():
            for group in mine:
                row = group[0 if keep == "first" else -1]
                yield (row["k"], row["ts"], row["v"])

    return expect


def joined(how: str) -> Callable[[Stage, Stage], Stage]:
    def build(rows: Stage, others: Stage, name: str = "op") -> Stage:
        return rows.join(others, on="k", within="300 ms", how=how, name=name)

    return build


def have_an_even_sum(pairs: pa.Table) -> pa.ChunkedArray:
    return pc.equal(pc.bit_wise_and(pc.add(pairs["v"], pairs["v_right"]), 1), 0)


def bounded(how: str) -> Callable[[Stage, Stage], Stage]:
    """Pipeline of a join between bounds that differ, under a condition."""

    def build(rows: Stage, others: Stage, name: str = "op") -> Stage:
        return rows.join(
            others, on="k", between=("-50 ms", "600 ms"), how=how, name=name,
            condition=have_an_even_sum,
        ).select("k", "ts", "v", "v_right" if how == "left" else "0 AS v_right")  # fmt: skip

    return build


def numbered_by_key(rows: list[Row]) -> defaultdict[str, list[tuple[int, Row]]]:
    of_key: defaultdict[str, list[tuple[int, Row]]] = defaultdict(list)
    for number, row in enumerate(rows):
        of_key[row["k"]].append((number, row))
    return of_key


def expected_bounded(how: str) -> Callable[..., Iterator[tuple[Any, ...]]]:
    def expect(rows: list[Row], others: list[Row]) -> Iterator[tuple[Any, ...]]:
        of_key = numbered_by_key(others)
        for row in rows:
            partners = [
                other["v"]
                for _, other in of_key[row["k"]]
                if -50 <= other["ts"] - row["ts"] <= 600 and (other["v"] + row["v"]) % 2 == 0
            ]
            if how == "left":
                yield from ((row["k"], row["ts"], row["v"], v) for v in partners or [None])
            elif bool(partners) == (how == "semi"):
                yield (row["k"], row["ts"], row["v"], 0)

    return expect


def expected_joined(how: str) -> Callable[..., Iterator[tuple[Any, ...]]]:
    def expect(rows: list[Row], others: list[Row]) -> Iterator[tuple[Any, ...]]:
        matched: set[int] = set()
        of_key = numbered_by_key(others)
        for row in rows:
            found = False
            for place, other in of_key[row["k"]]:
                if abs(row["ts"] - other["ts"]) <= 300:
                    found = True
                    matched.add(place)
                    yield (row["k"], row["ts"], row["v"], other["ts"], other["v"])
            if not found and how in ("left", "outer"):
                yield (row["k"], row["ts"], row["v"], None, None)
        if how in ("right", "outer"):
            for place, other in enumerate(others):
                if place not in matched:
                    yield (other["k"], None, None, other["ts"], other["v"])

    return expect


def joined_as_of(rows: Stage, others: Stage, name: str = "op") -> Stage:
    return rows.join_as_of(others, on="k", keep="250 ms", name=name)


def expected_as_of(rows: list[Row], others: list[Row]) -> Iterator[tuple[Any, ...]]:
    """Expected rows of an as-of join. Of two versions with the same key and time the later one
    counts; files are read one after the other."""
    of_key = numbered_by_key(others)
    for row in rows:
        known = [
            (other["ts"], number, other["v"])
            for number, other in of_key[row["k"]]
            if row["ts"] - 250 <= other["ts"] <= row["ts"]
        ]
        ts, _, v = max(known, default=(None, None, None))
        yield (row["k"], row["ts"], row["v"], ts, v)


def rules(rows: Stage, others: Stage, name: str = "op") -> Stage:
    """Each row with the newest row of every other key, if their values fit."""

    def fits(pairs: pa.Table) -> pa.ChunkedArray:
        return pc.greater(pairs["v_right"], pairs["v"])

    return rows.join_as_of(others, on=[], versions_of="k", condition=fits, keep="250 ms", name=name)


def expected_rules(rows: list[Row], others: list[Row]) -> Iterator[tuple[Any, ...]]:
    of_key = numbered_by_key(others)
    for row in rows:
        found = False
        for key, versions in of_key.items():
            known = [
                (other["ts"], number, other["v"])
                for number, other in versions
                if row["ts"] - 250 <= other["ts"] <= row["ts"]
            ]
            if known and max(known)[2] > row["v"]:
                found = True
                ts, _, v = max(known)
                yield (row["k"], row["ts"], row["v"], key, ts, v)
        if not found:
            yield (row["k"], row["ts"], row["v"], None, None, None)


def mapped(rows: Stage, name: str = "op", **options: Any) -> Stage:
    def running_total(state: State[int], row: Row) -> Row | None:
        state.value += row["v"]
        if row["v"] % 10 == 0:
            state.clear()
            return None
        return {"k": row["k"], "ts": row["ts"], "total": state.value}

    return rows.group_by("k").map_stateful(
        running_total, create=int, output_schema="k string, ts long, total long", name=name,
        **options,
    )  # fmt: skip


def expected_mapped(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    """Epoch by epoch: one file per epoch, rows by time, then by arrival."""
    totals: dict[str, int] = defaultdict(int)
    for row in rows_by_file_and_time(rows):
        totals[row["k"]] += row["v"]
        if row["v"] % 10 == 0:
            del totals[row["k"]]
        else:
            yield (row["k"], row["ts"], totals[row["k"]])


def processed(rows: Stage, name: str = "op", **options: Any) -> Stage:
    class Numbering(ItemProcessor):
        """Numbers the rows of each key, remembers all numbers of all keys for a last word."""

        def init(self, outbox: Outbox, context: ProcessorContext) -> None:
            super().init(outbox, context)
            self.counts: dict[str, int] = {}
            self.saving = snapshot_emitter(outbox.offer_to_snapshot)
            self.at_end = Emitter(outbox.offer)

        def process_item(self, ordinal: int, item: Any) -> bool:
            number = self.counts.get(item["k"], 0) + 1
            if not self.outbox.offer({"k": item["k"], "n": number}):
                return False
            self.counts[item["k"]] = number
            return True

        def complete(self) -> bool:
            return self.at_end.emit(lambda: [{"k": k, "n": -n} for k, n in self.counts.items()])

        def save_to_snapshot(self) -> bool:
            return self.saving.emit(lambda: list(self.counts.items()))

        def restore_from_snapshot(self, inbox: Inbox) -> bool:
            self.counts.update(inbox.drain())
            return True

    return rows.group_by("k").apply_processor(
        Numbering, output_schema="k string, n long", name=name, **options
    )


def expected_processed(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    for k, n in Counter(row["k"] for row in rows).items():
        yield from ((k, number) for number in range(1, n + 1))
        yield (k, -n)


def rows_by_file_and_time(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["ts"])


Expect = Callable[[list[Row], list[Row]], Iterator[tuple[Any, ...]]]
OPERATORS: dict[str, tuple[Callable[..., Stage], Expect, str]] = {
    "sliding": (sliding, expected_sliding, "k window_start window_end n total"),
    "session": (session, expected_session, "k window_start window_end n top"),
    "bounded_session": (
        partial(session, most="1100 ms"),
        partial(expected_session, most=1_100),
        "k window_start window_end n top",
    ),
    "expressions": (expressions, expected_expressions, "k window_end r"),
    "deduplicate": (deduplicated("first"), expected_deduplicated("first"), "k ts v"),
    "deduplicate_last": (deduplicated("last"), expected_deduplicated("last"), "k ts v"),
    "map_stateful": (mapped, expected_mapped, "k ts total"),
    "timers": (timed, expected_timed, "k ts n"),
    "named_timers": (named, expected_named, "k ts timer n"),
    "running": (running, expected_running, "k ts v before third after total n high mean"),
    "count_window": (counted, expected_counted, "k ts r"),
    "sliding_count_window": (
        partial(counted, slide=3),
        partial(expected_counted, slide=3),
        "k ts r",
    ),
    "match": (matched, expected_matched, "k ts a b c"),
    "processor": (processed, expected_processed, "k n"),
    **{
        f"join_{how}": (joined(how), expected_joined(how), "k ts v ts_right v_right")
        for how in ("inner", "left", "right", "outer")
    },
    **{
        f"join_bounded_{how}": (bounded(how), expected_bounded(how), "k ts v v_right")
        for how in ("left", "semi", "anti")
    },
    "join_as_of": (joined_as_of, expected_as_of, "k ts v ts_right v_right"),
    "join_rules": (rules, expected_rules, "k ts v k_right ts_right v_right"),
}


def iso(time_ms: int) -> str:
    from datetime import datetime, timezone

    time = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("name", "few_groups"),
    [
        # Most of the others restart in test_golden_snapshots.py and in test_two_runtimes.py.
        *(
            pytest.param(name, False, marks=[] if name == "named_timers" else long)
            for name in OPERATORS
        ),
        # In one task. An outer join has the rows of all joins without bounds.
        *(
            pytest.param(name, True, marks=long)
            for name in ("deduplicate_last", "bounded_session", "session", "join_outer")
        ),
    ],
)
def test_operator_over_restarts_at_other_parallelism(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, few_groups: bool
) -> None:
    """Parallelism 1, 12, 5, 3: every execution begins in the middle of windows and states."""
    if not few_groups:
        monkeypatch.setattr(epoch_driver, "FEW_GROUPS", -1)
    batches = {side: events(f"{name}{side}") for side in sides(name)}
    for turn, parallelism in enumerate((1, 12, 5, 3)):
        for side in batches:
            for number in (2 * turn, 2 * turn + 1):
                write_input(world.folder / "in" / side, number, batches[side][number])
        with world.jet() as jet:
            config = JobConfig(parallelism=parallelism, max_items_per_epoch=20)
            until = "completed" if turn == 3 else "drained"
            jet.run(operator_pipeline(name, world.folder), config, until=until)
    assert not wrong_rows(name, world.folder), name


def sides(name: str) -> tuple[str, ...]:
    """The streams that an operator reads."""
    return ("left", "right") if name.startswith("join") else ("left",)


def operator_pipeline(name: str, folder: Path, **place: Any) -> Pipeline:
    """`place`: what sources and sinks are told of the place that `folder` is in."""
    p = Pipeline(f"operator_{name}")
    streams = []
    for side in sides(name):
        source = sources.files(f"{folder}/in/{side}", format="json", schema=SCHEMA, **place)
        stream = p.read_from(source, name=side)
        streams.append(stream.with_timestamps("ts", allowed_lag=f"{LAG_MS} ms"))
    out = sinks.files(f"{folder}/out", format="json", **place)
    OPERATORS[name][0](*streams).write_to(out, name="out")
    return p


def wrong_rows(name: str, folder: Path) -> str:
    """Difference between an operator's output and the rows expected from its input files."""
    _, expect, columns = OPERATORS[name]
    read = [input_rows(folder / "in" / side) for side in sides(name)]
    return difference(
        Counter(committed(folder / "out", columns)), Counter(expect(*read, *[[]] * (2 - len(read))))
    )


def committed(folder: Path, columns: str) -> Iterator[tuple[Any, ...]]:
    for path in folder.glob("*.json"):
        for line in path.read_text("utf-8").splitlines():
            yield tuple(json.loads(line).get(column) for column in columns.split())


@long  # test_nexmark.py counts late and other rows, and is killed
def test_late_rows_go_to_their_sink_and_nothing_is_lost(world: World) -> None:
    everything = restless_batches(world.folder / "in")
    with world.jet() as jet:
        config = JobConfig(max_items_per_epoch=20)
        result = jet.run(late_pipeline(world.folder), config, until="completed")
    assert result.epochs > 5
    check_late_rows(world.folder, everything)


LATE_KINDS = {
    "tumbling": windows.tumbling("500 ms"),
    "sliding": windows.sliding("1 second", "500 ms"),
    "session": windows.session("100 ms"),
}


def late_pipeline(folder: Path, **place: Any) -> Pipeline:
    """No lag is allowed, so what jumps back is late."""

    def sink(name: str) -> Sink:
        return sinks.files(f"{folder}/{name}", format="json", **place)

    p = Pipeline("late")
    source = sources.files(f"{folder}/in", format="json", schema=SCHEMA, **place)
    rows = p.read_from(source, name="rows").with_timestamps("ts")
    for name, window in LATE_KINDS.items():
        stage = rows.group_by("k").window(window).aggregate(n=agg.count(), name=name)
        stage.late_to(sink(f"{name}_late"), name=f"{name}_l")
        stage.write_to(sink(name), name=f"{name}_out")
    kept = rows.deduplicate(on=("k", "ts", "v"), within="10 ms", name="kept")
    kept.late_to(sink("kept_late"), name="kept_l")
    kept.write_to(sink("kept"), name="kept_out")
    return p


def check_late_rows(folder: Path, everything: list[Row]) -> None:
    """Results and late rows make up the input."""
    copies = {"tumbling": 1, "sliding": 2, "session": 1}
    for name in LATE_KINDS:
        late = Counter(committed(folder / f"{name}_late", "k ts v"))
        assert not late - Counter((r["k"], r["ts"], r["v"]) for r in everything)
        counted = sum(n for (n,) in committed(folder / name, "n"))
        assert late and counted == copies[name] * (len(everything) - late.total())
    both = Counter(committed(folder / "kept", "k ts v"))
    both.update(committed(folder / "kept_late", "k ts v"))
    assert both == Counter((r["k"], r["ts"], r["v"]) for r in everything)


def restless_batches(
    folder: Path, rows: int = 20, keys: Sequence[str] = "abc", files: int = 8
) -> list[Row]:
    """Every row is another one, and many jump back."""
    rng = random.Random("late")
    everything = []
    for number in range(files):
        batch = [
            {
                "k": rng.choice(keys),
                "ts": number * 300 + rng.randrange(1500),
                "v": rows * number + place,
            }
            for place in range(rows)
        ]
        everything += batch
        write_input(folder, number, batch)
    return everything


@long
def test_late_rows_of_functions_processors_and_both_sides_of_a_join(world: World) -> None:
    """A ttl of 0 is one; what a sink takes the processor does not get; an outer join shows all
    that is in time; both sides have columns of their own."""
    folder = world.folder / "in"
    folder.mkdir()
    p = Pipeline("late_too")
    source = sources.files(str(folder), format="json", schema=SCHEMA)
    rows = p.read_from(source, name="rows").with_timestamps("ts")
    others = rows.select("k", "ts", "v AS w")
    mapped = rows.group_by("k").map_stateful(
        lambda state, row: row, create=int, ttl="0 seconds", output_schema=SCHEMA, name="mapped"
    )
    joined = rows.join(others, on="k", within="100 ms", how="outer", name="joined")
    numbered = processed(rows, "numbered")
    matched = rows.group_by("k").match(a="v < 5", b="v >= 5", within="1 second", name="matched")
    late: Any
    for late, name, side in (
        (mapped, "mapped_late", {}),
        (numbered, "numbered_late", {}),
        (matched, "matched_late", {}),
        (joined, "left_late", {"side": "left"}),
        (joined, "right_late", {"side": "right"}),
    ):
        late.late_to(sinks.files(f"{world.folder}/{name}", format="json"), name=name, **side)
    for stage, name in ((mapped, "out"), (numbered, "numbers"), (joined, "pairs")):
        stage.write_to(sinks.files(f"{world.folder}/{name}", format="json"), name=name)
    everything = {(r["k"], r["ts"], r["v"]) for r in restless_batches(folder)}
    with world.jet() as jet:
        jet.run(p, JobConfig(max_items_per_epoch=20), until="completed", on_event=world.see)
    late = Counter(committed(world.folder / "mapped_late", "k ts v"))
    assert late and late == Counter(committed(world.folder / "numbered_late", "k ts v"))
    assert late == Counter(committed(world.folder / "matched_late", "k ts v"))
    assert late == Counter(committed(world.folder / "left_late", "k ts v"))
    assert late == Counter(committed(world.folder / "right_late", "k ts w"))
    in_time = everything - set(late)
    assert Counter(committed(world.folder / "out", "k ts v")) == Counter(in_time)
    assert len([n for (n,) in committed(world.folder / "numbers", "n") if n > 0]) == len(in_time)
    pairs = list(committed(world.folder / "pairs", "k ts v ts_right w"))
    assert {(k, ts, v) for k, ts, v, _, _ in pairs if v is not None} == in_time
    assert {(k, ts, w) for k, _, _, ts, w in pairs if w is not None} == in_time
    told = [event for event in world.events if isinstance(event, SnapshotCommitted)][-1].stages
    counts = {name: told[name].late for name in ("mapped", "numbered", "joined")}
    assert counts == {"mapped": len(late), "numbered": len(late), "joined": 2 * len(late)}


HOUR, DAY = 3_600_000, 86_400_000


def test_stages_behind_windows_find_results_inside_of_their_windows(world: World) -> None:
    """48 hours, with an event at the first millisecond of each and one at the last; no lag, so that
    watermarks stand on the bounds of windows and the ends of sessions."""
    events = [
        {"k": k, "ts": hour * HOUR + (HOUR - 1 if k == "last" else 0), "v": hour}
        for hour in range(48)
        for k in ("first", "last")
    ]
    p = Pipeline("chained")
    source = sources.files(f"{world.folder}/in", format="json", schema=SCHEMA)
    rows = p.read_from(source, name="rows").with_timestamps("ts", idle_timeout="0 ms")
    by_key = rows.group_by("k")
    hours = by_key.window(windows.tumbling("1 hour")).aggregate(n=agg.count(), name="hours")
    visits = by_key.window(windows.session("1 hour")).aggregate(n=agg.count(), name="visits")
    stages = {
        kind: stage.group_by("k")
        .window(windows.tumbling("1 day"))
        .aggregate(n=agg.sum("n"), name=f"days of {kind}")
        for kind, stage in (("hours", hours), ("visits", visits))
    }
    stages["kept"] = hours.deduplicate(on="k", within="2 hours", name="kept")
    stages["met"] = hours.join(rows, on="k", within="0 ms", how="left", name="met")
    for name, stage in stages.items():
        stage.write_to(sinks.files(f"{world.folder}/{name}", format="json"), name=f"{name} out")
    for number in range(9):  # the fifth ends with the first event of the second day
        write_input(world.folder / "in", number, events[max(12 * number - 11, 0) : 12 * number + 1])
    with world.jet() as jet:
        config = JobConfig(max_items_per_epoch=1, parallelism=1)
        result = jet.run(p, config, until="completed", on_event=world.see)
    assert result.epochs >= 9
    told = [event for event in world.events if isinstance(event, SnapshotCommitted)][-1].stages
    assert not [name for name, stage in told.items() if stage.late]

    of_hours = [(k, hour * HOUR + HOUR - 1) for hour in range(48) for k in ("first", "last")]
    of_visits = [(row["k"], row["ts"] + HOUR - 1) for row in events]
    for kind, results in (("hours", of_hours), ("visits", of_visits)):
        days = Counter((k, time // DAY) for k, time in results)
        assert set(days.values()) == ({24} if kind == "hours" else {24, 23, 1})
        assert Counter(committed(world.folder / kind, "k window_start n")) == Counter(
            (k, iso(day * DAY), n) for (k, day), n in days.items()
        )
    ends = {k: [iso((hour + 1) * HOUR) for hour in range(48)] for k in ("first", "last")}
    assert Counter(committed(world.folder / "kept", "k window_end")) == Counter(
        (k, end) for k in ends for end in ends[k][::3]
    )
    assert Counter(committed(world.folder / "met", "k window_end v")) == Counter(
        (k, end, hour if k == "last" else None) for k in ends for hour, end in enumerate(ends[k])
    )


def test_an_event_time_column_may_have_a_dot(world: World) -> None:
    rows = [{"k": "a", "at.ms": number * 100} for number in range(20)]
    write_input(world.folder / "in", 1, rows)
    p = Pipeline("dotted")
    source = sources.files(f"{world.folder}/in", format="json", schema="k string, `at.ms` long")
    stream = p.read_from(source, name="rows").with_timestamps("at.ms")
    # Behind a filter, it is Spark that observes event time.
    counts = stream.filter("k = 'a'").window(windows.tumbling("1 second"))
    counts.aggregate(n=agg.count(), name="op").write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    with world.jet() as jet:
        jet.run(p, until="completed")
    assert list(committed(world.folder / "out", "n")) == [(10,), (10,)]


def test_rolling_totals_end_in_the_truth(world: World) -> None:
    for turn, parallelism in enumerate((1, 3, 2)):
        write_input(world.folder / "in", turn, events("rolling", files=3)[turn])
        with world.jet() as jet:
            config = JobConfig(parallelism=parallelism)
            jet.run(rolling_pipeline(world.folder), config, until="drained")
    check_rolling_totals(world.folder)


def rolling_pipeline(folder: Path, **place: Any) -> Pipeline:
    p = Pipeline("rolling")
    source = sources.files(f"{folder}/in", format="json", schema=SCHEMA, **place)
    totals = (
        p.read_from(source, name="rows")
        .with_timestamps("ts", allowed_lag="1 second")
        .group_by("k")
        .rolling_aggregate(n=agg.count(), total=agg.sum("v"), top=agg.max("v"), name="op")
    )
    totals.write_to(sinks.files(f"{folder}/out", format="json", **place), name="out")
    return p


def check_rolling_totals(folder: Path) -> None:
    """One row per touched key and epoch; the greatest count of a key is all of it."""
    found = sorted(committed(folder / "out", "k n total top"), key=lambda row: row[1])
    values: dict[str, list[int]] = defaultdict(list)
    for row in input_rows(folder / "in"):
        values[row["k"]].append(row["v"])
    expected = {k: [len(of_key), sum(of_key), max(of_key)] for k, of_key in values.items()}
    assert {k: rest for k, *rest in found} == expected
    assert len(found) == len(set(found)) > len(expected)


def test_early_results_come_before_the_final_ones_and_change_nothing(world: World) -> None:
    for number, batch in enumerate(events("early")):
        write_input(world.folder / "in", number, batch)
    with world.jet() as jet:
        config = JobConfig(max_items_per_epoch=20)
        jet.run(early_pipeline(world.folder), config, until="completed")
    check_early_results(world.folder)


def early_pipeline(folder: Path, **place: Any) -> Pipeline:
    def sink(name: str) -> Sink:
        return sinks.files(f"{folder}/{name}", format="json", **place)

    p = Pipeline("early")
    source = sources.files(f"{folder}/in", format="json", schema=SCHEMA, **place)
    rows = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag=f"{LAG_MS} ms")
    for name, window in {
        "tumbling": windows.tumbling("3 seconds"),
        "session": windows.session("700 ms"),
    }.items():
        keyed = rows.group_by("k").window(window, early_results="1 ms")
        stage = keyed.aggregate(n=agg.count(), name=name)
        stage.write_to(sink(name), name=f"{name}_out")
        renamed = stage.select("k", "window_end", "n AS shown")
        renamed.write_to(sink(f"{name}2"), name=f"{name}2")
        behind = {
            "direct": stage.rolling_aggregate(n=agg.sum("n"), name=f"{name}_sum"),
            "renamed": renamed.window(windows.tumbling("3 seconds")).aggregate(
                n=agg.sum("shown"), name=f"{name}_again"
            ),
        }
        for how, totals in behind.items():
            totals.write_to(sink(f"{name}_{how}"), name=f"{name}_{how}")
    return p


def check_early_results(folder: Path) -> None:
    everything = input_rows(folder / "in")
    for name in ("tumbling", "session"):
        shown = list(committed(folder / name, "is_early k window_end n"))
        final = [row for row in shown if not row[0]]
        assert sum(row[3] for row in final) == len(everything), name
        early = [row for row in shown if row[0]]
        assert len(early) > 5, f"{name}: {early}"
        assert all(0 < row[3] <= len(everything) for row in early)
        handed_on = Counter(committed(folder / f"{name}2", "k window_end shown"))
        assert handed_on == Counter(row[1:] for row in shown), "early rows pass transforms"
        assert max(committed(folder / f"{name}_direct", "n")) == (len(everything),)
        again = sum(n for (n,) in committed(folder / f"{name}_renamed", "n"))
        assert again == len(everything), "but enter no state"


def test_who_holds_the_watermark_back_is_told(world: World) -> None:
    """Two sources, one of which says nothing: everybody who looks sees which, and since when."""
    streams = []
    p = Pipeline("held")
    for name in ("quick", "slow"):
        folder = world.folder / name
        folder.mkdir()
        source = sources.files(str(folder), format="json", schema=SCHEMA)
        streams.append(p.read_from(source, name=name).with_timestamps("ts", idle_timeout="0 ms"))
    keyed = streams[0].merge(streams[1]).group_by("k").window(windows.tumbling("1 second"))
    keyed.aggregate(n=agg.count(), name="counts").write_to(
        sinks.files(f"{world.folder}/out", format="json"), name="out"
    )
    write_input(world.folder / "slow", 0, [{"k": "a", "ts": 500, "v": 1}])
    for number, batch in enumerate(events("held", files=3)):
        write_input(world.folder / "quick", number, batch)
    with world.jet() as jet:
        jet.run(p, JobConfig(max_items_per_epoch=20), until="drained", on_event=world.see)
        last = [event for event in world.events if isinstance(event, SnapshotCommitted)][-1]
        stage = last.stages["counts"]
        assert stage.held_back_by == "slow" and stage.watermark_ms == 500
        assert stage.held_back_since_ms is not None
        assert jet.job("held").manifest().watermarks["held_back_by"]["counts"]["source"] == "slow"
