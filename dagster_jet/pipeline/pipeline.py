"""Fluent interface of pipelines: every call adds a frozen node to the graph and runs nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args, overload

from dagster_jet.core.ddl import split_ddl
from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.aggregates import Aggregate
from dagster_jet.pipeline.definitions import (
    OF_A_SINK,
    OF_A_SOURCE,
    OF_A_TABLE,
    SinkDefinition,
    SourceDefinition,
    TableDefinition,
    check_definition,
)
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import (
    EnrichNode,
    Graph,
    MergeNode,
    Node,
    SinkNode,
    SourceNode,
    Timestamps,
    TimestampsNode,
    TransformNode,
)
from dagster_jet.pipeline.stateful import (
    AggregateNode,
    DeduplicateNode,
    JoinNode,
    ProcessorNode,
    RollingNode,
    StatefulMapInBatchesNode,
    StatefulMapNode,
    StatefulNode,
)
from dagster_jet.pipeline.stateful_map import stateful_map_node
from dagster_jet.pipeline.windows import Window
from dagster_jet.pipeline.written import Written

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

    from dagster_jet.dag import Processor
    from dagster_jet.operators.user.state import State

WINDOW_START = "window_start"
WINDOW_END = "window_end"
IS_EARLY = "is_early"

_N = TypeVar("_N", bound=Node)
OnError: TypeAlias = Literal["fail", "dead-letter"]
"""Treatment of a row that fails in a user's function."""
StateFormatName: TypeAlias = Literal["plain", "pickle"]
"""Format of the saved data of a user's code; see `KeyedStage.map_stateful`."""

S = TypeVar("S")
Row: TypeAlias = dict[str, Any]
"""A row by column name."""
Rows: TypeAlias = Mapping[str, Any] | Iterable[Mapping[str, Any]] | None
"""Return type of a user's function: a row, rows, or None."""
TableFunction: TypeAlias = "Callable[[pa.Table, pa.Table], tuple[pa.Table | None, pa.Table | None]]"
"""(states, rows) -> (results, changed states); see `KeyedStage.map_stateful`."""
OnEvictTable: TypeAlias = "Callable[[pa.Table, pa.Array], pa.Table | None]"
"""(expired states, a watermark in ms for each) -> results."""


