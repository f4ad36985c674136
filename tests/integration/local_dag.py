"""The stages of a pipeline as a DAG for the local runtime: the same operators without Spark.

    source -> first stage -> operator (or the user's processor) -> what reads it ... -> sink

The operators are the ones that the planner made for Spark. What Spark's JVM does before them is
done here one row at a time, in Python, and shares no line with the SQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dagster_jet.core.partition import DEFAULT_PARTITION_COUNT, key_hash
from dagster_jet.dag import (
    DAG,
    Edge,
    Emitter,
    Inbox,
    ItemProcessor,
    Outbox,
    Processor,
    ProcessorContext,
    Watermark,
    broadcast_key,
)
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    HASH_COLUMN,
    PARTITION_COLUMN,
    TIME_COLUMN,
    Operator,
)
from dagster_jet.operators.session import FIRST_TIME_COLUMN
from dagster_jet.operators.window import WINDOW_END_MS
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import Graph, SinkNode, SourceNode, TimestampsNode
from dagster_jet.pipeline.stateful import (
    AggregateNode,
    JoinAsOfNode,
    JoinNode,
    ProcessorNode,
    RollingNode,
    StatefulNode,
)
from dagster_jet.pipeline.windows import SessionWindow
from tests.unit.operators.dag_operator import DagOperator, split_by_partition

Outputs = dict[str, list[dict[str, Any]]]
Send = Callable[[pa.Table, int | None], Iterable[object]]
"""(rows, watermark of the first stage) -> items for the stage."""


@dataclass
class Running:
    """Processors and feeds that a test looks at while the job runs."""

    feeds: list[Feed] = field(default_factory=list)
    processors: dict[str, list[DagOperator]] = field(default_factory=dict)
    """Per stage, its instances."""


class Feed(Processor):
    """A source: its items in order, then the end, if this is all of them; saves how far it is."""

    def __init__(self, items: Sequence[Any], is_all: bool) -> None:
        self.items, self.is_all, self.next = items, is_all, 0

    @property
    def is_empty(self) -> bool:
        return self.next == len(self.items)

    def complete(self) -> bool:
        while not self.is_empty:
            if not self.outbox.offer(self.items[self.next]):
                return False
            self.next += 1
        return self.is_all

    def save_to_snapshot(self) -> bool:
        return self.outbox.offer_to_snapshot("next", self.next)

    def restore_from_snapshot(self, inbox: Inbox) -> bool:
        (entry,) = inbox.drain()
        self.next = entry.value
        return True


class FirstStage(Processor):
    """Stage before rows are divided by key. Knows the watermark, keeps no rows."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.watermark_ms: int | None = None

    def init(self, outbox: Outbox, context: ProcessorContext) -> None:
        super().init(outbox, context)
        self.out: Emitter[object] = Emitter(outbox.offer)

    def process(self, ordinal: int, inbox: Inbox) -> bool:
        return self.out.emit(
            lambda: [item for rows in inbox.drain() for item in self.send(rows, self.watermark_ms)]
        )

    def try_process_watermark(self, watermark: Watermark) -> bool:
        self.watermark_ms = watermark.timestamp_ms
        return self.outbox.offer(watermark)

    def save_to_snapshot(self) -> bool:
        return self.outbox.offer_to_snapshot(broadcast_key("watermark"), self.watermark_ms)

    def restore_from_snapshot(self, inbox: Inbox) -> bool:
        (self.watermark_ms,) = {entry.value for entry in inbox.drain()}
        return True


