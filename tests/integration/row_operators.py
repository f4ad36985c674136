"""Operators that see the rows of a key one after the other, each beside what it is to give."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal

from dagster_jet import State, windows
from dagster_jet import aggregates as agg
from dagster_jet.pipeline import Stage

Row = dict[str, Any]


def timed(rows: Stage, name: str = "op") -> Stage:
    """A value over 60 is to be followed by one under 30 within a second; else an alarm, twice."""

    def watch(state: State[int], row: Row) -> None:
        if row["v"] < 30:
            state.clear()
        elif row["v"] > 60:
            state.value = 0
            state.set_timer(row["ts"] + 1_000)

    def alarm(state: State[int], key: Row, time_ms: int) -> Row:
        state.value += 1
        if state.value < 2:
            state.set_timer(time_ms + 1_500)
        return {**key, "ts": time_ms, "n": state.value}

    return rows.group_by("k").map_stateful(
        watch, create=int, output_schema="k string, ts long, n long", on_timer=alarm, name=name
    )


def expected_timed(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    due: dict[str, tuple[int, int]] = {}
    for row in [*by_time(rows), *at_the_end(rows, v=50)]:
        while row["k"] in due and due[row["k"]][0] < row["ts"]:
            at, n = due.pop(row["k"])
            yield (row["k"], at, n)
            if n < 2:
                due[row["k"]] = at + 1_500, n + 1
        if row["v"] < 30:
            due.pop(row["k"], None)
        elif row["v"] > 60:
            due[row["k"]] = row["ts"] + 1_000, 1


def named(rows: Stage, name: str = "op") -> Stage:
    """Three timers of a key, which set, move and remove each other, some at one time."""

    def watch(state: State[int], row: Row) -> None:
        state.value += 1
        if row["v"] % 17 == 0:
            state.clear()
            return
        state.set_timer(row["ts"] + 1_200, "close")
        if row["v"] > 40:
            state.set_timer(row["ts"] + (1_200 if row["v"] % 5 == 0 else 700), "warn")
        elif row["v"] < 20:
            state.cancel_timer("warn")

    def ring(state: State[int], key: Row, time_ms: int) -> Row:
        result = {**key, "ts": time_ms, "timer": state.timer, "n": state.value}
        if state.timer == "warn":
            state.set_timer(time_ms + 400)
            state.set_timer(time_ms + 900, "close")
        elif state.timer == "close":
            state.clear()
        return result

    return rows.group_by("k").map_stateful(
        watch, create=int, output_schema="k string, ts long, timer string, n long",
        on_timer=ring, name=name,
    )  # fmt: skip


def expected_named(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    counts: dict[str, int] = defaultdict(int)
    timers: dict[str, dict[str, int]] = defaultdict(dict)
    for row in [*by_time(rows), *at_the_end(rows, v=17)]:
        k = row["k"]
        due = timers[k]
        while mine := sorted((at, name) for name, at in due.items() if at < row["ts"]):
            (at, name), *_ = mine
            del due[name]
            yield (k, at, name, counts[k])
            if name == "warn":
                due.update({"": at + 400, "close": at + 900})
            elif name == "close":
                counts[k] = 0
                due.clear()
        counts[k] += 1
        if row["v"] % 17 == 0:
            counts[k] = 0
            due.clear()
            continue
        due["close"] = row["ts"] + 1_200
        if row["v"] > 40:
            due["warn"] = row["ts"] + (1_200 if row["v"] % 5 == 0 else 700)
        elif row["v"] < 20:
            due.pop("warn", None)


def at_the_end(rows: list[Row], v: int) -> list[Row]:
    """A row of each key behind all timers: at the end of the input they are all due."""
    return [{"k": k, "ts": 10**9, "v": v} for k in sorted({row["k"] for row in rows})]


def running(rows: Stage, name: str = "op") -> Stage:
    return rows.group_by("k").running(
        before="lag(v)", third="lag(v, 3)", after="lead(v)", total="sum(v)", n="count(*)",
        high="max(v)", mean="avg(v)", ttl="300 ms", name=name,
    )  # fmt: skip


def expected_running(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    lives: dict[str, list[list[Row]]] = defaultdict(list)
    for row in by_time(rows):
        mine = lives[row["k"]]
        if not mine or row["ts"] > mine[-1][-1]["ts"] + 300:
            mine.append([])
        mine[-1].append(row)
    for k, of_key in lives.items():
        for life in of_key:
            values = [row["v"] for row in life]
            for n, row in enumerate(life, 1):
                before, third = ([None] * back + values for back in (1, 3))
                after = [*values, None][n]
                so_far = values[:n]
                total = sum(so_far)
                yield (
                    k, row["ts"], row["v"], before[n - 1], third[n - 1], after, total, n,
                    max(so_far), total / n,
                )  # fmt: skip


def counted(rows: Stage, name: str = "op", *, slide: int | None = None) -> Stage:
    rest: Literal["drop", "emit"] = "emit" if slide is None else "drop"
    keyed = rows.group_by("k").window(windows.count(4, slide=slide, rest=rest))
    return keyed.aggregate(
        n=agg.count(), odd=agg.count_if("v % 2 = 1"), mean=agg.mean("v"), first=agg.first("v"),
        last=agg.last("struct(v, ts)"), values=agg.collect_list("v"),
        some=agg.collect_set("v div 10"), name=name,
    ).select("k", "ts", "to_json(struct(n, odd, mean, first, last, values, some)) r")  # fmt: skip


def expected_counted(rows: list[Row], _: list[Row], slide: int = 4) -> Iterator[tuple[Any, ...]]:
    """Expected rows of count windows; without slide also the rest."""
    mine: dict[str, list[Row]] = defaultdict(list)
    for row in by_time(rows):
        mine[row["k"]].append(row)
    for k, of_key in mine.items():
        for begin in range(0, len(of_key) - (3 if slide < 4 else 0), slide):
            four = of_key[begin : begin + 4]
            values = [row["v"] for row in four]
            last = {"v": values[-1], "ts": four[-1]["ts"]}
            n, odd = len(four), sum(v % 2 for v in values)
            result = {
                "n": n, "odd": odd, "mean": sum(values) / n,
                "first": values[0], "last": last, "values": values,
                "some": sorted({v // 10 for v in values}),
            }  # fmt: skip
            yield (k, last["ts"], json.dumps(result, separators=(",", ":")))


def matched(rows: Stage, name: str = "op") -> Stage:
    found = rows.group_by("k").match(
        low="v < 40", high="v > 60", low_again="v < 50",
        unless="v = 55", within="1500 ms", name=name,
    )  # fmt: skip
    return found.select("k", "ts", "low.ts AS a", "high.v AS b", "low_again.v AS c")


def expected_matched(rows: list[Row], _: list[Row]) -> Iterator[tuple[Any, ...]]:
    """Expected matches, from each first row forwards."""
    mine: dict[str, list[Row]] = defaultdict(list)
    for row in by_time(rows):
        mine[row["k"]].append(row)
    for k, of_key in mine.items():
        for start, first in enumerate(of_key):
            high = None
            for row in of_key[start + 1 :] if first["v"] < 40 else []:
                if row["v"] == 55 or row["ts"] > first["ts"] + 1_500:
                    break
                if high is not None and row["v"] < 50:
                    yield (k, row["ts"], first["ts"], high, row["v"])
                    break
                if high is None and row["v"] > 60:
                    high = row["v"]


def by_time(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: row["ts"])
