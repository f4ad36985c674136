"""An epoch has failed: was it its input, and which row?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_jet.connectors.contract import RereadsInput, SourceReader
from dagster_jet.errors import BadRowError, JetError
from dagster_jet.execution.context import ExecutionContext


def cause_in_input(
    error: JetError, splits: Mapping[str, Any], readers: Mapping[str, SourceReader]
) -> JetError:
    """Input that is gone or has changed shows in many ways, none of which says so."""
    for name, split in splits.items():
        reader = readers[name]
        if isinstance(reader, RereadsInput):
            try:
                reader.check_input(split)
            except JetError as cause:
                cause.__cause__ = error
                return cause
    return error


def with_position(
    error: JetError, splits: Mapping[str, Any], context: ExecutionContext
) -> JetError:
    """Names the bad row, where a source can find it."""
    if not isinstance(error, BadRowError) or error.position is not None:
        return error
    for name, split in splits.items():
        position = context.readers[name].locate_bad_row(context.runtime.session, split)
        if position is not None:
            return BadRowError(
                "the row does not fit the source's schema.",
                job=context.job,
                stage=name,
                position=position,
                cure="Correct the input, or send bad rows to a sink with dead_letter_to().",
            )
    return error
