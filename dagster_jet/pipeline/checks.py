"""Checks of names and columns that several kinds of stages share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from dagster_jet.core.ddl import split_ddl
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.aggregates import Aggregate
from dagster_jet.pipeline.event_time import EventTime
from dagster_jet.pipeline.output_type import ALL
from dagster_jet.pipeline.point import Point

if TYPE_CHECKING:
    from pyspark.sql import Column

_MOMENT = re.compile(
    r"""\b(?:date|timestamp(?:_ltz|_ntz)?)\s*["']\s*(?:now|today|tomorrow|yesterday)\b""",
    re.IGNORECASE,
)


def columns_of(on: str | Sequence[str]) -> tuple[str, ...]:
    return (on,) if isinstance(on, str) else tuple(on)


def refuse_twice(stage: Point, name: str, columns: Sequence[str]) -> None:
    """Refuse duplicate column names; one of the columns would be lost silently."""
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise PipelineError(
            f"two columns would be named {', '.join(map(repr, twice))}.",
            job=stage._builder.job,
            stage=name,
            cure="Name each key once and each aggregate differently (n=agg.count()); a key whose "
            "name the stage uses itself is renamed by a select() before it.",
        )


def names_a_moment(text: str | Column) -> bool:
    """Returns whether a text has `timestamp'now'` or the like; Spark evaluates it while parsing."""
    return isinstance(text, str) and _MOMENT.search(text) is not None


def refuse_moments(stage: Point, name: str, texts: Iterable[str]) -> None:
    """Refuse `date'today'` and the like in a stage with state, which parses its texts once."""
    for text in filter(names_a_moment, texts):
        raise PipelineError(
            f"{text!r} would always mean the moment at which the job has started.",
            job=stage._builder.job,
            stage=name,
            cure="Use current_timestamp() or current_date(): each epoch evaluates them.",
        )


def check_aggregates(
    stage: Point, name: str, others: Sequence[str], aggregates: Mapping[str, Aggregate]
) -> None:
    """
    Args:
        others: the result's columns besides the aggregates.
    """
    if not aggregates:
        raise PipelineError(
            "aggregate() needs at least one aggregate.",
            job=stage._builder.job,
            stage=name,
            cure="Name aggregates as keywords: n=agg.count().",
        )
    refuse_twice(stage, name, [*others, *aggregates])
    for column, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise PipelineError(
                f"{column}={aggregate!r} is not an aggregate.",
                job=stage._builder.job,
                stage=name,
                cure="Use dagster_jet.aggregates, for example agg.count().",
            )
        for text in aggregate.inputs:
            if not isinstance(text, str):
                raise stage._refusal(
                    f"{column}: an aggregate takes a column or an SQL expression, not {text!r}.",
                    stage=name,
                )
        refuse_moments(stage, name, aggregate.inputs)


def state_format_of(stage: Point, name: str, state_format: str) -> StateFormat:
    try:
        return StateFormat(state_format)
    except ValueError:
        raise PipelineError(
            f"state_format={state_format!r} is unknown.",
            job=stage._builder.job,
            stage=name,
            cure='Use "plain" or "pickle".',
        ) from None


def time_kept(time: EventTime | None, output_schema: str) -> EventTime | None:
    """Returns the event time if the output still has its column."""
    columns = dict(split_ddl(output_schema))
    return time if time is not None and columns.keys() & {time.column, ALL} else None
