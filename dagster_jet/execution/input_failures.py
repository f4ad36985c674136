"""Finds out whether its input caused a failed epoch, and which row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster_jet.contract import SourceReader
from dagster_jet.errors import BadRowError, JetError, ResultError
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.graph import Graph, TimestampsNode
from dagster_jet.spark.planning.operator_plan import event_time_ms

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from dagster_jet.spark.runtime import SparkRuntime

_CLOCKS_END_MS = 2**53
"""Event times beyond this (the year 287,396) are refused. Spark's timestamps end 7,000 years later.
"""


def cause_in_input(
    error: JetError, splits: Mapping[str, Any], readers: Mapping[str, SourceReader]
) -> JetError:
    """Returns the source's own error if its input is gone or has changed; Spark's error rarely says
    so."""
    for name, split in splits.items():
        try:
            readers[name].check_input(split)
        except JetError as cause:
            cause.__cause__ = error
            return cause
    return error


def with_position(
    error: JetError,
    splits: Mapping[str, Any],
    graph: Graph,
    runtime: SparkRuntime,
) -> JetError:
    """Adds the position of the bad row to the error, if a source can find it."""
    if type(error) not in _IS_AT_FAULT or error.position is not None:
        return error
    session, readers = runtime.session, runtime.readers
    for name, split in splits.items() if isinstance(error, BadRowError) else ():
        position = readers[name].locate_bad_row(session, split)
        if position is not None:
            return BadRowError(
                "the row does not fit the source's schema.",
                job=runtime.job,
                stage=name,
                position=position,
                cure="Correct the input, or send bad rows to a sink with dead_letter_to().",
            )
    for node in graph:
        if not isinstance(node, TimestampsNode) or node.timestamps.of_ingestion:
            continue
        (name,) = node.upstream  # rows made by a transform are not searched
        reader = readers.get(name)
        if name in splits and reader is not None:
            is_meant = partial(_IS_AT_FAULT[type(error)], EventTime(node.timestamps.column))
            position = reader.locate_row(session, splits[name], is_meant)
            if position is not None:
                return type(error)(
                    error.message,
                    job=runtime.job,
                    stage=error.stage or name,
                    position=position,
                    cure=error.cure,
                )
    return error


def _has_no_usable_time(time: EventTime, rows: DataFrame) -> Column:
    return event_time_ms(rows, time).isNull() | _is_beyond_all_clocks(time, rows)


def _is_beyond_all_clocks(time: EventTime, rows: DataFrame) -> Column:
    """Tests for times to which windows, time-outs and lags cannot be added without overflow."""
    time_ms = event_time_ms(rows, time)
    return (time_ms > _CLOCKS_END_MS) | (time_ms < -_CLOCKS_END_MS)


_IS_AT_FAULT = {BadRowError: _has_no_usable_time, ResultError: _is_beyond_all_clocks}
