"""Stages in event-time order whose time to live or whose columns change between two runs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, Stage, sinks, sources
from tests.long import long

from .world import World, write_input

KEYS = [f"k{number}" for number in range(8)]
CONFIG = JobConfig(parallelism=2)


class Runs:
    """Runs of a pipeline that changes, each with a file more."""

    def __init__(self, world: World) -> None:
        self._world, self._folder = world, world.folder
        self._files = 0

    def run(
        self, rows: list[dict[str, Any]], stages: dict[str, Callable[[Stage], Any]], until: str
    ) -> None:
        write_input(self._folder / "in", self._files, rows)
        self._files += 1
        p = Pipeline("waiting")
        source = sources.files(
            f"{self._folder}/in", format="json", schema="id long, k string, t long"
        )
        read = p.read_from(source, name="rows").with_timestamps("t")
        for name, stage in stages.items():
            out = sinks.files(f"{self._folder}/out/{name}", format="json")
            stage(read).write_to(out, name=f"{name}_out")
        with self._world.jet() as jet:
            jet.run(p, CONFIG, until=until)

    def found(self, name: str) -> list[dict[str, Any]]:
        lines = (
            line
            for path in sorted((self._folder / "out" / name).glob("*.json"))
            for line in path.read_text().splitlines()
        )
        return [row for row in map(json.loads, lines) if row["k"] != "clock"]


def rows_of_all(first_id: int, at: int) -> list[dict[str, Any]]:
    return [{"id": first_id + n, "k": key, "t": at} for n, key in enumerate(KEYS)]


def clock(at: int) -> dict[str, Any]:
    return {"id": at, "k": "clock", "t": at}


def with_ttl(ttl: str) -> dict[str, Callable[[Stage], Any]]:
    def newest(rows: Stage) -> Any:
        versions = rows.filter("id < 10", name="versions").select("k", "t", "id AS v")
        return rows.join_as_of(versions, on="k", keep=ttl, name="newest").select("id", "k", "v")

    return {
        "count": lambda rows: rows.group_by("k").running(n="count(*)", ttl=ttl, name="count"),
        "lead": lambda rows: rows.group_by("k").running(next="lead(id)", ttl=ttl, name="lead"),
        "first": lambda rows: rows.deduplicate(on="k", within=ttl, name="first"),
        "last": lambda rows: rows.deduplicate(on="k", within=ttl, keep="last", name="last"),
        "newest": newest,
        "evicted": lambda rows: rows.group_by("k").map_stateful(
            lambda state, row: None,
            create=int,
            ttl=ttl,
            on_evict=lambda key, value, watermark_ms: {"k": key["k"]},
            output_schema="k string",
            name="evicted",
        ),
    }


@pytest.mark.parametrize(
    ("before", "after"), [("2 s", "60 s"), pytest.param("60 s", "2 s", marks=long)]
)
def test_another_time_to_live(world: World, before: str, after: str) -> None:
    """Eleven seconds pass between the two rows of a key, and two restarts with the later value."""
    runs, changed = Runs(world), with_ttl(after)
    runs.run([*rows_of_all(0, 1_000), clock(2_000)], with_ttl(before), "drained")
    runs.run([clock(12_000)], changed, "drained")
    runs.run([clock(12_500)], changed, "drained")
    runs.run([*rows_of_all(30, 13_000), clock(14_000)], changed, "completed")
    is_kept = after == "60 s"
    old, new = list(range(8)), list(range(30, 38))
    counts = [row["n"] for row in runs.found("count") if row["id"] >= 30]
    assert counts == [2 if is_kept else 1] * 8
    assert sorted(row["id"] for row in runs.found("lead")) == [*old, *new]
    assert sorted(row["id"] for row in runs.found("first")) == (old if is_kept else [*old, *new])
    assert sorted(row["id"] for row in runs.found("last")) == (new if is_kept else [*old, *new])
    found = {row["k"]: row.get("v") for row in runs.found("newest") if row["id"] >= 30}
    assert found == {key: n if is_kept else None for n, key in enumerate(KEYS)}
    evicted = Counter(row["k"] for row in runs.found("evicted"))
    assert evicted == dict.fromkeys(KEYS, 1 if is_kept else 2)


def lead(extra: str | None, **calls: str) -> Callable[[Stage], Any]:
    return lambda rows: (
        (rows if extra is None else rows.select("*", extra))
        .group_by("k")
        .running(**calls, ttl="1 minute", name="s")
    )


def last(extra: str | None) -> Callable[[Stage], Any]:
    return lambda rows: (rows if extra is None else rows.select("*", extra)).deduplicate(
        on="k", within="1 minute", keep="last", name="s"
    )


MORE = "id * 2 AS w"
CHANGES = {
    "a column more behind lead": (lead(None, n="lead(id)"), lead(MORE, n="lead(id)"), {"w": None}),
    "a column less behind lead": (lead(MORE, n="lead(id)"), lead(None, n="lead(id)"), {}),
    "a call more": (
        lead(None, n="lead(id)"),
        lead(None, n="lead(id)", total="sum(id)"),
        {"total": None},
    ),
    "a call less": (
        lead(None, n="lead(id)", total="sum(id)"),
        lead(None, n="lead(id)"),
        {},
    ),
    "a call of another name": (lead(None, x="lead(id)"), lead(None, n="lead(id)"), {}),
    "a column more of the last row": (last(None), last(MORE), {"w": None}),
    "a column less of the last row": (last(MORE), last(None), {}),
}


QUICK = ("a column less behind lead", "a call more", "a column more of the last row")


@pytest.mark.parametrize(
    ("before", "after", "more"),
    [
        pytest.param(*change, id=name, marks=[] if name in QUICK else long)
        for name, change in CHANGES.items()
    ],
)
def test_other_columns_of_rows_that_wait(
    world: World, before: Any, after: Any, more: dict[str, Any]
) -> None:
    runs = Runs(world)
    runs.run([{"id": 1, "k": "a", "t": 1_000}, clock(2_000)], {"s": before}, "drained")
    runs.run([clock(70_000)], {"s": after}, "completed")
    (row,) = runs.found("s")
    assert (row["id"], row["k"], row.get("n")) == (1, "a", None)
    assert set(row) - {"n"} <= {"id", "k", "t", *more}


def test_other_columns_of_rows_of_an_open_match(world: World) -> None:
    def matched(extra: str | None) -> Callable[[Stage], Any]:
        return lambda rows: (
            (rows if extra is None else rows.select("*", extra))
            .group_by("k")
            .match(a="id = 1", b="id = 2", within="1 minute", name="s")
        )

    runs = Runs(world)
    first, second = ({"id": n, "k": "a", "t": n * 1_000} for n in (1, 3))
    runs.run([first, clock(2_000)], {"s": matched(MORE)}, "drained")
    runs.run([{**second, "id": 2}, clock(70_000)], {"s": matched(None)}, "completed")
    (row,) = runs.found("s")
    assert row["a"] == first and row["b"] == {**second, "id": 2}


def test_calls_over_columns_of_any_name(world: World) -> None:
    def quoted(rows: Stage) -> Any:
        named = rows.select("id AS `a'b`", "id AS `c``d`", "k", "t")
        return named.group_by("k").running(
            **{"x'y": "sum(a'b)"}, before="lag(`c``d`)", ttl="1 minute", name="s"
        )

    runs = Runs(world)
    rows = [{"id": n, "k": "a", "t": 1_000 + n} for n in (1, 2)]
    runs.run([*rows, clock(2_000)], {"s": quoted}, "completed")
    assert [(row["x'y"], row.get("before")) for row in runs.found("s")] == [(1, None), (3, 1)]