class Pipeline:
    """A streaming job as a named graph of stages. Building it runs nothing.

    State and positions are matched by stage name, also after the code has changed. So the names of
    sources, stateful stages and sinks must be unique and should not change.

    Args:
        name: name of the job; it becomes part of store keys.

    Raises:
        PipelineError: the name is empty, or has a character not allowed in keys and paths.

    Example:
        >>> p = Pipeline("copy")
        >>> rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
        >>> written = rows.write_to(sinks.files("/out", format="json"), name="out")
    """

    def __init__(self, name: str) -> None:
        if not name or name in (".", "..") or any(c in name for c in "/\\\0 \n"):
            raise PipelineError(
                f"{name!r} is not a valid pipeline name.",
                cure="Use letters, digits, '_', '-' and '.'; it becomes part of store keys.",
            )
        self.name = name
        self._nodes: dict[str, Node] = {}

    def read_from(self, source: SourceDefinition, *, name: str) -> Stage:
        """Adds a source and returns the stream of its rows.

        Args:
            source: from `dagster_jet.sources`, or a connector of your own.
            name: name of the source, unique in the pipeline; saved positions are matched by it.

        Raises:
            PipelineError: the name is taken or not valid in a path, or the connector lacks
                attributes of `dagster_jet.Source`.

        Example:
            >>> source = sources.files("/in", format="json", schema="id long, at timestamp")
            >>> more = p.read_from(source, name="more")
        """
        return Stage(self, self._add(SourceNode(name, source)).name, None)

    @property
    def graph(self) -> Graph:
        """The finished graph of all stages.

        Raises:
            PipelineError: there is no source, no sink, or no sink for a stage's dead letters.
        """
        graph = Graph(dict(self._nodes))
        if not graph.sources:
            raise PipelineError(
                "the pipeline has no source.", job=self.name, cure="Call read_from()."
            )
        if not graph.sinks:
            raise PipelineError("the pipeline has no sink.", job=self.name, cure="Call write_to().")
        with_dead_letters = {sink.upstream[0] for sink in graph.sinks if sink.of_dead_letters}
        for stage in graph.stages:
            if (
                isinstance(stage, StatefulMapNode)
                and stage.keeps_dead_letters
                and stage.name not in with_dead_letters
            ):
                raise PipelineError(
                    'on_error="dead-letter" needs a sink for the dead letters.',
                    job=self.name,
                    stage=stage.name,
                    cure="Call dead_letter_to(sink, name=...) directly after the stage.",
                )
        return graph

    def with_connectors(
        self,
        sources: Mapping[str, SourceDefinition] | None = None,
        sinks: Mapping[str, SinkDefinition] | None = None,
    ) -> Pipeline:
        """Returns a copy with other sources and sinks, for experiments and tests.

        Args:
            sources: replacements of sources, by name of the source.
            sinks: replacements of sinks, by name of the sink.

        Raises:
            PipelineError: there is no source or sink of that name.

        Example:
            >>> numbers = p.read_from(sources.sequence(rate=10), name="numbers")
            >>> written = numbers.write_to(sinks.files("/out", format="json"), name="numbers_out")
            >>> shown = p.with_connectors(sinks={"numbers_out": sinks.console()})
        """
        changed = Pipeline(self.name)
        changed._nodes = dict(self._nodes)
        for name, source in (sources or {}).items():
            changed._nodes[name] = replace(self._end(name, SourceNode), source=source)
            changed._check_connector(changed._nodes[name])
        for name, sink in (sinks or {}).items():
            changed._nodes[name] = replace(self._end(name, SinkNode), sink=sink)
            changed._check_connector(changed._nodes[name])
        return changed

    def renamed(self, name: str) -> Pipeline:
        """Returns the same stages as another job with its own record, state and positions.

        The job can run beside this one, over other input. Its sinks must write elsewhere, because a
        sink's place belongs to one job.

        Args:
            name: name of the other job.

        Raises:
            PipelineError: the name is empty, or has a character not allowed in keys and paths.

        Example:
            >>> p.renamed("copy@2024-01-01").name
            'copy@2024-01-01'
        """
        other = Pipeline(name)
        other._nodes = dict(self._nodes)
        return other

    def _end(self, name: str, kind: type[_N]) -> _N:
        node = self._nodes.get(name)
        if isinstance(node, kind):
            return node
        what = kind.kind.value
        known = [each.name for each in self._nodes.values() if isinstance(each, kind)]
        raise PipelineError(
            f"there is no {what} {name!r}.",
            job=self.name,
            cure=f"Its {what}s are {', '.join(known) or 'none'}.",
        )

    def _add(self, node: _N) -> _N:
        if not node.name or node.name in (".", "..") or any(c in node.name for c in "/\\\0\n"):
            raise PipelineError(
                f"{node.name!r} is not a valid stage name.",
                job=self.name,
                cure="Use letters, digits, '_', '-' and '.'; it becomes part of keys and paths.",
            )
        if node.name in self._nodes:
            raise PipelineError(
                f"two stages are named {node.name!r} "
                f"(a {self._nodes[node.name].kind.value} and a {node.kind.value}).",
                job=self.name,
                stage=node.name,
                cure="State and positions are matched by name: give each stage its own.",
            )
        self._check_connector(node)
        self._nodes[node.name] = node
        return node

    def _check_connector(self, node: Node) -> None:
        match node:
            case SourceNode():
                check_definition(node.source, OF_A_SOURCE, job=self.name, stage=node.name)
            case SinkNode():
                check_definition(node.sink, OF_A_SINK, job=self.name, stage=node.name)
            case EnrichNode():
                check_definition(node.table, OF_A_TABLE, job=self.name, stage=node.name)

    def _fresh(self, prefix: str) -> str:
        number = 1
        while f"{prefix}_{number}" in self._nodes:
            number += 1
        return f"{prefix}_{number}"


