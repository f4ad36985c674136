"""The fluent face of a pipeline: every call adds a frozen node to the graph and runs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from dagster_jet.core.ddl import split_ddl
from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.aggregates import Aggregate
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import (
    EnrichNode,
    Graph,
    MergeNode,
    Node,
    SinkDefinition,
    SinkNode,
    SourceDefinition,
    SourceNode,
    TableDefinition,
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
    StatefulMapNode,
    StatefulNode,
)
from dagster_jet.pipeline.windows import Window

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from dagster_jet.dag import Processor
    from dagster_jet.operators.user.state import State

WINDOW_START = "window_start"
WINDOW_END = "window_end"
IS_EARLY = "is_early"

_N = TypeVar("_N", bound=Node)
OnError: TypeAlias = Literal["fail", "dead-letter"]
"""What becomes of a row that a user's function cannot take."""
StateFormatName: TypeAlias = Literal["plain", "pickle"]
"""How what a user's code keeps is saved; see `KeyedStage.map_stateful`."""

S = TypeVar("S")
Row: TypeAlias = dict[str, Any]
"""A row by column name."""
Rows: TypeAlias = Mapping[str, Any] | Iterable[Mapping[str, Any]] | None
"""What a user's function returns: a row, rows, or none."""


class Pipeline:
    """A streaming job as a graph of stages under a name.

    State and positions are matched by stage name from one run to the next, also after the code
    changed: names of sources, stateful stages and sinks are unique and should stay.
    """

    def __init__(self, name: str) -> None:
        if not name or name in (".", "..") or any(c in name for c in "/\\\0 \n"):
            raise PipelineError(
                f"{name!r} cannot name a pipeline.",
                cure="Use letters, digits, '_', '-' and '.'; it becomes part of store keys.",
            )
        self.name = name
        self._nodes: dict[str, Node] = {}

    def read_from(self, source: SourceDefinition, *, name: str) -> Stage:
        """Adds a source and returns the stream of its rows.

        Args:
            source: from `dagster_jet.sources`, or a connector of your own.
            name: unique in the pipeline; positions are found by it at the next start.

        Raises:
            PipelineError: the name is taken, or cannot be part of a path.
        """
        return Stage(self, self._add(SourceNode(name, source)).name, None)

    @property
    def graph(self) -> Graph:
        """The finished graph.

        Raises:
            PipelineError: nothing is read, or nothing is written; a stage keeps dead letters, and
                nothing takes them.
        """
        graph = Graph(dict(self._nodes))
        if not graph.sources:
            raise PipelineError("nothing is read.", job=self.name, cure="Call read_from().")
        if not graph.sinks:
            raise PipelineError("nothing is written.", job=self.name, cure="Call write_to().")
        with_dead_letters = {sink.upstream[0] for sink in graph.sinks if sink.of_dead_letters}
        for stage in graph.stages:
            if (
                isinstance(stage, StatefulMapNode)
                and stage.keeps_dead_letters
                and stage.name not in with_dead_letters
            ):
                raise PipelineError(
                    'on_error="dead-letter", but there is no sink for the dead letters.',
                    job=self.name,
                    stage=stage.name,
                    cure="Call dead_letter_to(sink, name=...) directly after the stage.",
                )
        return graph

    def _add(self, node: _N) -> _N:
        if not node.name or node.name in (".", "..") or any(c in node.name for c in "/\\\0\n"):
            raise PipelineError(
                f"{node.name!r} cannot name a stage.",
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
        self._nodes[node.name] = node
        return node

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
        """Names the event-time column: a timestamp, or milliseconds since 1970 as long.

        Example:
            >>> rows.with_timestamps("at", allowed_lag="5 minutes")  # doctest: +SKIP

        Args:
            column: must not be null; a row without event time is a bad row.
            allowed_lag: how far events may be behind the newest one before they count as late.
            idle_timeout: after so long without events a source, or a partition of it, stops
                holding windows back; 0 means never.
            max_lull: after so long without events the watermark of a source, or a partition of
                it, goes on with the wall clock (unless it is idle), so that windows close although
                nothing follows; 0 means never. Events that come later with older times are late.

        Raises:
            ConfigurationError: a duration is negative or cannot be read; names the argument.
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
        """Adds a column with the wall-clock time at which the row was read, as event time.

        All rows of an epoch have the same, and it never goes back, so none is ever late. Rows
        that are read again after a crash get a new time: the guarantee holds for the rows, not
        for their times. Windows close as further rows come, or by `max_lull`.

        Args:
            column: timestamp; the stream must not have it yet.
            idle_timeout, max_lull: as in `with_timestamps`.

        Raises:
            ConfigurationError: a duration is negative or cannot be read; names the argument.
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

        The function sees the rows of one epoch, and epochs may begin anywhere. So a function that
        looks at several rows at once (`groupBy`, `dropDuplicates`, `limit`, windows, sorts, a join
        of the stream with itself) is refused when the job starts: there are stages for that.

        Args:
            function: called once when the job starts, on empty rows, and once in each epoch.
            name: by default "transform_1" and so on.
            per_epoch: allow several rows at once: the output may then differ from run to run.

        Raises:
            PipelineError: the name is taken; at the job's start, several rows are looked at.

        Example:
            >>> rows.transform(lambda df: df.withColumn("hour", F.hour("at")))  # doctest: +SKIP
        """
        name = name or self._pipeline._fresh("transform")
        return self._append(TransformNode(name, (self._node,), function, per_epoch=per_epoch))

    def filter(self, condition: str | Column, *, name: str | None = None) -> Stage:
        """Keeps the rows for which `condition` is true.

        Args:
            condition: a SQL expression ("delay > 15"), or a Column.
            name: by default "filter_1" and so on.
        """
        name = name or self._pipeline._fresh("filter")
        return self.transform(lambda frame: frame.where(condition), name=name)

    def select(self, *columns: str | Column, name: str | None = None) -> Stage:
        """Replaces the columns of the stream.

        The event-time column has to be among them where a later stage needs event time.

        Args:
            columns: names, SQL expressions ("price * 2 as twice") or Columns.
            name: by default "select_1" and so on.
        """
        name = name or self._pipeline._fresh("select")

        def project(frame: DataFrame, *more: str) -> DataFrame:
            from pyspark.sql import functions

            selected = [functions.expr(c) if isinstance(c, str) else c for c in columns]
            return frame.select(*selected, *more)

        return self._append(TransformNode(name, (self._node,), project, is_projection=True))

    def merge(self, *others: Stage, name: str | None = None) -> Stage:
        """Unites this stream and `others`, column by name; the watermark is the least of theirs.

        Raises:
            PipelineError: the streams have different event-time columns, or are of different
                pipelines. At the job's start: they have different columns.
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

        Columns: this stream's, then the table's; where names clash the table's get `suffix`. A row
        of the table that does not fit its schema fails the job, and so does a CSV file whose header
        names other columns than the schema.

        Args:
            table: from `sources.table` or `sources.map_table`.
            on: the columns that both have and that must be equal.
            how: "left" keeps rows without a match, "inner" drops them.
            refresh: read the table anew when an epoch begins and what is known of it is older;
                by default it is read once, when an execution starts. A row is enriched by what
                the table held in the epoch that committed it: at-least-once as far as the table's
                changes go, exactly once as far as the rows do.
            name: by default "enrich_1" and so on.
            suffix: appended to the table's columns whose names the stream has, too.

        Raises:
            PipelineError: `how` is not known.
        """
        if how not in ("left", "inner"):
            raise PipelineError(
                f"how={how!r} is not a way to enrich.",
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
        """Pairs this stream's rows with `other`'s of equal keys and times at most `within` apart.

        Columns: the keys, this stream's, the other's; where names clash the other's get `suffix`.
        The result's event time is this stream's; with "right" and "outer" it has none.

        Args:
            other: a stream of the same pipeline.
            on: the columns that both have and that must be equal.
            within: how far apart in event time two rows of a pair may be; also how long rows are
                kept in state.
            name: unique in the pipeline; the state is found by it at the next start.
            how: "inner", "left", "right" or "outer"; a row without a partner comes out, with
                nulls, once the watermark has passed its last chance.
            suffix: appended to the other stream's columns whose names this stream has, too.

        Raises:
            PipelineError: a stream has no event time, `how` is not known, or the streams are of
                different pipelines.

        Example:
            >>> orders.join(payments, on="order_id", within="1 hour", name="paid")  # doctest: +SKIP
        """
        if how not in ("inner", "left", "right", "outer"):
            raise PipelineError(
                f"how={how!r} is not a way to join.",
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
        # A row of the other stream alone has no time of this stream's.
        return joined if how in ("inner", "left") else replace_time(joined, None)

    def group_by(self, *keys: str) -> KeyedStage:
        """Groups the stream by key columns: the next stage has a state for each key.

        Raises:
            PipelineError: no key, or one named twice.
        """
        if not keys:
            raise PipelineError("group_by() needs at least one key.", job=self._pipeline.name)
        _refuse_twice(self, self._node, keys)
        return KeyedStage(self, keys)

    def window(self, window: Window, *, early_results: Duration | None = None) -> WindowedStage:
        """Cuts the stream into windows over all rows; `KeyedStage.window` has them per key.

        Args:
            window: from `dagster_jet.windows`.
            early_results: as in `KeyedStage.window`.

        Raises:
            PipelineError: the stream has no event time.
        """
        return KeyedStage(self, ()).window(window, early_results=early_results)

    def rolling_aggregate(self, *, name: str, **aggregates: Aggregate) -> Stage:
        """Emits a row of totals over all rows so far in every epoch that has rows.

        As `KeyedStage.rolling_aggregate`, without keys.
        """
        return KeyedStage(self, ()).rolling_aggregate(name=name, **aggregates)

    def deduplicate(
        self, *, within: Duration, name: str, on: str | Sequence[str] | None = None
    ) -> Stage:
        """Lets the first row of each key through, and drops its duplicates within a time.

        A row is dropped if a row of its key that was let through is at most `within` away in event
        time. Rows that the watermark has passed are late.

        Args:
            within: in event time; also how long keys are kept in state.
            name: unique in the pipeline; the state is found by it at the next start.
            on: the key columns; by default all columns.

        Raises:
            PipelineError: the stream has no event time.
        """
        keys = () if on is None else _columns(on)
        _refuse_twice(self, name, keys)
        time = self._event_time(name)
        return self._append(
            DeduplicateNode(name, (self._node,), keys, to_ms(within, "within"), time)
        )

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
    ) -> Stage:
        """Calls `function(state, row)` with one state for all rows.

        Arguments and errors are those of `KeyedStage.map_stateful`, which has a state per key.
        """
        return KeyedStage(self, ()).map_stateful(
            function,
            create=create,
            output_schema=output_schema,
            name=name,
            ttl=ttl,
            on_evict=on_evict,
            on_error=on_error,
            state_format=state_format,
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
        """Gives all rows to one `dagster_jet.dag.Processor`.

        Arguments and errors are those of `KeyedStage.apply_processor`.
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
        """Sends the rows that came too late for this stage to `sink`, in the same transaction.

        Without it they are only counted. The rows are as the stage received them. After
        `apply_processor` they are the rows behind the watermark, and the processor does not get
        them any more.

        Args:
            sink: from `dagster_jet.sinks`, or a connector of your own.
            name: of the sink, unique in the pipeline.
            side: after `join`, and only there: whose late rows. Those of the other side go to a
                sink of their own, because they have other columns.

        Returns:
            This stage: the next call goes on from its results.

        Raises:
            PipelineError: the stage is not a stateful one, no row can be late for it, or `side`
                does not fit.
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
        """All its rows come straight from one source whose event time is that of their reading,
        and never goes back (in a lull the watermark may come before it)."""
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

    def write_to(self, sink: SinkDefinition, *, name: str) -> None:
        """Writes the stream to a sink. The stage may be written to several sinks.

        Args:
            sink: from `dagster_jet.sinks`, or a connector of your own.
            name: unique in the pipeline; commits are found by it at the next start.

        Raises:
            PipelineError: the name is taken.
        """
        self._pipeline._add(SinkNode(name, (self._node,), sink))

    def dead_letter_to(self, sink: SinkDefinition, *, name: str) -> Stage:
        """Sends the bad rows of this source to `sink`, in the same transaction.

        The sink's columns are source, position, reason and raw. Without a dead-letter sink a bad
        row fails the job.

        Also after `map_stateful(..., on_error="dead-letter")`, for rows that its function cannot
        take: source is then the stage, position the row's key and event time, raw the row as JSON.

        Args:
            sink: from `dagster_jet.sinks`, or a connector of your own.
            name: of the sink, unique in the pipeline.

        Returns:
            This stage: the next call goes on from its good rows.

        Raises:
            PipelineError: it is called elsewhere, or the stage's `on_error` is "fail".
        """
        node = self._pipeline._nodes[self._node]
        if isinstance(node, TimestampsNode):
            node = self._pipeline._nodes[node.upstream[0]]
        if isinstance(node, StatefulMapNode) and not node.keeps_dead_letters:
            raise PipelineError(
                "the stage keeps no dead letters: a row that it cannot take fails the job.",
                job=self._pipeline.name,
                stage=node.name,
                cure='Say map_stateful(..., on_error="dead-letter").',
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
        """Nodes are found by name: in this pipeline it may be that of something else."""
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
    """A stream grouped by key: what follows has a state of its own for each."""

    def __init__(self, stage: Stage, keys: tuple[str, ...]) -> None:
        self._stage, self._keys = stage, keys

    def window(self, window: Window, *, early_results: Duration | None = None) -> WindowedStage:
        """Cuts the stream of each key into windows.

        Args:
            window: from `dagster_jet.windows`.
            early_results: also emit what open windows hold so far, about this often in wall-clock
                time. Rows get a column `is_early`; they are not part of the guarantee's results:
                after a restart they come at other times, with other values. They go to sinks, also
                through transforms; stateful stages behind the window get final rows only.

        Raises:
            PipelineError: the stream has no event time.
        """
        self._stage._event_time(self._stage._node, "a window")
        every = None if early_results is None else to_ms(early_results, "early_results")
        return WindowedStage(self._stage, self._keys, window, every)

    def rolling_aggregate(self, *, name: str, **aggregates: Aggregate) -> Stage:
        """Emits one updated row for each key that an epoch touched, with the totals so far.

        Columns: keys, the key's newest event time (if the stream has event time), the aggregates.

        Args:
            name: unique in the pipeline; the state is found by it at the next start.
            aggregates: result column = `dagster_jet.aggregates`...

        Raises:
            PipelineError: no aggregate, or two columns of one name.

        Example:
            >>> rows.group_by("k").rolling_aggregate(name="totals", n=agg.count())  # doctest: +SKIP
        """
        stage = self._stage
        time = () if stage._time is None else (stage._time.column,)
        _check_aggregates(stage, name, (*self._keys, *time), aggregates)
        node = RollingNode(name, (stage._node,), self._keys, tuple(aggregates.items()), stage._time)
        return stage._append(node)

    def deduplicate(self, *, within: Duration, name: str) -> Stage:
        """Lets the first row of each key through; as `Stage.deduplicate` on these keys."""
        return self._stage.deduplicate(within=within, name=name, on=self._keys)

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
    ) -> Stage:
        """Calls `function(state, row)` for every row, with the state of the row's key.

        Rows of one key come in order of event time within an epoch.

        Args:
            function: called with the key's `dagster_jet.State` (`state.value`, `state.clear()`) and
                the row as a dict; returns a row, an iterable of rows, or None.
            create: makes the state of a new key.
            output_schema: the rows it returns, as DDL ("key string, n bigint").
            name: unique in the pipeline; the state is found by it at the next start.
            ttl: a state expires once the watermark is further than this past its last touch.
            on_evict: called with a state that has expired; may return rows, too.
            on_error: what becomes of a row for which `function` raises, or returns what does not
                fit `output_schema`. "fail": the job fails, and names it. "dead-letter": it goes to
                `dead_letter_to`, which has to follow; the key's state stays as it was before that
                row. Then `function` may be called twice with a row: it must not do things outside.
            state_format: how states are saved. "plain": they are plain values, such as numbers,
                text, times, lists, tuples, dicts and sets of them (docs/operators.md); anything
                else fails the job when it is saved first. "pickle": anything that can be pickled.
                Whoever may write to a member of the store can then run code on the executors.

        Raises:
            PipelineError: an option is not known or contradicts another; a `ttl` without event
                time. While the job runs: the function failed, or a state cannot be saved.

        Example:
            >>> def add(state, row):
            ...     state.value = (state.value or 0) + row["delay"]
            ...     return {"origin": row["origin"], "total": state.value}
        """
        stage = self._stage
        if on_error not in get_args(OnError):
            raise PipelineError(
                f"on_error={on_error!r} is not known.",
                job=stage._pipeline.name,
                stage=name,
                cure='Use "fail" or "dead-letter".',
            )
        if on_evict is not None and ttl is None:
            raise PipelineError(
                "on_evict would never be called: no state is forgotten without a time to live.",
                job=stage._pipeline.name,
                stage=name,
                cure="Give a ttl, or leave on_evict out.",
            )
        lifetime = None if ttl is None else to_ms(ttl, "ttl")
        time = stage._event_time(name) if ttl is not None else stage._time
        saved_as = _format_of(stage, name, state_format)
        node = StatefulMapNode(
            name, (stage._node,), self._keys, function, create, on_evict, lifetime, output_schema,
            time, keeps_dead_letters=on_error == "dead-letter", saved_as=saved_as,
        )  # fmt: skip
        return replace_time(stage._append(node), _kept(time, output_schema))

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
        """Gives rows to a `dagster_jet.dag.Processor` per shard; rows of one key to the same one.

        Rows of one epoch come in order of event time; rows of the same time, and rows of a stream
        without event time, in any order, and in another one when the epoch is run again.

        `try_process` is called in every epoch, and there is one every second even if nothing
        arrives.

        What the instance keeps from one epoch to the next is what it saves: its saved state is
        read and written by every epoch. For much state use `map_stateful` or the aggregates.

        One that commits in two phases makes every epoch of the job end in a snapshot, whatever the
        `snapshot_interval`, and is committed by a new instance that is restored from it; see
        docs/operators.md.

        Args:
            supplier: makes an instance, for example the class itself; it must be picklable.
            output_schema: the rows it offers, as DDL.
            name: unique in the pipeline; the state is found by it at the next start.
            in_batches: items are Arrow record batches, both ways, instead of dicts.
            output_delay: how far behind the watermark the event time of a row may be when it is
                offered. Windows and other stages behind this one wait so much longer. Who keeps
                rows back, to sort them or to wait for others, needs it: a row offered with an
                older event time is late for them, and dropped.
            state_format: how keys and values of saved entries are saved, as in `map_stateful`.

        Raises:
            PipelineError: at the start, a key of a type other than boolean, number (but decimal),
                text, binary, date or timestamp.
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
    """A keyed stream cut into windows, waiting for its aggregates."""

    def __init__(
        self, stage: Stage, keys: tuple[str, ...], window: Window, early_results_ms: int | None
    ) -> None:
        self._stage, self._keys, self._window = stage, keys, window
        self._early_results_ms = early_results_ms

    def aggregate(self, *, name: str, **aggregates: Aggregate) -> Stage:
        """Emits one row per key and window: keys, window_start, window_end, then the aggregates.

        The result's event time is the last millisecond of its window, `window_end` less one: so
        windows over it, say days over hours, hold what they should.

        Args:
            name: unique in the pipeline; the state is found by it at the next start.
            aggregates: result column = `dagster_jet.aggregates`...

        Raises:
            PipelineError: no aggregate, or two columns of one name.

        Example:
            >>> hourly = late.group_by("origin").window(windows.tumbling("1 hour")).aggregate(
            ...     n=agg.count(), worst=agg.max("delay"), name="hourly_delays"
            ... )  # doctest: +SKIP
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


def _format_of(stage: Stage, name: str, state_format: str) -> StateFormat:
    try:
        return StateFormat(state_format)
    except ValueError:
        raise PipelineError(
            f"state_format={state_format!r} is not known.",
            job=stage._pipeline.name,
            stage=name,
            cure='Use "plain" or "pickle".',
        ) from None


def replace_time(stage: Stage, time: EventTime | None) -> Stage:
    """Return the same point of the pipeline, read with another event time."""
    return Stage(stage._pipeline, stage._node, time)


def _columns(on: str | Sequence[str]) -> tuple[str, ...]:
    return (on,) if isinstance(on, str) else tuple(on)


def _refuse_twice(stage: Stage, name: str, columns: Sequence[str]) -> None:
    """Refuse two columns of one name: one of them would be lost without a word."""
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
            "there has to be at least one aggregate.",
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
    """The event time, if the output still has its column."""
    columns = dict(split_ddl(output_schema))
    return time if time is not None and time.column in columns else None


__all__ = ["KeyedStage", "Pipeline", "Stage", "WindowedStage"]