class Collect(ItemProcessor):
    """A sink that shares its list. Nothing crashes here: that is other tests' business."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def process_item(self, ordinal: int, item: Any) -> bool:
        self.rows += item.to_pylist() if isinstance(item, pa.Table) else [item]
        return True


class PipelineDag:
    """Builds the DAG of a graph without transforms; see the module.

    Args:
        operators: the planned operator of each stateful stage.
        feeds: per source its tables of rows, and watermarks between them.
        is_all: nothing follows the feeds.
        outputs: where each sink's rows go.
        running: where processors are noted when they are started.
    """

    def __init__(
        self,
        graph: Graph,
        operators: Mapping[str, Operator],
        feeds: Mapping[str, Sequence[Any]],
        *,
        is_all: bool,
        outputs: Outputs,
        running: Running,
    ) -> None:
        self._graph, self._operators, self._running = graph, operators, running
        self._readers: dict[str, int] = {}
        self._rejects_to: dict[str, int] = {}
        self.dag = DAG("local")
        for node in graph:
            if isinstance(node, SourceNode):
                self._source(node, feeds[node.name], is_all)
            elif isinstance(node, StatefulNode):
                self._stage(node)
            elif isinstance(node, SinkNode):
                rows = outputs.setdefault(node.name, [])
                self.dag.new_vertex(node.name, lambda rows=rows: Collect(rows))
                edge = self._from(node.upstream[0])
                if node.of_dead_letters:
                    self._rejects_to[node.upstream[0]] = edge.source_ordinal
                self.dag.edge(edge.to_vertex(node.name))

    def _source(self, node: SourceNode, items: Sequence[Any], is_all: bool) -> None:
        def supplier() -> Feed:
            feed = Feed(items, is_all)
            self._running.feeds.append(feed)
            return feed

        self.dag.new_vertex(node.name, supplier, local_parallelism=1)

    def _stage(self, node: StatefulNode) -> None:
        operator = self._operators[node.name]

        def supplier() -> Processor:
            if isinstance(node, ProcessorNode):
                return node.supplier()
            processor = DagOperator(
                operator,
                output_delay_ms=node.output_delay_ms,
                dead_letters_to=self._rejects_to.get(node.name),
            )
            self._running.processors.setdefault(node.name, []).append(processor)
            return processor

        self.dag.new_vertex(node.name, supplier)
        for ordinal, upstream in enumerate(node.upstream):
            is_users = isinstance(node, ProcessorNode)
            send = _as_dicts if is_users else first_stage(node, operator, ordinal)
            first = f"{node.name}.first{ordinal}"
            before = self._from(upstream)
            # As many as there are instances upstream: rows keep the order they have there.
            parallelism = self.dag[before.source].local_parallelism
            self.dag.new_vertex(
                first, lambda send=send: FirstStage(send), local_parallelism=parallelism
            )
            self.dag.edge(before.to_vertex(first).isolated())
            edge = Edge.from_vertex(first).to_vertex(node.name, ordinal)
            if isinstance(node, ProcessorNode):
                edge = edge.partitioned(_key_of(node.keys))
            else:
                edge = edge.partitioned_by(split_by_partition)
            self.dag.edge(edge)

    def _from(self, name: str) -> Edge:
        """The next free edge out of the vertex that stands for a node."""
        node = self._graph[name]
        while isinstance(node, TimestampsNode):
            node = self._graph[node.upstream[0]]
        ordinal = self._readers.get(node.name, 0)
        self._readers[node.name] = ordinal + 1
        return Edge.from_vertex(node.name, ordinal)


def first_stage(node: StatefulNode, operator: Operator, ordinal: int) -> Send:
    """Stage from rows to the operator's input."""
    schema = operator.input_schemas[ordinal]

    def send(rows: pa.Table, watermark_ms: int | None) -> list[pa.Table]:
        match node:
            case AggregateNode(window=SessionWindow(gap_ms, max_ms)):
                width_ms = gap_ms if max_ms is None else 1
                shaped = _buckets(node, addressed(rows, node.keys, node.time), width_ms,
                                  watermark_ms)  # fmt: skip
            case AggregateNode():
                shaped = _frames(node, addressed(rows, node.keys, node.time))
            case RollingNode(ttl_ms=int() as ttl_ms):
                shaped = _buckets(node, addressed(rows, node.keys, node.time), ttl_ms + 1,
                                  watermark_ms)  # fmt: skip
            case RollingNode():
                shaped = _totals(node, addressed(rows, node.keys, _as_it_stands(node.time)))
            case JoinNode() | JoinAsOfNode():
                shaped = addressed(rows, node.keys, node.times[ordinal])
                if ordinal == 1:  # clashing names carry the suffix in the operator's schema
                    clashing = [n for n in shaped.column_names if n not in schema.names]
                    names = [n + node.suffix if n in clashing else n for n in shaped.column_names]
                    shaped = shaped.rename_columns(names)
            case _:
                shaped = addressed(rows, operator.keys or (), node.time)  # type: ignore[attr-defined]
        return [shaped.select(schema.names).cast(schema)]

    return send


