"""Refuses two columns of one name, and names of the engine's columns, before data flows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.core.reserved_columns import RESERVED_COLUMNS
from dagster_jet.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_distinct_columns(
    job: str, stage: str, rows: DataFrame, *, ignores_case: bool = True
) -> None:
    """
    Args:
        stage: the stage or sink that has the rows.
        ignores_case: whether names that differ in case only are equal.

    Raises:
        PipelineError: two columns have one name, or a column has a name of the engine's.
    """
    seen: dict[str, str] = {}
    for name in rows.columns:
        known_as = name.lower() if ignores_case else name
        if name.lower() in RESERVED_COLUMNS:
            raise PipelineError(
                f"the column name {name!r} is reserved for the engine.",
                job=job,
                stage=stage,
                cure="Rename the column where it is read: select('x AS y').",
            )
        if known_as in seen:
            raise PipelineError(
                f"two columns are named {name!r}."
                if seen[known_as] == name
                else f"the columns {seen[known_as]!r} and {name!r} differ in case only.",
                job=job,
                stage=stage,
                cure="Rename or leave out one of them: select('x AS y').",
            )
        seen[known_as] = name
