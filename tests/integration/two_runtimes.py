"""One pipeline with every kind of stateful stage, run on Spark and as a DAG of processors.

Both are cut at the same point, restored at another parallelism, and run to their end. An epoch of
Spark is one file per source; the DAG is fed the same rows with the watermarks that those epochs
run under, so that both also agree about what is late.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dagster_jet import Jet, JobConfig, Pipeline
from dagster_jet.core.partition import DEFAULT_PARTITION_COUNT, partition_of_key
from dagster_jet.core.state_format import StateFormat
from dagster_jet.dag import BroadcastKey, PartitionKey, Watermark
from dagster_jet.dag.local import LocalJob, Snapshot
from dagster_jet.operators.in_event_order import ROW_COLUMN
from dagster_jet.operators.interval_join import (
    MARK,
    ROLE_COLUMN,
    ROW_INDEX_COLUMN,
    ROW_STEP_COLUMN,
    IntervalJoin,
)
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    PARTITION_COLUMN,
    VERSION_COLUMN,
    Operator,
    merge_whole,
)
from dagster_jet.operators.session import SessionWindows
from dagster_jet.operators.session_pieces import SINCE_COLUMN
from dagster_jet.operators.stateful_map import STATE_COLUMN
from dagster_jet.operators.user import saved_value
from dagster_jet.operators.user.spark_processor import (
    KEY_COLUMN,
    ORIGIN_COLUMN,
    VALUE_COLUMN,
    SparkProcessor,
)
from dagster_jet.spark.planning.analysis import analyse
from dagster_jet.spark.runtime import SparkRuntime

from .local_dag import Outputs, PipelineDag, Running
from .world import write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
Files = Mapping[str, Sequence[Sequence[Row]]]
"""Rows of each file, in order, by source."""

_BOOKKEEPING = {ARRIVAL_COLUMN, VERSION_COLUMN, ROW_STEP_COLUMN, ROW_INDEX_COLUMN, SINCE_COLUMN}
"""Columns that say which step wrote a row: the runtimes take different steps."""
_ESTIMATES = ("__hll(", "__kll(")
"""Sketches: bytes depend on the order of merging, answers (for few values) do not."""


@dataclass
class Reached:
    """A runtime at a cut, or at its end."""

    outputs: dict[str, Counter[tuple[str, ...]]]
    states: dict[str, Counter[tuple[str, ...]]]
    """Partition and content of living state rows, by stage."""
    watermarks: dict[str, int | None] = field(default_factory=dict)
    accepted: dict[str, int] = field(default_factory=dict)
    """Rows that were not late so far, by stage."""

    def has_seen_all(self, tops: Mapping[str, int], lag_ms: int) -> bool:
        """Whether the last epoch ran under the watermark of all rows. It does if it was one of its
        own, for the terminal snapshot; often the last file's epoch carries that as well."""
        return max(ms for ms in self.watermarks.values() if ms) >= max(tops.values()) - lag_ms


def plan_operators(spark: SparkSession, pipeline: Pipeline) -> dict[str, Operator]:
    runtime = SparkRuntime(spark, pipeline.name, {}, 1)
    plan = analyse(runtime, pipeline.graph, DEFAULT_PARTITION_COUNT)
    return {name: plan.operator(name) for name in plan.stages}


# --- Spark ----------------------------------------------------------------------------------------


class OnSpark:
    """Runs the pipeline over files in a folder."""

    def __init__(self, folder: Path, pipeline: Pipeline, operators: Mapping[str, Operator]) -> None:
        self.folder, self.pipeline, self.operators = folder, pipeline, operators
        self._files: Counter[str] = Counter()

    def run(self, jet: Jet, files: Files, parallelism: int, *, until: str) -> Reached:
        for source, batches in files.items():
            for rows in batches:
                write_input(self.folder / "in" / source, self._files[source], rows)
                self._files[source] += 1
        jet.run(
            self.pipeline, JobConfig(parallelism=parallelism, max_items_per_epoch=1), until=until
        )
        name = self.pipeline.name
        manifest = jet.job(name).manifest()
        reached = manifest.watermarks["reached_ms"]
        saved = {s: jet.job(name).read_state(s, as_saved=True) for s in self.operators}
        for stage, operator in self.operators.items():
            read = jet.job(name).read_state(stage)
            assert_read_as_it_counts(operator, saved[stage], read, reached[stage])
        return Reached(
            {sink.name: self._written(sink.name) for sink in self.pipeline.graph.sinks},
            {
                stage: living(operator, saved[stage], reached[stage])
                for stage, operator in self.operators.items()
            },
            reached,
            {s: manifest.counters[s].rows_in - manifest.counters[s].late for s in self.operators},
        )

    def _written(self, sink: str) -> Counter[tuple[str, ...]]:
        files = (self.folder / "out" / sink).glob("*.parquet")
        return as_multiset(row for file in files for row in pq.read_table(file).to_pylist())