def _as_it_stands(time: EventTime | None) -> EventTime | None:
    return None if time is None else EventTime(time.column)


def addressed(rows: pa.Table, keys: Sequence[str], time: EventTime | None) -> pa.Table:
    """Rows with partition, hash and event time in front."""
    times = [0] * rows.num_rows if time is None else _milliseconds(rows.column(time.column))
    if time is not None and time.is_window_end:
        times = [end - 1 for end in times]
    values = [rows.column(key).to_pylist() for key in keys]
    hashes = [key_hash(*key) for key in zip(*values, strict=True)] if keys else [0] * rows.num_rows
    address = {
        PARTITION_COLUMN: pa.array([h % DEFAULT_PARTITION_COUNT for h in hashes], pa.int32()),
        HASH_COLUMN: pa.array(hashes, pa.int64()),
        TIME_COLUMN: pa.array(times, pa.int64()),
        ARRIVAL_COLUMN: pa.array(range(len(times)), pa.int64()),
    }
    return pa.table({**address, **{name: rows.column(name) for name in rows.column_names}})


def _frames(node: AggregateNode, rows: pa.Table) -> pa.Table:
    assert not isinstance(node.window, SessionWindow)
    ends = [node.window.frames.end_of(time) for time in rows.column(TIME_COLUMN).to_pylist()]
    rows = rows.append_column(WINDOW_END_MS, pa.array(ends, pa.int64()))
    group = [PARTITION_COLUMN, *node.keys, WINDOW_END_MS]
    return Aggregation(node.aggregates).first_stage(rows, rows.column(TIME_COLUMN), group)


def _buckets(
    node: AggregateNode | RollingNode, rows: pa.Table, width_ms: int, watermark_ms: int | None
) -> pa.Table:
    """Late rows are taken out: a bucket could not tell which of its rows are."""
    times = rows.column(TIME_COLUMN).to_pylist()
    timely = [watermark_ms is None or time >= watermark_ms for time in times]
    rows = rows.filter(pa.array(timely, pa.bool_()))
    buckets = [time // width_ms for time in rows.column(TIME_COLUMN).to_pylist()]
    rows = rows.append_column("__bucket", pa.array(buckets, pa.int64()))
    group = [PARTITION_COLUMN, HASH_COLUMN, *node.keys, "__bucket"]
    return _with_span(Aggregation(node.aggregates), rows, group)


def _totals(node: RollingNode, rows: pa.Table) -> pa.Table:
    group = [PARTITION_COLUMN, HASH_COLUMN, *node.keys]
    return _with_span(Aggregation(node.aggregates), rows, group)


def _with_span(aggregation: Aggregation, rows: pa.Table, group: list[str]) -> pa.Table:
    """Partials, and the first and last event time of each group."""
    partials = aggregation.first_stage(rows, rows.column(TIME_COLUMN), group)
    spans: dict[tuple[Any, ...], list[int]] = {}
    of_rows = zip(*(rows.column(name).to_pylist() for name in (*group, TIME_COLUMN)), strict=True)
    for *key, time in of_rows:
        first, last = spans.get(tuple(key), (time, time))
        spans[tuple(key)] = [min(first, time), max(last, time)]
    of_groups = zip(*(partials.column(name).to_pylist() for name in group), strict=True)
    found = [spans[key] for key in of_groups]
    for place, name in enumerate((FIRST_TIME_COLUMN, TIME_COLUMN)):
        partials = partials.append_column(
            name, pa.array([span[place] for span in found], pa.int64())
        )
    return partials


def _milliseconds(column: pa.ChunkedArray) -> list[int]:
    if not pa.types.is_timestamp(column.type):
        return column.to_pylist()
    return [
        time // 1000 for time in column.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    ]


def _as_dicts(rows: pa.Table, watermark_ms: int | None) -> list[dict[str, Any]]:
    return rows.to_pylist()


def _key_of(keys: tuple[str, ...]) -> Callable[[Any], Any]:
    if len(keys) == 1:
        return lambda row: row[keys[0]]
    return lambda row: tuple(row[key] for key in keys)
