"""Ends of a stream: sinks of its rows, and of rows that are late or bad."""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar, get_args

import dagster_jet
from dagster_jet.contract import Sink
from dagster_jet.pipeline.graph import SinkNode
from dagster_jet.pipeline.point import Point
from dagster_jet.pipeline.stateful import (
    CountWindowNode,
    ProcessorNode,
    StatefulMapInBatchesNode,
    StatefulMapNode,
    StatefulNode,
)
from dagster_jet.pipeline.written import Written

_S = TypeVar("_S", bound="WithSinks")
_L = TypeVar("_L", bound="LateRows")
_J = TypeVar("_J", bound="JoinedLateRows")
_D = TypeVar("_D", bound="DeadLetters")
_Side: TypeAlias = Literal["left", "right"]
_MAYBE_UNTIMED = (CountWindowNode, ProcessorNode, StatefulMapNode, StatefulMapInBatchesNode)


class WithSinks(Point):
    """A stage whose rows can be written."""

    def write_to(self, sink: Sink, *, name: str) -> Written:
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
        self._builder.add(SinkNode(name, (self._node,), sink))
        return Written(name, self._builder.add)

    def peek(self: _S, num_rows: int = 10) -> _S:
        """Prints the first rows of each epoch on the console of the job's process, for a look.

        The rows go on as before. It is a sink of its own, `sinks.console`, named after the stage:
        saved state does not change when it comes or goes. So each epoch's rows are printed when the
        epoch is committed, after a crash perhaps again, and count in `JobResult.rows_out`.

        Args:
            num_rows: largest number of rows shown per epoch; the title has the total.

        Returns:
            This stage; the next call continues from its rows.

        Raises:
            ConfigurationError: `num_rows` is below 0.

        Example:
            >>> late = rows.filter("delay > 15", name="late").peek()
        """
        sink = dagster_jet.sinks.console(num_rows=num_rows)  # loaded here: sinks know pipelines
        name = f"{self._node}_peek"
        if name in self._builder.nodes:
            name = self._builder.fresh(name)
        self._builder.add(SinkNode(name, (self._node,), sink))
        return self


class _Late(Point):
    """Base class of the two kinds of stages with late rows."""

    def _write_late(self, sink: Sink, name: str, late_input: int) -> None:
        node = self._worker
        assert isinstance(node, StatefulNode)
        reason = ""
        if isinstance(node, _MAYBE_UNTIMED) and node.time is None:
            reason = "the stream has no event time"
        elif isinstance(node, CountWindowNode) and not node.in_event_order:
            reason = "it counts rows in order of arrival"
        elif self._is_read_just_now(node.upstream):
            reason = "with_ingestion_timestamps() gives rows the time of their reading"
        if reason:
            raise self._refusal(
                f"no row can be late for the stage: {reason}.",
                "Leave late_to() out; rows are late by the event times of with_timestamps().",
            )
        self._builder.add(SinkNode(name, (node.name,), sink, of_late=True, late_input=late_input))


class LateRows(_Late):
    """A stage for which rows can be late."""

    def late_to(self: _L, sink: Sink, *, name: str) -> _L:
        """Writes the late rows of this stage to `sink`, in the same transaction as its results.

        Without it late rows are only counted. They are written as the stage received them. After
        `apply_processor` these are the rows behind the watermark; the processor does not get them.

        Args:
            sink: from `dagster_jet.sinks`, or a connector of your own.
            name: name of the sink, unique in the pipeline.

        Returns:
            This stage; the next call continues from its results.

        Raises:
            PipelineError: the name is taken, or no row can be late: the stream has no event time,
                or the time of reading.

        Example:
            >>> hourly = hourly.late_to(sinks.files("/out/late", format="json"), name="late_rows")
        """
        self._write_late(sink, name, 0)
        return self


class JoinedLateRows(_Late):
    """A join, each side of which has late rows of its own."""

    def late_to(self: _J, sink: Sink, *, name: str, side: _Side) -> _J:
        """Writes the late rows of one side of the join, in the same transaction as its results.

        Without it late rows are only counted. They are written as the stage received them.

        Args:
            sink: from `dagster_jet.sinks`, or a connector of your own.
            name: name of the sink, unique in the pipeline.
            side: the other side needs a separate sink, because its columns differ.

        Returns:
            This stage; the next call continues from its results.

        Raises:
            PipelineError: the name is taken, `side` is not valid, or no row can be late.

        Example:
            >>> kept = joined.late_to(sinks.console(), name="late_orders", side="left")
        """
        sides = get_args(_Side)
        if side not in sides:
            raise self._refusal(
                f"late_to(side={side!r}): expected {' or '.join(map(repr, sides))}.",
                "Each side of a join has late rows of its own.",
            )
        self._write_late(sink, name, sides.index(side))
        return self


class DeadLetters(Point):
    """A stage with bad rows: a source, or a function with `on_error="dead-letter"`."""

    def dead_letter_to(self: _D, sink: Sink, *, name: str) -> _D:
        """Writes the bad rows of this stage to `sink`, in the same transaction as other rows.

        The columns are source, position, reason and raw. Without such a sink a bad row of a source
        fails the job.

        After `map_stateful(..., on_error="dead-letter")` these are the rows that fail in the
        function: source is the stage, position the row's key and event time, raw the row as JSON.

        Args:
            sink: from `dagster_jet.sinks`, or a connector of your own.
            name: name of the sink, unique in the pipeline.

        Returns:
            This stage; the next call continues from its good rows.

        Raises:
            PipelineError: the name is taken.

        Example:
            >>> rows = source.dead_letter_to(sinks.files("/out/bad", format="json"), name="bad")
        """
        self._builder.add(SinkNode(name, (self._worker.name,), sink, of_dead_letters=True))
        return self