class Stage:
    """A stream at one point of the pipeline."""

    def __init__(self, pipeline: Pipeline, node: str, time: EventTime | None) -> None:
        self._pipeline, self._node, self._time = pipeline, node, time

    def with_timestamps(
        self,
        column: str,
        *,
        allowed_lag: Duration = "0 ms",
        idle_timeout: Duration = "60 seconds",
        max_lull: Duration = "0 ms",
    ) -> Stage:
        """Defines the event-time column: a timestamp, or milliseconds since 1970 as long.

        Args:
            column: must not be null; a row without event time is a bad row.
            allowed_lag: lag behind the newest event above which an event is late.
            idle_timeout: time without events after which a source, or a partition of it, is idle
                and no longer holds the watermark back; 0: never.
            max_lull: time without events after which the watermark of a source, or of a partition
                of it, follows the wall clock (unless it is idle), so that windows close without
                further events. Later events with older times are late. 0: never.

        Raises:
            ConfigurationError: a duration is negative or cannot be read; names the argument.
            PipelineError: the stream already has timestamps at this point.

        Example:
            >>> flights = source.with_timestamps("at", allowed_lag="5 minutes")
        """
        timestamps = Timestamps(
            column,
            to_ms(allowed_lag, "allowed_lag"),
            to_ms(idle_timeout, "idle_timeout"),
            to_ms(max_lull, "max_lull"),
        )
        name = f"{self._node}.timestamps"
        self._pipeline._add(TimestampsNode(name, (self._node,), timestamps))
        return Stage(self._pipeline, name, EventTime(column))

    def with_ingestion_timestamps(
        self,
        *,
        column: str = "ingested_at",
        idle_timeout: Duration = "60 seconds",
        max_lull: Duration = "0 ms",
    ) -> Stage:
        """Adds a column with the time of reading a row, by wall clock, as event time.

        All rows of an epoch have the same time, which never decreases, so no row is late. Rows that
        are read again after a crash get a new time: the guarantee covers the rows, not their times.
        Windows close when more rows arrive, or by `max_lull`.

        Args:
            column: name of the new timestamp column; the stream must not have it yet.
            idle_timeout: as in `with_timestamps`.
            max_lull: as in `with_timestamps`.

        Raises:
            ConfigurationError: a duration is negative or cannot be read; names the argument.
            PipelineError: the stream already has timestamps at this point.

        Example:
            >>> read = untimed.with_ingestion_timestamps(max_lull="10 seconds")
        """
        timestamps = Timestamps(
            column,
            0,
            to_ms(idle_timeout, "idle_timeout"),
            to_ms(max_lull, "max_lull"),
            of_ingestion=True,
        )
        name = f"{self._node}.timestamps"
        self._pipeline._add(TimestampsNode(name, (self._node,), timestamps))
        return Stage(self._pipeline, name, EventTime(column))

    def transform(
        self,
        function: Callable[[DataFrame], DataFrame],
        *,
        name: str | None = None,
        per_epoch: bool = False,
    ) -> Stage:
        """Applies a stateless function from DataFrame to DataFrame.

        The function receives the rows of one epoch, and epoch boundaries are arbitrary. So a
        function that combines several rows (`groupBy`, `dropDuplicates`, `limit`, windows, sorts, a
        self-join) is refused when the job starts; the error names the stage to use instead.

        Args:
            function: called with an empty DataFrame when the job starts, and once per epoch. It
                must always return the same columns; otherwise the job fails.
            name: name of the stage; by default "transform_1" and so on.
            per_epoch: allow combining several rows; the output may then differ between runs.

        Raises:
            PipelineError: the name is taken. At the job's start: the function combines rows.

        Example:
            >>> hours = rows.transform(lambda df: df.withColumn("hour", F.hour("at")))
        """
        name = name or self._pipeline._fresh("transform")
        return self._append(TransformNode(name, (self._node,), function, per_epoch=per_epoch))

    def filter(self, condition: str | Column, *, name: str | None = None) -> Stage:
        """Keeps the rows for which `condition` is true.

        Args:
            condition: a SQL expression ("delay > 15"), or a Column.
            name: name of the stage; by default "filter_1" and so on.

        Raises:
            PipelineError: the name is taken.

        Example:
            >>> late = rows.filter("delay > 15", name="late")
        """
        name = name or self._pipeline._fresh("filter")

        def keep(frame: DataFrame) -> DataFrame:
            return frame.where(condition)

        is_constant = not _names_a_moment(condition)
        return self._append(TransformNode(name, (self._node,), keep, is_constant=is_constant))

    def select(self, *columns: str | Column, name: str | None = None) -> Stage:
        """Replaces the columns of the stream.

        If a later stage needs event time, the event-time column must be among them.

        Args:
            columns: names, SQL expressions ("price * 2 as twice") or Columns.
            name: name of the stage; by default "select_1" and so on.

        Raises:
            PipelineError: the name is taken.

        Example:
            >>> hours = rows.select("origin", "at", "delay / 60 as hours")
        """
        name = name or self._pipeline._fresh("select")

        def project(frame: DataFrame, *more: str) -> DataFrame:
            from pyspark.sql import functions

            selected = [functions.expr(c) if isinstance(c, str) else c for c in columns]
            return frame.select(*selected, *more)

        is_constant = not any(map(_names_a_moment, columns))
        return self._append(
            TransformNode(name, (self._node,), project, is_projection=True, is_constant=is_constant)
        )

    def merge(self, *others: Stage, name: str | None = None) -> Stage:
        """Merges this stream and `others` into one. Columns are matched by name.

        The watermark is the minimum of the streams' watermarks.

        Args:
            others: streams of the same pipeline with the same columns.
            name: name of the stage; by default "merge_1" and so on.

        Raises:
            PipelineError: the streams have different event-time columns, or belong to different
                pipelines. When the job starts: they have different columns.

        Example:
            >>> both = rows.merge(other_rows)
        """
        self._refuse_other_pipelines(others, name)
        times = {self._time, *(other._time for other in others)}
        if len(times) > 1:
            raise PipelineError(
                f"streams to merge have different event-time columns: {sorted(map(str, times))}.",
                job=self._pipeline.name,
                cure="Rename the columns before with_timestamps().",
            )
        name = name or self._pipeline._fresh("merge")
        return self._append(MergeNode(name, (self._node, *(other._node for other in others))))

    def enrich(
        self,
        table: TableDefinition,
        *,
        on: str | Sequence[str],
        how: Literal["left", "inner"] = "left",
        refresh: Duration | None = None,
        name: str | None = None,
        suffix: str = "_right",
    ) -> Stage:
        """Adds the columns of a batch table by key (a hash join).

        Columns: the stream's, then the table's. A table column with a name of a stream column gets
        `suffix`. A table row that does not fit the schema fails the job; so does a CSV file whose
        header differs from the schema.

        Args:
            table: from `dagster_jet.tables`, or a connector of your own.
            on: columns of both sides that must be equal.
            how: "left" keeps rows without a match, "inner" drops them.
            refresh: maximum age of the table at the start of an epoch; an older table is read
                again. By default it is read once, when an execution starts. Each row is in the
                output exactly once, with the table's content in the committed epoch.
            name: name of the stage; by default "enrich_1" and so on.
            suffix: suffix of table columns whose names the stream has, too.

        Raises:
            PipelineError: `how` is not valid, or the name is taken.
            ConfigurationError: `refresh` is negative or cannot be read.

        Example:
            >>> named = rows.enrich(tables.files("/dim/airports"), on="origin", refresh="1 hour")
        """
        if how not in ("left", "inner"):
            raise PipelineError(
                f"how={how!r} is not valid for enrich().",
                job=self._pipeline.name,
                cure='Use "left" (keep rows without a match) or "inner".',
            )
        keys = _columns(on)
        name = name or self._pipeline._fresh("enrich")
        every = None if refresh is None else to_ms(refresh, "refresh")
        return self._append(EnrichNode(name, (self._node,), table, keys, how, every, suffix))

    def join(
        self,
        other: Stage,
        *,
        on: str | Sequence[str],
        within: Duration,
        name: str,
        how: Literal["inner", "left", "right", "outer"] = "inner",
        suffix: str = "_right",
    ) -> Stage:
        """Joins rows of two streams with equal keys and event times at most `within` apart.

        Columns: the keys, this stream's, the other's. A column of the other stream with a name of
        this stream's gets `suffix`. The event time of a result is that of this stream's row; with
        "right" and "outer" results have no event time.

        Args:
            other: a stream of the same pipeline.
            on: columns of both streams that must be equal.
            within: largest event-time difference of a pair; also how long state keeps rows.
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            how: "inner", "left", "right" or "outer". A row without a partner is emitted with nulls
                when the watermark shows that no partner can arrive any more.
            suffix: suffix of the other stream's columns whose names this stream has, too.

        Raises:
            PipelineError: a stream has no event time or is of another pipeline, or `how` is not
                valid.
            ConfigurationError: `within` is negative or cannot be read.

        Example:
            >>> paid = orders.join(payments, on="order_id", within="1 hour", name="paid")
        """
        if how not in ("inner", "left", "right", "outer"):
            raise PipelineError(
                f"how={how!r} is not valid for join().",
                job=self._pipeline.name,
                stage=name,
                cure='Use "inner", "left", "right" or "outer".',
            )
        self._refuse_other_pipelines((other,), name)
        times = (self._event_time(name), other._event_time(name))
        keys = _columns(on)
        _refuse_twice(self, name, keys)
        node = JoinNode(
            name, (self._node, other._node), keys, to_ms(within, "within"), how, times, suffix
        )
        joined = self._append(node)
        # An unpaired row of the other stream has no event time of this stream.
        return joined if how in ("inner", "left") else replace_time(joined, None)

    def group_by(self, *keys: str) -> KeyedStage:
        """Groups the stream by key columns; the next stage has a state per key.

        Raises:
            PipelineError: no key, or a duplicate key.

        Example:
            >>> by_origin = rows.group_by("origin")
        """
        if not keys:
            raise PipelineError("group_by() needs at least one key.", job=self._pipeline.name)
        _refuse_twice(self, self._node, keys)
        return KeyedStage(self, keys)

    def window(self, window: Window, *, early_results: Duration | None = None) -> WindowedStage:
        """Divides the stream into windows over all rows; `KeyedStage.window` does it per key.

        Args:
            window: from `dagster_jet.windows`.
            early_results: as in `KeyedStage.window`.

        Raises:
            PipelineError: the stream has no event time.
            ConfigurationError: `early_results` is negative or cannot be read.

        Example:
            >>> windowed = rows.window(windows.sliding("1 hour", slide="10 minutes"))
        """
        return KeyedStage(self, ()).window(window, early_results=early_results)

    def rolling_aggregate(self, *, name: str, **aggregates: Aggregate) -> Stage:
        """Emits one row with the totals over all rows so far, in every epoch that has rows.

        Arguments and errors are those of `KeyedStage.rolling_aggregate`.

        Example:
            >>> total = rows.rolling_aggregate(name="total", n=agg.count())
        """
        return KeyedStage(self, ()).rolling_aggregate(name=name, **aggregates)

    def deduplicate(
        self, *, within: Duration, name: str, on: str | Sequence[str] | None = None
    ) -> Stage:
        """Passes the first row of each key and drops its duplicates within a time.

        A row is dropped if a passed row with its key is at most `within` away in event time. Rows
        behind the watermark are late.

        Args:
            within: distance in event time; also the time that keys are kept in state.
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            on: key columns; by default all columns.

        Raises:
            PipelineError: the stream has no event time, or a column is named twice.
            ConfigurationError: `within` is negative or cannot be read.

        Example:
            >>> once = rows.deduplicate(within="1 day", on="flight", name="once")
        """
        keys = () if on is None else _columns(on)
        _refuse_twice(self, name, keys)
        time = self._event_time(name)
        return self._append(
            DeduplicateNode(name, (self._node,), keys, to_ms(within, "within"), time)
        )

    @overload
    def map_stateful(
        self,
        function: Callable[[State[S], Row], Rows],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        on_evict: Callable[[Row, S, int], Rows] | None = None,
        on_error: OnError = "fail",
        state_format: StateFormatName = "plain",
    ) -> Stage: ...

    @overload
    def map_stateful(
        self,
        function: TableFunction,
        *,
        in_batches: Literal[True],
        state_schema: str,
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        on_evict: OnEvictTable | None = None,
    ) -> Stage: ...

    def map_stateful(
        self,
        function: Callable[..., Any],
        *,
        create: Callable[[], Any] | None = None,
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        on_evict: Callable[..., Any] | None = None,
        on_error: OnError = "fail",
        state_format: StateFormatName = "plain",
        in_batches: bool = False,
        state_schema: str | None = None,
    ) -> Stage:
        """Calls `function(state, row)` for every row, with a single state for all rows.

        Arguments and errors are those of `KeyedStage.map_stateful`, which has an example.
        """
        return _map_stateful(
            self,
            (),
            function,
            create=create,
            output_schema=output_schema,
            name=name,
            ttl=ttl,
            on_evict=on_evict,
            on_error=on_error,
            state_format=state_format,
            in_batches=in_batches,
            state_schema=state_schema,
        )

    def apply_processor(
        self,
        supplier: Callable[[], Processor],
        *,
        output_schema: str,
        name: str,
        in_batches: bool = False,
        output_delay: Duration = "0 ms",
        state_format: StateFormatName = "plain",
    ) -> Stage:
        """Passes all rows to a single `dagster_jet.dag.Processor`.

        Arguments and errors are those of `KeyedStage.apply_processor`, which has an example.
        """
        return KeyedStage(self, ()).apply_processor(
            supplier,
            output_schema=output_schema,
            name=name,
            in_batches=in_batches,
            output_delay=output_delay,
            state_format=state_format,
        )

    def late_to(
        self, sink: SinkDefinition, *, name: str, side: Literal["left", "right"] | None = None
    ) -> Stage:
        """Writes the late rows of this stage to `sink`, in the same transaction as its results.

        Without it late rows are only counted. They are written as the stage received them. After
        `apply_processor` these are the rows behind the watermark; the processor does not get them.

        Args:
            sink: from `dagster_jet.sinks`, or a connector of your own.
            name: name of the sink, unique in the pipeline.
            side: side of a `join` whose late rows are written; only after `join`. The other side
                needs a separate sink, because its columns differ.

        Returns:
            This stage; the next call continues from its results.

        Raises:
            PipelineError: the stage is not stateful or has no late rows, or `side` does not fit.

        Example:
            >>> hourly = hourly.late_to(sinks.files("/out/late", format="json"), name="late_rows")
        """
        node = self._pipeline._nodes[self._node]
        if not isinstance(node, StatefulNode):
            raise self._refusal("late_to() belongs directly after a stateful stage.")
        sides = ("left", "right") if isinstance(node, JoinNode) else (None,)
        if side not in sides:
            raise self._refusal(
                f"late_to(side={side!r}): expected {' or '.join(map(repr, sides))}.",
                "Each side of a join has late rows of its own; other stages have one input.",
            )
        reason = node.never_late
        if reason is None and self._is_read_just_now(node):
            reason = "with_ingestion_timestamps() gives rows the time of their reading"
        if reason is not None:
            raise self._refusal(
                f"no row can be late for the stage: {reason}.",
                "Leave late_to() out; rows are late by the event times of with_timestamps(), for "
                "windows, deduplicate, join, and functions with a ttl.",
            )
        late = SinkNode(name, (node.name,), sink, of_late=True, late_input=sides.index(side))
        self._pipeline._add(late)
        return self

    def _is_read_just_now(self, stage: StatefulNode) -> bool:
        """Whether all rows come directly from one source with ingestion time, which never
        decreases, and without `max_lull`, under which the watermark may pass later rows."""
        found: set[TimestampsNode] = set()
        pending = list(stage.upstream)
        while pending:
            node = self._pipeline._nodes[pending.pop()]
            if isinstance(node, StatefulNode):
                return False
            if isinstance(node, TimestampsNode):
                found.add(node)
            else:
                pending.extend(node.upstream)
        times = [node.timestamps for node in found]
        return len(times) == 1 and times[0].of_ingestion and times[0].max_lull_ms == 0

    def _refusal(self, message: str, cure: str | None = None) -> PipelineError:
        return PipelineError(message, job=self._pipeline.name, stage=self._node, cure=cure)

    def write_to(self, sink: SinkDefinition, *, name: str) -> Written:
        """Writes the stream to a sink. A stream can have several sinks.

        Args:
            sink: from `dagster_jet.sinks`, or a connector of your own.
            name: name of the sink, unique in the pipeline; commits are matched by it.

        Returns:
            An object whose `dead_letter_to` adds a sink for rows that this sink refuses.

        Raises:
            PipelineError: the name is taken.

        Example:
            >>> written = rows.write_to(sinks.files("/out/rows", format="json"), name="rows_out")
        """
        self._pipeline._add(SinkNode(name, (self._node,), sink))
        return Written(name, self._pipeline._add)

    def dead_letter_to(self, sink: SinkDefinition, *, name: str) -> Stage:
        """Writes the bad rows of this source to `sink`, in the same transaction as other rows.

        The columns are source, position, reason and raw. Without such a sink a bad row fails the
        job.

        After `map_stateful(..., on_error="dead-letter")` it writes the rows that fail in the
        function: source is the stage, position the row's key and event time, raw the row as JSON.

        Args:
            sink: from `dagster_jet.sinks`, or a connector of your own.
            name: name of the sink, unique in the pipeline.

        Returns:
            This stage; the next call continues from its good rows.

        Raises:
            PipelineError: it does not follow such a stage, or the stage's `on_error` is "fail".

        Example:
            >>> rows = rows.dead_letter_to(sinks.files("/out/bad", format="json"), name="bad_rows")
        """
        node = self._pipeline._nodes[self._node]
        if isinstance(node, TimestampsNode):
            node = self._pipeline._nodes[node.upstream[0]]
        if isinstance(node, StatefulMapNode) and not node.keeps_dead_letters:
            raise PipelineError(
                "the stage has no dead letters: a row that its function cannot process fails the "
                "job.",
                job=self._pipeline.name,
                stage=node.name,
                cure='Use map_stateful(..., on_error="dead-letter").',
            )
        if isinstance(node, StatefulMapInBatchesNode):
            raise PipelineError(
                "a stage with in_batches=True has no dead letters: its function gets many rows "
                "in one call, and an error does not say which row caused it.",
                job=self._pipeline.name,
                stage=node.name,
                cure="Filter bad rows in the function or before it, or leave in_batches out.",
            )
        if not isinstance(node, SourceNode | StatefulMapNode):
            raise PipelineError(
                "dead_letter_to() belongs directly after read_from() or with_timestamps(), or "
                "directly after map_stateful().",
                job=self._pipeline.name,
                stage=self._node,
            )
        self._pipeline._add(SinkNode(name, (node.name,), sink, of_dead_letters=True))
        return self

    def _refuse_other_pipelines(self, others: Sequence[Stage], name: str | None) -> None:
        """Refuses streams of other pipelines: their node names may denote other nodes here."""
        for other in others:
            if other._pipeline is not self._pipeline:
                mine, its = self._pipeline.name, other._pipeline.name
                raise PipelineError(
                    f"{self._node!r} is of the pipeline {mine!r}, and {other._node!r} is of "
                    f"{'another one' if its == mine else 'the pipeline'} {its!r}.",
                    job=mine,
                    stage=name,
                    cure="Read both streams in one pipeline: call read_from() on the same object.",
                )

    def _event_time(self, name: str, what: str = "the stage") -> EventTime:
        if self._time is None:
            raise PipelineError(
                f"{what} needs event time.",
                job=self._pipeline.name,
                stage=name,
                cure="Call with_timestamps() on its source.",
            )
        return self._time

    def _append(self, node: Node) -> Stage:
        return Stage(self._pipeline, self._pipeline._add(node).name, self._time)


