"""The pipeline of the golden snapshots: every kind of stateful stage, and every kind of partial.

Changing a stage here is what a user does who changes a pipeline under its saved state. Add stages
under new names; for files written before, they begin empty.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet import Pipeline, sinks, windows
from dagster_jet.contract import BadRowRule, Lag, Source, SourceFrame, SourceReader
from tests.integration.test_operators import LAG_MS, OPERATORS, committed, iso
from tests.unit.operators.naive import definitions, expected, product_kept_as

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOB = "golden"
PARTITION_COUNT = 11
"""Few, so that a file is small."""
COLUMNS = ("k", "ts", "v", "x", "s")
SCHEMA = "k string, ts long, v long, x double, s string"
TUMBLING_MS = 4_000
AGGREGATES = (
    *("n", "nv", "total", "mean", "low", "high", "lowest_text", "distinct", "about", "first"),
    *("last", "top", "top_by", "least", "list", "median", "product"),
)
"""Their partials are in the files."""
Row = dict[str, Any]
Batches = Sequence[Sequence[Row]]


@dataclass(frozen=True)
class Given(Source):
    """A source of rows that a test holds, one batch per epoch. Its position has no path in it."""

    batches: Batches = field(repr=False)
    schema: str = SCHEMA

    def row_schema(self) -> str:
        return self.schema

    def describe(self) -> dict[str, str]:
        return {"kind": "given", "path": "memory"}

    def open(self, job: str, stage: str, bad_rows: BadRowRule | None) -> GivenReader:
        return GivenReader(self)


@dataclass
class GivenReader(SourceReader):
    source: Given
    next: int = 0
    journal: list[int] = field(default_factory=list)

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self.next = position["next"]
        told = [] if journal is None else journal.column("batch").to_pylist()
        assert sorted(told) == list(range(self.next)), "the journal comes back whole"

    def poll(self) -> None:
        pass

    def accept(self, found: None) -> None:
        pass

    def waiting(self) -> Lag:
        left = len(self.source.batches) - self.next
        return Lag(left, {"batches": left})

    def plan(self, max_rows: int) -> int | None:
        if self.next == len(self.source.batches):
            return None
        self.journal.append(self.next)
        self.next += 1
        return self.journal[-1]

    def frame(self, spark: SparkSession, split: int) -> SourceFrame:
        rows = [tuple(row[name] for name in COLUMNS) for row in self.source.batches[split]]
        return SourceFrame(spark.createDataFrame(rows, self.source.schema))

    def verify(self, split: int, rows: int) -> None:
        assert rows == len(self.source.batches[split])

    def position(self) -> dict[str, Any]:
        return {"next": self.next}

    def take_journal(self) -> pa.Table | None:
        taken, self.journal = self.journal, []
        return _journal(taken) if taken else None

    def whole_journal(self, parts: Collection[int], undecided: Collection[str]) -> pa.Table:
        return _journal(list(range(self.next)))


def golden_pipeline(rows: Batches, others: Batches, out: Path) -> Pipeline:
    p = Pipeline(JOB)
    left, right = (
        p.read_from(Given(batches), name=name).with_timestamps("ts", allowed_lag=f"{LAG_MS} ms")
        for name, batches in (("rows", rows), ("others", others))
    )
    stages = {
        name: build(
            *((left, right) if name.startswith("join") else (left,)),
            name=name,
        )
        for name, (build, _, _) in OPERATORS.items()
    }
    keyed = left.group_by("k")
    aggregates = {**definitions(*AGGREGATES), "product": product_kept_as("plain")}
    stages["tumbling"] = keyed.window(windows.tumbling(f"{TUMBLING_MS} ms")).aggregate(
        name="tumbling", **aggregates
    )
    stages["rolling"] = keyed.rolling_aggregate(name="rolling", ttl=None, **aggregates)
    for name, stage in stages.items():
        stage.write_to(sinks.files(f"{out}/{name}", format="json"), name=f"{name}_out")
    return p


def outputs(out: Path) -> dict[str, Counter[tuple[str, ...]]]:
    """Rows in each stage's sink; for rolling totals, the last row of each key."""
    found = {
        name: Counter(map(_texts, committed(out / name, columns)))
        for name, (_, _, columns) in OPERATORS.items()
    }
    found["tumbling"] = Counter(map(_texts, committed(out / "tumbling", _aggregated("window_end"))))
    totals = sorted(committed(out / "rolling", _aggregated("n")), key=lambda row: row[1])
    found["rolling"] = Counter({row[0]: _texts(row) for row in totals}.values())
    return found


def oracle(rows: Batches, others: Batches) -> dict[str, Counter[tuple[str, ...]]]:
    """Expected rows of all sinks, computed one event at a time."""
    left, right = ([row for batch in side for row in batch] for side in (rows, others))
    truth = {
        name: Counter(map(_texts, expect(left, right)))
        for name, (_, expect, _) in OPERATORS.items()
    }
    truth["tumbling"] = Counter(map(_texts, _windows(left)))
    truth["rolling"] = Counter(
        _texts((k, len(mine), *expected(mine, *AGGREGATES).values()))
        for k, mine in _by_key(left).items()
    )
    return truth


def _windows(rows: Sequence[Row]) -> Iterator[tuple[Any, ...]]:
    for k, mine in _by_key(rows).items():
        for end in {time - time % TUMBLING_MS + TUMBLING_MS for _, time, _ in mine}:
            inside = [e for e in mine if end - TUMBLING_MS <= e[1] < end]
            yield (k, iso(end), *expected(inside, *AGGREGATES).values())


def _by_key(rows: Sequence[Row]) -> dict[str, list[tuple[Any, int, Any]]]:
    return {
        k: [(k, row["ts"], row["v"]) for row in rows if row["k"] == k]
        for k in {row["k"] for row in rows}
    }


def _aggregated(second: str) -> str:
    return f"k {second} {' '.join(AGGREGATES)}"


def _texts(row: Sequence[Any]) -> tuple[str, ...]:
    return tuple(map(repr, row))


def _journal(batches: Sequence[int]) -> pa.Table:
    return pa.table({"batch": pa.array(batches, pa.int64())})
