"""A keyed stage stepped by hand: raw events in, result rows out, restored whenever a test likes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_jet.core.partition import DEFAULT_PARTITION_COUNT, key_hash
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.operator import (
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    Operator,
    Step,
    StepInput,
)

EVENT = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
DERIVED = pa.schema(
    [
        ("x", pa.float64()),
        ("s", pa.string()),
        ("d", pa.decimal128(30, 2)),
        ("b", pa.bool_()),
        ("r", pa.struct([("v", pa.int64()), ("x", pa.float64())])),
        ("l", pa.list_(pa.field("element", pa.float64()))),
    ]
)
FINAL = 9_000_000_000_000_000


def event_table(
    events: Sequence[tuple[Any, ...]], hash_of: Callable[[Any], int] = key_hash
) -> pa.Table:
    """(key, time ms, value) rows with hash and partition, as the front end adds them, and the
    value once more in other types."""
    rows = [{"k": k, "t": t, "v": v, **derived(v)} for k, t, v in events]
    table = pa.Table.from_pylist(rows, schema=pa.schema([*EVENT, *DERIVED]))
    hashes = [hash_of(row["k"]) for row in rows]
    partitions = [h % DEFAULT_PARTITION_COUNT for h in hashes]
    for name, column in (
        (TIME_COLUMN, table.column("t")),
        (HASH_COLUMN, pa.array(hashes, pa.int64())),
        (PARTITION_COLUMN, pa.array(partitions, pa.int32())),
    ):
        table = table.append_column(name, column)
    return table


def derived(value: int | None) -> dict[str, Any]:
    """The columns of `DERIVED`. A struct is never null, its fields may be."""
    x = as_float(value)
    if value is None:
        return {**dict.fromkeys(DERIVED.names), "r": {"v": None, "x": None}}
    return {
        "x": x,
        "s": str(value),
        "d": Decimal(value) / 4,
        "b": value > 3,
        "r": {"v": value, "x": x},
        "l": [x, None][value % 2 :] * (abs(value) % 3),
    }


def as_float(value: int | None) -> float | None:
    """Floats, of which some are NaN."""
    return None if value is None else math.nan if value % 5 == 4 else value / 2


class DeltaState:
    """State as a list of deltas that are put together at random: as runs, snapshots and restores
    do, though never two tables in the same way twice."""

    def __init__(self, operator: Operator, rng: random.Random) -> None:
        self.operator, self._rng = operator, rng
        self._deltas: list[pa.Table] = []
        self.dead: int | None = None

    def append(self, delta: pa.Table, watermark_ms: int | None) -> None:
        assert delta.schema.equals(self.operator.state_schema)
        dead = [self.dead, self.operator.expired_until(watermark_ms)]
        self.dead = max((one for one in dead if one is not None), default=None)
        if self.dead is not None and delta.num_rows:
            assert min(self._times(delta)) > self.dead, "a delta has no dead rows"
        self._deltas.append(delta)
        if self._rng.random() < 0.3:
            self.compact()

    def compact(self) -> None:
        """Merges some of the deltas; drops what is dead, or leaves that for later."""
        self._rng.shuffle(self._deltas)
        some = self._rng.randint(1, len(self._deltas))
        merged = self.operator.merge(self._deltas[:some])
        if self._rng.random() < 0.5:
            merged = self._alive(merged)
        self._deltas = [merged, *self._deltas[some:]]

    def restore(self) -> None:
        """Restores from bytes, by partition, in any grouping, as a snapshot is read back."""
        if not self._deltas:
            return
        table = pa.concat_tables(self._deltas)
        half = self._rng.randrange(DEFAULT_PARTITION_COUNT)
        partitions = table.column(PARTITION_COLUMN).to_numpy()
        parts = [
            table.filter(pa.array(partitions <= half)),
            table.filter(pa.array(partitions > half)),
        ]
        self._deltas = [_through_bytes(self.operator.merge([part])) for part in parts]

    def due(self, until_ms: int) -> pa.Table:
        table = self._alive(pa.concat_tables([self._empty(), *self._deltas]))
        return table.filter(pa.array(self._times(table) <= until_ms))

    def find(self, hashes: np.ndarray) -> pa.Table:
        assert len(np.unique(hashes)) == len(hashes)
        table = self.scan()
        return table.filter(pa.array(np.isin(table.column(HASH_COLUMN).to_numpy(), hashes)))

    def scan(self) -> pa.Table:
        return self.operator.merge([self._alive(t) for t in [self._empty(), *self._deltas]])

    def _empty(self) -> pa.Table:
        return self.operator.state_schema.empty_table()

    def _alive(self, table: pa.Table) -> pa.Table:
        if self.dead is None:
            return table
        return table.filter(pa.array(self._times(table) > self.dead))

    def _times(self, table: pa.Table) -> np.ndarray:
        return table.column(self.operator.time_column).to_numpy()


class Stage:
    """One operator with its first stage and its state. Every step is taken twice: an operator
    that keeps anything of its own, or changes what it is given, answers differently then."""

    collide = False
    """All keys have one hash."""
    repeatable = True
    """Whether repeated steps give the same result; a sketch that draws lots does not."""

    watermark: int | None = None

    def __init__(self, operator: Any, aggregation: Aggregation, seed: int = 0) -> None:
        self.operator, self.aggregation = operator, aggregation
        self.state = DeltaState(operator, random.Random(seed))
        self.version = 0
        self.late = self.rows_in = 0

    def table(self, events: Sequence[tuple[Any, ...]]) -> pa.Table:
        return event_table(events, (lambda key: 7) if self.collide else key_hash)

    def first_stage(self, events: Sequence[tuple[Any, ...]]) -> pa.Table:
        raise NotImplementedError

    def floor(self, watermark: int) -> int:
        return watermark

    def step(
        self, *events: tuple[Any, ...], wm: int | None = None, early: bool = False
    ) -> list[dict[str, Any]]:
        """One step: these events, then this watermark. Returns the results."""
        before = self.watermark
        arrived = self.first_stage(events)
        if wm is not None:
            wm = self.floor(wm)
            self.watermark = wm if before is None else max(before, wm)
        self.version += 1
        given = StepInput(
            (arrived,), before, self.watermark, self.version, self.state.dead, early=early
        )
        step: Step = self.operator.step(given, self.state)
        assert step.results.schema.equals(self.operator.result_schema)
        again: Step = self.operator.step(given, self.state)
        if self.repeatable:
            assert repr(again.results.to_pylist()) == repr(step.results.to_pylist())
        assert (again.delta.num_rows, again.late) == (step.delta.num_rows, step.late)
        self.state.append(step.delta, self.watermark)
        self.late += step.late
        self.rows_in += step.rows_in
        return step.results.to_pylist()

    def restore(self) -> None:
        self.state.restore()


def ms(moment: Any) -> int:
    return round(moment.timestamp() * 1000)


def _through_bytes(table: pa.Table) -> pa.Table:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return pa.ipc.open_stream(sink.getvalue()).read_all()


__all__ = ["FINAL", "DeltaState", "Stage", "as_float", "event_table", "ms"]