class KeyedStage:
    """A stream grouped by key; the next stage has a state per key."""

    def __init__(self, stage: Stage, keys: tuple[str, ...]) -> None:
        self._stage, self._keys = stage, keys

    def window(self, window: Window, *, early_results: Duration | None = None) -> WindowedStage:
        """Divides the stream of each key into windows.

        Args:
            window: from `dagster_jet.windows`.
            early_results: also emit the current results of open windows, at about this interval of
                wall-clock time. Rows get a column `is_early`. The guarantee does not cover early
                rows: after a restart their times and values differ. They go to sinks, also through
                transforms; stateful stages after the window receive final rows only.

        Raises:
            PipelineError: the stream has no event time.
            ConfigurationError: `early_results` is negative or cannot be read.

        Example:
            >>> windowed = rows.group_by("origin").window(
            ...     windows.tumbling("1 hour"), early_results="5 seconds"
            ... )
        """
        self._stage._event_time(self._stage._node, "a window")
        every = None if early_results is None else to_ms(early_results, "early_results")
        return WindowedStage(self._stage, self._keys, window, every)

    def rolling_aggregate(self, *, name: str, **aggregates: Aggregate) -> Stage:
        """Emits one row with the totals so far for each key with rows in an epoch.

        Columns: keys, the key's newest event time (if the stream has event time), the aggregates.

        Args:
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            aggregates: aggregates from `dagster_jet.aggregates`, by name of the result column.

        Raises:
            PipelineError: no aggregate, or duplicate column names.

        Example:
            >>> totals = rows.group_by("origin").rolling_aggregate(name="totals", n=agg.count())
        """
        stage = self._stage
        time = () if stage._time is None else (stage._time.column,)
        _check_aggregates(stage, name, (*self._keys, *time), aggregates)
        node = RollingNode(name, (stage._node,), self._keys, tuple(aggregates.items()), stage._time)
        return stage._append(node)

    def deduplicate(self, *, within: Duration, name: str) -> Stage:
        """Passes the first row of each key: `Stage.deduplicate` on these keys.

        Example:
            >>> first = rows.group_by("flight").deduplicate(within="1 day", name="first")
        """
        return self._stage.deduplicate(within=within, name=name, on=self._keys)

    @overload
    def map_stateful(
        self,
        function: Callable[[State[S], Row], Rows],
        *,
        create: Callable[[], S],
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        on_evict: Callable[[Row, S, int], Rows] | None = None,
        on_error: OnError = "fail",
        state_format: StateFormatName = "plain",
    ) -> Stage: ...

    @overload
    def map_stateful(
        self,
        function: TableFunction,
        *,
        in_batches: Literal[True],
        state_schema: str,
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        on_evict: OnEvictTable | None = None,
    ) -> Stage: ...

    def map_stateful(
        self,
        function: Callable[..., Any],
        *,
        create: Callable[[], Any] | None = None,
        output_schema: str,
        name: str,
        ttl: Duration | None = None,
        on_evict: Callable[..., Any] | None = None,
        on_error: OnError = "fail",
        state_format: StateFormatName = "plain",
        in_batches: bool = False,
        state_schema: str | None = None,
    ) -> Stage:
        """Calls `function(state, row)` for every row, with the state of the row's key.

        Within an epoch, rows of one key are in order of event time.

        Args:
            function: called with the key's `dagster_jet.State` (`state.value`, `state.clear()`) and
                the row as a dict; returns a row, an iterable of rows, or None.
            create: returns the state of a new key. Not with `in_batches`.
            output_schema: DDL of the rows that `function` returns ("key string, n bigint").
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            ttl: a state expires when the watermark is more than this past its last touch.
            on_evict: called with the key, its expired state, and a watermark in ms since 1970 under
                which the state has expired; may return rows, too.
            on_error: treatment of a row for which `function` raises, or returns rows that do not
                fit `output_schema`. "fail": the job fails, and the error names the row.
                "dead-letter": the row goes to the sink of `dead_letter_to`, which must follow, and
                the key's state stays as before the row. `function` may then be called twice with a
                row, so it must not have side effects.
            state_format: format of saved states. "plain": numbers, text, times, and lists, tuples,
                dicts and sets of them (docs/operators.md); other values fail the job when they are
                first saved. "pickle": anything that can be pickled. Then anyone who can write to a
                member of the store can run code on the executors.

        Raises:
            PipelineError: an option is not valid or contradicts another, or a `ttl` lacks event
                time.
            ConfigurationError: `ttl` is negative or cannot be read.

        Example:
            >>> def add(state, row):
            ...     state.value += row["delay"]
            ...     return {"origin": row["origin"], "total": state.value}
            >>> sums = rows.group_by("origin").map_stateful(
            ...     add, create=float, output_schema="origin string, total double", name="sums"
            ... )
        """
        return _map_stateful(
            self._stage,
            self._keys,
            function,
            create=create,
            output_schema=output_schema,
            name=name,
            ttl=ttl,
            on_evict=on_evict,
            on_error=on_error,
            state_format=state_format,
            in_batches=in_batches,
            state_schema=state_schema,
        )

    def apply_processor(
        self,
        supplier: Callable[[], Processor],
        *,
        output_schema: str,
        name: str,
        in_batches: bool = False,
        output_delay: Duration = "0 ms",
        state_format: StateFormatName = "plain",
    ) -> Stage:
        """Passes the rows to processors (`dagster_jet.dag.Processor`), one per shard.

        All rows of one key go to the same processor. Rows of one epoch are in order of event time.
        Rows with equal times, and rows of a stream without event time, have an arbitrary order,
        which may differ when the epoch is run again.

        If the processor overrides `try_process`, the method is called in every epoch, and there is
        an epoch every second even without input.

        An instance exists for one epoch; the next instance has only the saved state. Every epoch
        reads and writes the whole saved state, so use `map_stateful` or aggregates for large state.

        If the processor commits in two phases, every epoch of the job ends in a snapshot,
        regardless of `snapshot_interval`, and a new instance that is restored from the snapshot
        commits. See docs/operators.md.

        Args:
            supplier: returns a new instance, for example the class itself; must be picklable.
            output_schema: DDL of the rows that the processor emits.
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            in_batches: input and output items are Arrow record batches instead of dicts.
            output_delay: largest lag of an emitted row's event time behind the watermark; the
                watermark of the next stages is delayed by it. A processor that holds rows back, to
                sort or to pair them, needs it: older rows are late for the next stages, and
                dropped.
            state_format: format of the keys and values of saved entries, as in `map_stateful`.

        Raises:
            PipelineError: the format is not valid. When the job starts: the type of a key is not
                boolean, number (except decimal), text, binary, date or timestamp.
            ConfigurationError: `output_delay` is negative or cannot be read.

        Example:
            >>> paired = orders.group_by("order_id").apply_processor(
            ...     Pairs, output_schema="order_id string, at timestamp", name="pairs"
            ... )
        """
        stage = self._stage
        time, delay_ms = stage._time, to_ms(output_delay, "output_delay")
        saved_as = _format_of(stage, name, state_format)
        node = ProcessorNode(
            name,
            (stage._node,),
            self._keys,
            supplier,
            output_schema,
            time,
            in_batches,
            delay_ms,
            saved_as,
        )
        return replace_time(stage._append(node), _kept(time, output_schema))


