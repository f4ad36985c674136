"""Rows per second of one step of each row-wise operator, and of sessions and totals, without Spark.

`python -m benchmarks.row_operators [rows] [keys]`. The first stage of sessions and totals, which is
the JVM's, is not timed. By CPU time, so that a busy machine disturbs
little; the best and the median of five steps.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.operators.address import ADDRESS
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.bounded_sessions import BoundedSessions
from dagster_jet.operators.count_windows import CountWindows
from dagster_jet.operators.deduplicate import Deduplicate
from dagster_jet.operators.expiring_totals import ExpiringTotals
from dagster_jet.operators.first_stage import FirstStage, KeyPartials, SessionBuckets
from dagster_jet.operators.in_event_order import InEventOrder
from dagster_jet.operators.interval_join import IntervalJoin
from dagster_jet.operators.join_as_of import JoinAsOf
from dagster_jet.operators.operator import ARRIVAL_COLUMN, MemoryState, Operator, StepInput
from dagster_jet.operators.rolling import RollingAggregate
from dagster_jet.operators.session import SessionWindows
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.operators.stateful_map_batches import StatefulMapInBatches
from dagster_jet.operators.timed_map import TimedMap
from dagster_jet.operators.user.pattern import MEETS, ROW, Pattern
from dagster_jet.operators.user.running import Call, Running
from dagster_jet.operators.user.state import State
from dagster_jet.pipeline import aggregates as agg

STEPS = 5
STEP_MS = 60_000
LAG_MS = 5_000
KEY = pa.field("account", pa.string())
AMOUNT = pa.field("amount", pa.float64())
AT = pa.field("at", pa.timestamp("us", tz="UTC"))


def count_and_sum(state: State[list[float]], row: dict[str, object]) -> dict[str, object]:
    state.value[0] += 1
    state.value[1] += row["amount"]
    return {"account": row["account"], "n": int(state.value[0]), "total": state.value[1]}


def in_numpy(state: pa.Table, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """`count_and_sum` over tables."""
    place = rows["account"].combine_chunks().dictionary_encode().indices.to_numpy()
    starts = np.flatnonzero(np.diff(place, prepend=-1))
    n, total = (pc.fill_null(state[name], 0).to_numpy() for name in ("n", "total"))
    amounts = rows["amount"].to_numpy()
    sums = np.cumsum(amounts)
    sums += (total - (sums[starts] - amounts[starts]))[place]
    counts = np.arange(1, len(place) + 1) + (n - starts)[place]
    results = pa.table({"account": rows["account"], "n": counts, "total": sums})
    return results, results.take(pa.array(np.append(starts[1:], len(place)) - 1))


def in_pandas(state: pa.Table, rows: pa.Table) -> tuple[pa.Table, ...]:
    """`count_and_sum` over tables: the example of docs/operators.md."""
    frame, before = rows.to_pandas(), state.to_pandas().fillna({"n": 0, "total": 0})
    by_account = frame.groupby("account", sort=False, dropna=False)
    place = by_account.ngroup().to_numpy()
    frame["n"] = by_account.cumcount() + 1 + before["n"].to_numpy(int)[place]
    frame["total"] = by_account["amount"].cumsum() + before["total"].to_numpy()[place]
    results = frame[["account", "n", "total"]]
    changed = results[~results["account"].duplicated(keep="last")]
    return tuple(pa.Table.from_pandas(one, preserve_index=False) for one in (results, changed))


def nothing_yet() -> list[float]:
    return [0, 0.0]


def count_until_silent(state: State[list[float]], row: dict[str, object]) -> dict[str, object]:
    """`count_and_sum`, with a timer that each row moves."""
    state.set_timer(row["at"] + timedelta(seconds=30))
    return count_and_sum(state, row)


def silent(state: State[list[float]], key: dict[str, object], time_ms: int) -> dict[str, object]:
    return {**key, "n": int(state.value[0]), "total": state.value[1]}


def operators() -> Mapping[str, Operator]:
    totals = pa.schema([KEY, ("n", pa.int64()), ("total", pa.float64())])
    left, right = pa.schema([("paid", pa.float64())]), pa.schema([("owed", pa.float64())])
    found: dict[str, Any] = {
        name: StatefulMap(
            name, ("account",), rows, totals, count_and_sum, nothing_yet, 10 * STEP_MS
        )
        for name, rows in {
            "map_stateful, text and number": pa.schema([KEY, AMOUNT]),
            "map_stateful, and a timestamp": pa.schema([KEY, AMOUNT, AT]),
        }.items()
    }
    for name, function in {"NumPy": in_numpy, "pandas": in_pandas}.items():
        found[f"map_stateful, {name}"] = StatefulMapInBatches(
            name, ("account",), pa.schema([KEY, AMOUNT]), totals, pa.schema(list(totals)[1:]),
            function, 10 * STEP_MS,
        )  # fmt: skip
    for name in ("map_stateful, text and number", "map_stateful, NumPy"):
        found[f"{name}, by event time"] = InEventOrder(found[name])
    found.update({name: InEventOrder(one) for name, one in in_order(totals).items()})
    rows = pa.schema([KEY, AMOUNT, AT])
    aggregation = Aggregation((("n", agg.count()), ("total", agg.sum("amount"))))
    tens = CountWindows(("account",), 10, aggregation, "at")
    counted = StatefulMapInBatches(
        "tens", ("account",), rows, tens.output_schema(rows), tens.state_columns(rows), tens
    )
    found["windows of ten rows, by event time"] = InEventOrder(counted)
    found["deduplicate"] = Deduplicate(("account",), pa.schema([KEY, AMOUNT, AT]), 2 * LAG_MS)
    for how in ("inner", "outer"):
        found[f"interval join, {how}"] = IntervalJoin(
            pa.schema([KEY]), left, right, (-LAG_MS, LAG_MS), how
        )
    found["join as of"] = JoinAsOf.of("rated", pa.schema([KEY]), left, right)
    return found


def in_order(totals: pa.Schema) -> Mapping[str, StatefulMap]:
    """Operators that take rows in order of event time."""
    rows = pa.schema([KEY, AMOUNT, AT])
    calls = (("n", Call("count", "*")), ("total", Call("sum", "amount")))
    pattern = Pattern(("account",), "at", ("low", "high"), LAG_MS)
    row = pa.struct([AMOUNT])
    marked = [KEY, AT, pa.field(ROW, row), pa.field(MEETS, pa.list_(pa.bool_()))]
    matches = pa.schema([KEY, AT, ("low", row), ("high", row)])
    return {
        "running, count and sum": StatefulMap(
            "running", ("account",), rows, pa.schema([*rows, *list(totals)[1:]]),
            Running(calls), dict, 10 * STEP_MS,
        ),
        "match, two steps": StatefulMap(
            "match", ("account",), pa.schema(marked), matches, pattern, list, LAG_MS
        ),
        "map_stateful, with a timer": TimedMap(
            "timers", ("account",), rows, totals, count_until_silent, nothing_yet, 0,
            on_timer=silent,
        ),
    }  # fmt: skip


def aggregating() -> Mapping[str, tuple[FirstStage, Callable[[pa.Schema], Operator]]]:
    """First stage and operator of each aggregation, by its name. A key pauses now and then."""
    keys, gap_ms = ("account",), 5_000
    totals = Aggregation((("n", agg.count()), ("total", agg.sum("amount"))))
    return {
        "sessions": (
            SessionBuckets(keys, totals, gap_ms),
            lambda schema: SessionWindows(schema, keys, gap_ms, totals),
        ),
        "sessions with a maximum": (
            SessionBuckets(keys, totals, 1),
            lambda schema: BoundedSessions(schema, keys, gap_ms, 4 * gap_ms, totals),
        ),
        "rolling aggregate": (
            KeyPartials(keys, totals),
            lambda schema: RollingAggregate(schema, keys, totals, "at"),
        ),
        "rolling aggregate with a ttl": (
            SessionBuckets(keys, totals, gap_ms),
            lambda schema: ExpiringTotals(schema, keys, gap_ms - 1, totals, "at"),
        ),
    }


def batch(schema: pa.Schema, count: int, keys: int, step: int) -> pa.Table:
    random = np.random.default_rng(step * 100 + len(schema))
    key = random.integers(0, keys, count)
    hashes = (key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)).view(np.int64)
    times = step * STEP_MS + np.sort(random.integers(0, STEP_MS, count))
    values: dict[str, Callable[[], pa.Array]] = {
        ADDRESS[0].name: lambda: pa.array((hashes % 271).astype(np.int32)),
        ADDRESS[1].name: lambda: pa.array(hashes),
        ADDRESS[2].name: lambda: pa.array(times),
        ARRIVAL_COLUMN: lambda: pa.array(np.arange(count)),
        "account": lambda: pa.array([f"account-{k}" for k in key.tolist()]),
        "at": lambda: pa.array(times).cast(pa.timestamp("ms", tz="UTC")).cast(AT.type),
        ROW: lambda: pa.array([{"amount": one} for one in random.random(count)]),
        MEETS: lambda: pa.array((random.random((count, 3)) < (0.1, 0.1, 0)).tolist()),
    }
    columns = [
        values[field.name]() if field.name in values else pa.array(random.random(count))
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def rows_of(operator: Operator, count: int, keys: int, step: int) -> tuple[pa.Table, ...]:
    schemas = operator.input_schemas
    return tuple(batch(s, count // len(schemas), keys, step) for s in schemas)


def partials(first: FirstStage, count: int, keys: int, step: int) -> pa.Table:
    return first.partials(batch(pa.schema([*ADDRESS, KEY, AMOUNT]), count, keys, step), None)[0]


def rows_per_second(operator: Operator, rows: Callable[[int], tuple[pa.Table, ...]]) -> list[float]:
    """
    Args:
        rows: returns the input of a step.
    """
    state, before, found = MemoryState(operator), None, []
    for step in range(STEPS):
        arrived = rows(step)
        after = (step + 1) * STEP_MS - LAG_MS
        started = time.process_time()
        done = operator.step(StepInput(arrived, before, after, step + 1), state)
        found.append(done.rows_in / (time.process_time() - started))
        state.append(done.delta, after)
        before = after
    return found


def main(count: int = 200_000, keys: int = 10_000) -> None:
    measured = {
        name: rows_per_second(operator, partial(rows_of, operator, count, keys))
        for name, operator in operators().items()
    }
    for name, (first, made) in aggregating().items():
        operator = made(partials(first, 1, keys, 0).schema)
        measured[name] = rows_per_second(
            operator, lambda step, first=first: (partials(first, count, keys, step),)
        )
    for name, found in measured.items():
        print(f"{name:44} best {max(found):>11,.0f}  median {statistics.median(found):>11,.0f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