# --- the local runtime ----------------------------------------------------------------------------


class OnProcessors:
    """Runs the pipeline as a DAG, one call of each tasklet after the other."""

    def __init__(
        self, pipeline: Pipeline, operators: Mapping[str, Operator], schema: pa.Schema, lag_ms: int
    ) -> None:
        self.graph, self.operators, self.schema, self.lag_ms = (
            pipeline.graph, operators, schema, lag_ms,
        )  # fmt: skip
        self.outputs: Outputs = {}
        self.feeds: dict[str, list[Any]] = {source.name: [] for source in self.graph.sources}
        self._tops: dict[str, int] = {}
        self._snapshot: Snapshot | None = None
        self._accepted: Counter[str] = Counter()

    def run(self, files: Files, parallelism: int, *, cut: Reached | None) -> Reached:
        """
        Args:
            cut: where Spark was cut after these files; None: the input is over after them.
        """
        is_all = cut is None
        for source, batches in files.items():
            self._feed(source, batches)
        if cut is not None and cut.has_seen_all(self._tops, self.lag_ms):
            for source in files:
                self._advance(source)
        running = Running()
        built = PipelineDag(
            self.graph, self.operators, self.feeds,
            is_all=is_all, outputs=self.outputs, running=running,
        )  # fmt: skip
        # One item at a time: what came in two epochs does not meet in one step.
        job = LocalJob(built.dag, parallelism=parallelism, restore=self._snapshot, inbox_limit=1)
        if not is_all:
            while not all(feed.is_empty for feed in running.feeds):
                job.step()
            snapshot = job.request_snapshot(terminal=True)
        while job.step():
            pass
        job.result(0)
        for stage, processors in running.processors.items():
            self._accepted[stage] += sum(p.rows_in - p.late_rows for p in processors)
        outputs = {sink: as_multiset(rows) for sink, rows in self.outputs.items()}
        if is_all:
            return Reached(outputs, {}, accepted=dict(self._accepted))
        self._snapshot = snapshot.result(0)
        states, watermarks = self._saved(self._snapshot)
        return Reached(outputs, states, watermarks, dict(self._accepted))

    def _feed(self, source: str, batches: Sequence[Sequence[Row]]) -> None:
        """Rows, then the watermark of what came before them: an epoch's own rows do not move it."""
        items = self.feeds[source]
        for rows in batches:
            items.append(pa.Table.from_pylist(list(rows), schema=self.schema))
            self._advance(source)
            self._tops[source] = max([self._tops.get(source, 0), *(row["ts"] for row in rows)])

    def _advance(self, source: str) -> None:
        items = self.feeds[source]
        emitted = [item.timestamp_ms for item in items if isinstance(item, Watermark)]
        watermark_ms = self._tops.get(source, 0) - self.lag_ms
        if source in self._tops and (not emitted or watermark_ms > emitted[-1]):
            items.append(Watermark(watermark_ms))

    def _saved(
        self, snapshot: Snapshot
    ) -> tuple[dict[str, Counter[tuple[str, ...]]], dict[str, int | None]]:
        states, watermarks = {}, {}
        floors = {stage.name: stage.floor_watermark for stage in self.graph.stages}
        for stage, operator in self.operators.items():
            if isinstance(operator, SparkProcessor):
                states[stage] = Counter(
                    (repr(entry.partition), repr(key), repr(value))
                    for entry in snapshot.entries[stage]
                    for key, value in [entry.load()]
                )
                continue
            tables = []
            for entry in snapshot.entries[stage]:
                key, value = entry.load()
                if isinstance(key, BroadcastKey):
                    watermarks[stage] = floors[stage](value[0])
                    continue
                assert isinstance(key, PartitionKey)
                batch = pa.ipc.read_record_batch(pa.py_buffer(value), operator.state_schema)
                assert set(batch.column(PARTITION_COLUMN).to_pylist()) == {entry.partition}
                tables.append(pa.Table.from_batches([batch]))
            table = pa.concat_tables(tables) if tables else None
            states[stage] = living(operator, table, watermarks[stage])
        return states, watermarks


# --- comparing ------------------------------------------------------------------------------------


def as_multiset(rows: Iterable[Row]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(repr(value) for value in row.values()) for row in rows)