class WindowedStage:
    """A stream divided into windows; `aggregate` defines the results of each window."""

    def __init__(
        self, stage: Stage, keys: tuple[str, ...], window: Window, early_results_ms: int | None
    ) -> None:
        self._stage, self._keys, self._window = stage, keys, window
        self._early_results_ms = early_results_ms

    def aggregate(self, *, name: str, **aggregates: Aggregate) -> Stage:
        """Emits one row per key and window: keys, window_start, window_end, then the aggregates.

        The event time of a result is the last millisecond of its window, `window_end` minus one. So
        a daily window over hourly windows contains the hours of that day.

        Args:
            name: name of the stage, unique in the pipeline; saved state is matched by it.
            aggregates: aggregates from `dagster_jet.aggregates`, by name of the result column.

        Raises:
            PipelineError: no aggregate, or duplicate column names.

        Example:
            >>> delays = rows.group_by("origin").window(windows.tumbling("1 hour")).aggregate(
            ...     n=agg.count(), worst=agg.max("delay"), name="hourly_delays"
            ... )
        """
        early = () if self._early_results_ms is None else (IS_EARLY,)
        added = (WINDOW_START, WINDOW_END, *early)
        _check_aggregates(self._stage, name, (*self._keys, *added), aggregates)
        node = AggregateNode(
            name,
            (self._stage._node,),
            self._keys,
            self._window,
            tuple(aggregates.items()),
            self._stage._event_time(name),
            self._early_results_ms,
        )
        return replace_time(self._stage._append(node), EventTime(WINDOW_END, is_window_end=True))


