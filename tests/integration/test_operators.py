"""Every stateful operator on Spark, over several executions at changing parallelism, against
results recomputed from the input files one event at a time."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.engine import execution
from dagster_jet.pipeline import Stage
from dagster_jet.processors.user_state import State

from .world import World, write_input

SCHEMA = "k string, ts long, v long"
LAG_MS = 400
Row = dict[str, Any]


def events(seed: str, files: int = 8, rows: int = 25) -> list[list[Row]]:
    """Times go up from file to file and jump about within one, never further back than the lag."""
    rng = random.Random(seed)
    return [
        [
            {
                "k": rng.choice("abcdef"),
                "ts": number * 1_000 + rng.randrange(LAG_MS) + (5_000 if number > 5 else 0),
                "v": rng.randrange(100),
            }
            for _ in range(rows)
        ]
        for number in range(files)
    ]


def sliding(rows: Stage) -> Stage:
    keyed = rows.group_by("k").window(windows.sliding("3 seconds", "500 ms"))
    return keyed.aggregate(n=agg.count(), total=agg.sum("v"), name="op")


def expected_sliding(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    found: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows:
        first = row["ts"] - row["ts"] % 500 + 500
        for end in range(first, first + 3_000, 500):
            found[row["k"], end].append(row["v"])
    for (k, end), values in found.items():
        yield (k, iso(end - 3_000), iso(end), len(values), sum(values))


def session(rows: Stage) -> Stage:
    keyed = rows.group_by("k").window(windows.session("700 ms"))
    return keyed.aggregate(n=agg.count(), top=agg.max("v"), name="op")


def expected_session(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    by_key: dict[str, list[Row]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row["ts"]):
        by_key[row["k"]].append(row)
    for k, mine in by_key.items():
        current = [mine[0]]
        for row in [*mine[1:], None]:
            if row is None or row["ts"] >= current[-1]["ts"] + 700:
                ends = (iso(current[0]["ts"]), iso(current[-1]["ts"] + 700))
                yield (k, *ends, len(current), max(r["v"] for r in current))
                current = []
            if row is not None:
                current.append(row)


def deduplicated(rows: Stage) -> Stage:
    return rows.deduplicate(within="2 seconds", on="k", name="op").select("k", "ts")


def expected_deduplicated(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    kept: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row["ts"]):
        if row["ts"] > kept.get(row["k"], -(10**9)) + 2_000:
            kept[row["k"]] = row["ts"]
            yield (row["k"], row["ts"])


def joined(how: str) -> Callable[[Stage, Stage], Stage]:
    def build(rows: Stage, others: Stage) -> Stage:
        return rows.join(others, on="k", within="300 ms", how=how, name="op")

    return build


def expected_joined(how: str) -> Callable[..., Iterator[tuple[Any, ...]]]:
    def expect(rows: list[Row], others: list[Row]) -> Iterator[tuple[Any, ...]]:
        matched: set[int] = set()
        for row in rows:
            found = False
            for place, other in enumerate(others):
                if row["k"] == other["k"] and abs(row["ts"] - other["ts"]) <= 300:
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


def mapped(rows: Stage) -> Stage:
    def running_total(state: State[int], row: Row) -> Row | None:
        state.value += row["v"]
        if row["v"] % 10 == 0:
            state.clear()
            return None
        return {"k": row["k"], "ts": row["ts"], "total": state.value}

    return rows.group_by("k").map_stateful(
        running_total, create=int, output_schema="k string, ts long, total long", name="op"
    )


def expected_mapped(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    """Epoch by epoch: one file per epoch, rows by time, then by arrival."""
    totals: dict[str, int] = defaultdict(int)
    for row in rows_by_file_and_time(rows):
        totals[row["k"]] += row["v"]
        if row["v"] % 10 == 0:
            del totals[row["k"]]
        else:
            yield (row["k"], row["ts"], totals[row["k"]])


def rows_by_file_and_time(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["ts"])


Expect = Callable[[list[Row], list[Row]], Iterator[tuple[Any, ...]]]
OPERATORS: dict[str, tuple[Callable[..., Stage], Expect, str]] = {
    "sliding": (sliding, expected_sliding, "k window_start window_end n total"),
    "session": (session, expected_session, "k window_start window_end n top"),
    "deduplicate": (deduplicated, expected_deduplicated, "k ts"),
    "map_stateful": (mapped, expected_mapped, "k ts total"),
    **{
        f"join_{how}": (joined(how), expected_joined(how), "k ts v ts_right v_right")
        for how in ("inner", "left", "right", "outer")
    },
}


def iso(time_ms: int) -> str:
    from datetime import datetime, timezone

    time = datetime.fromtimestamp(time_ms / 1000, timezone.utc)
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("few_groups", [True, False], ids=["one task", "tasks"])
def test_operator_over_restarts_at_other_parallelism(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str, few_groups: bool
) -> None:
    """Parallelism 1, 2, 5, 3: every execution begins in the middle of windows and states."""
    if not few_groups:
        monkeypatch.setattr(execution, "FEW_GROUPS", -1)
    build, expect, columns = OPERATORS[name]
    needs_two = name.startswith("join")
    p = Pipeline("operators")
    streams = []
    for side in ("left", "right")[: 2 if needs_two else 1]:
        (world.folder / "in" / side).mkdir(parents=True)
        source = sources.files(str(world.folder / "in" / side), format="json", schema=SCHEMA)
        stream = p.read_from(source, name=side)
        streams.append(stream.with_timestamps("ts", allowed_lag=f"{LAG_MS} ms"))
    out = world.folder / "out"
    build(*streams).write_to(sinks.files(str(out), format="json"), name="out")
    batches = {side: events(f"{name}{side}") for side in ("left", "right")}
    for turn, parallelism in enumerate((1, 2, 5, 3)):
        for side in ("left", "right")[: len(streams)]:
            for number in (2 * turn, 2 * turn + 1):
                write_input(world.folder / "in" / side, number, batches[side][number])
        with world.jet() as jet:
            config = JobConfig(parallelism=parallelism, max_items_per_epoch=20)
            jet.run(p, config, until="completed" if turn == 3 else "drained")
    left, right = ([row for file in batches[side] for row in file] for side in ("left", "right"))
    found = Counter(committed(out, columns))
    assert found == Counter(expect(left, right)), name


def committed(folder: Path, columns: str) -> Iterator[tuple[Any, ...]]:
    for path in folder.glob("*.json"):
        for line in path.read_text("utf-8").splitlines():
            yield tuple(json.loads(line).get(column) for column in columns.split())