def living(
    operator: Operator, table: pa.Table | None, watermark_ms: int | None
) -> Counter[tuple[str, ...]]:
    """State rows that still matter, merged, in a form that does not depend on who wrote them."""
    if table is None:
        return Counter()
    if isinstance(operator, SparkProcessor):
        return _entries(operator.merge([table]))
    table = merge_whole(operator, [table.select(operator.state_schema.names)])
    dead = operator.expired_until(watermark_ms)
    if dead is not None:
        alive = [time > dead for time in table.column(operator.time_column).to_pylist()]
        table = table.filter(pa.array(alive, pa.bool_()))
    if isinstance(operator, SessionWindows):
        table = operator.whole(table)  # in how many pieces it is follows the epochs
    names = [n for n in table.column_names if n not in _BOOKKEEPING]
    columns = {name: table.column(name).to_pylist() for name in names}
    for name in names:
        if name.startswith(_ESTIMATES):
            del columns[name]
        elif name.startswith("__custom("):
            columns[name] = [saved_value.load(value, StateFormat.PLAIN) for value in columns[name]]
        elif pa.types.is_list(table.schema.field(name).type):
            columns[name] = [value and sorted(map(repr, value)) for value in columns[name]]
    aggregation = getattr(operator, "aggregation", None)
    if aggregation is not None:
        for number, column in enumerate(aggregation.finish(table)):
            columns[f"result {number}"] = column.to_pylist()
    return Counter(tuple(map(repr, row)) for row in zip(*columns.values(), strict=True))


def assert_read_as_it_counts(
    operator: Operator, saved: pa.Table | None, read: pa.Table | None, watermark_ms: int | None
) -> None:
    """Asserts that rows read by the manifest alone, without the pipeline, are those of its
    operator."""
    expected = _as_it_counts(operator, saved, watermark_ms)
    found = read.num_rows if read is not None else 0
    if not any(name.startswith("__custom(") for name in operator.state_schema.names):
        assert found == (expected.num_rows if expected is not None else 0), type(operator)
    read_rows, rows = (living(operator, t, watermark_ms) for t in (read, expected))
    assert read_rows == rows, (read_rows - rows, rows - read_rows)


def _as_it_counts(
    operator: Operator, saved: pa.Table | None, watermark_ms: int | None
) -> pa.Table | None:
    if saved is None:
        return None
    table = saved.select(operator.state_schema.names)
    dead = operator.expired_until(watermark_ms)
    if dead is not None:
        alive = [time > dead for time in table.column(operator.time_column).to_pylist()]
        table = table.filter(pa.array(alive, pa.bool_()))
    table = merge_whole(operator, [table])
    for name in (STATE_COLUMN, VALUE_COLUMN):
        if name in table.column_names:
            counts = table.column(name).is_valid()  # with a time to live they stay
            if ROW_COLUMN in table.column_names:
                counts = pc.or_(counts, table.column(ROW_COLUMN).is_valid())
            table = table.filter(counts)
    if isinstance(operator, IntervalJoin):
        table = table.filter(pc.not_equal(table.column(ROLE_COLUMN), MARK))
    return table


def _entries(table: pa.Table) -> Counter[tuple[str, ...]]:
    """A processor's entries; broadcast ones are of an instance, not of a partition."""
    found: Counter[tuple[str, ...]] = Counter()
    for row in table.to_pylist():
        if row[VALUE_COLUMN] is None:
            continue
        key, value = (
            saved_value.load(row[c], StateFormat.PLAIN) for c in (KEY_COLUMN, VALUE_COLUMN)
        )
        if row[ORIGIN_COLUMN] is None:
            assert row[PARTITION_COLUMN] == partition_of_key(key, DEFAULT_PARTITION_COUNT)
            found[repr(row[PARTITION_COLUMN]), repr(key), repr(value)] += 1
        else:
            assert row[PARTITION_COLUMN] == row[ORIGIN_COLUMN]
            found[repr(None), repr(key), repr(value)] += 1
    return found


def random_files(
    seed: object,
    files: int,
    rows: int,
    disorder_ms: int,
    keys: Sequence[Any],
    *,
    distinct: bool = False,
) -> list[list[Row]]:
    """Times go up by a second per file and jump about by `disorder_ms`; after a pause at the end
    much is due at once.

    Args:
        distinct: no two rows of a key have one time. Among many rows some would, and which of them
            comes first is certain only where one task reads them all.
    """
    rng = random.Random(f"{seed}")
    values = [None, *range(-9, 30)]
    taken: set[tuple[Any, int]] = set()

    def place(number: int) -> tuple[Any, int]:
        while True:
            found = rng.choice(keys), max(0, number * 1_000 + rng.randrange(disorder_ms))
            if not distinct or found not in taken:
                taken.add(found)
                return found

    def row(number: int) -> Row:
        value = rng.choice(values)
        k, ts = place(number)
        return {
            "k": k,
            "g": rng.choice([None, 1, 2]),
            "ts": ts,
            "v": value,
            "x": None if value is None else value / 2,
            "s": None if value is None else f"«{value}»",
        }

    return [
        [row(number + (6 if number > files - 3 else 0)) for _ in range(rows)]
        for number in range(files)
    ]