def _map_stateful(
    stage: Stage,
    keys: tuple[str, ...],
    function: Callable[..., Any],
    *,
    name: str,
    output_schema: str,
    ttl: Duration | None,
    on_error: OnError,
    state_format: StateFormatName,
    **options: Any,
) -> Stage:
    """Adds both forms of `map_stateful`, with or without keys; `options` are those of the node."""
    job = stage._pipeline.name
    if on_error not in get_args(OnError):
        raise PipelineError(
            f"on_error={on_error!r} is unknown.",
            job=job,
            stage=name,
            cure='Use "fail" or "dead-letter".',
        )
    time = stage._event_time(name) if ttl is not None else stage._time
    node = stateful_map_node(
        job,
        name,
        stage._node,
        keys,
        function,
        output_schema=output_schema,
        ttl_ms=None if ttl is None else to_ms(ttl, "ttl"),
        time=time,
        keeps_dead_letters=on_error == "dead-letter",
        state_format=_format_of(stage, name, state_format),
        **options,
    )
    return replace_time(stage._append(node), _kept(time, output_schema))


def _format_of(stage: Stage, name: str, state_format: str) -> StateFormat:
    try:
        return StateFormat(state_format)
    except ValueError:
        raise PipelineError(
            f"state_format={state_format!r} is unknown.",
            job=stage._pipeline.name,
            stage=name,
            cure='Use "plain" or "pickle".',
        ) from None


