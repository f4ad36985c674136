"""Columns of a stage's rows, and their column lineage."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ColumnOrigin:
    """A source column of another column.

    Attributes:
        stage: the name of a source or a stateful stage, or of an enrichment with a table.
        column: the column's name in that stage's rows.
    """

    stage: str
    column: str


@dataclass(frozen=True)
class StageColumn:
    """One column of a source, a stateful stage or a sink.

    Attributes:
        name: the column's name.
        type: Spark's DDL type.
        nullable: whether it may be null.
        origins: its columns in the nearest stages upstream; sorted. None for a source's column.
    """

    name: str
    type: str
    nullable: bool = True
    origins: tuple[ColumnOrigin, ...] = ()