def replace_time(stage: Stage, time: EventTime | None) -> Stage:
    """Return the same stage with another event time."""
    return Stage(stage._pipeline, stage._node, time)


def _columns(on: str | Sequence[str]) -> tuple[str, ...]:
    return (on,) if isinstance(on, str) else tuple(on)


def _refuse_twice(stage: Stage, name: str, columns: Sequence[str]) -> None:
    """Refuse duplicate column names; one of the columns would be lost silently."""
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise PipelineError(
            f"two columns would be named {', '.join(map(repr, twice))}.",
            job=stage._pipeline.name,
            stage=name,
            cure="Name each key once and each aggregate differently (n=agg.count()); a key whose "
            "name the stage uses itself is renamed by a select() before it.",
        )


def _check_aggregates(
    stage: Stage, name: str, others: Sequence[str], aggregates: Mapping[str, Aggregate]
) -> None:
    """
    Args:
        others: the result's columns besides the aggregates.
    """
    if not aggregates:
        raise PipelineError(
            "aggregate() needs at least one aggregate.",
            job=stage._pipeline.name,
            stage=name,
            cure="Name aggregates as keywords: n=agg.count().",
        )
    _refuse_twice(stage, name, [*others, *aggregates])
    for column, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise PipelineError(
                f"{column}={aggregate!r} is not an aggregate.",
                job=stage._pipeline.name,
                stage=name,
                cure="Use dagster_jet.aggregates, for example agg.count().",
            )


def _kept(time: EventTime | None, output_schema: str) -> EventTime | None:
    """Returns the event time if the output still has its column."""
    columns = dict(split_ddl(output_schema))
    return time if time is not None and time.column in columns else None


_MOMENT = re.compile(r"""["']\s*(?:now|today|tomorrow|yesterday)\b""", re.IGNORECASE)


def _names_a_moment(condition: str | Column) -> bool:
    """Whether a text has `timestamp'now'` or the like; Spark evaluates it while parsing."""
    return isinstance(condition, str) and _MOMENT.search(condition) is not None


__all__ = ["KeyedStage", "Pipeline", "Stage", "WindowedStage"]
