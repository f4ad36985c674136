"""The columns of a stage's rows, and which columns of which stage each is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ColumnOrigin:
    """A column that another is made of.

    Attributes:
        stage: the name of a source or a stateful stage, or of the enrichment that has the table.
        column: in its rows.
    """

    stage: str
    column: str


@dataclass(frozen=True)
class StageColumn:
    """One column of a source, a stateful stage or a sink.

    Attributes:
        name: the column's.
        type: as Spark writes it in DDL.
        nullable: whether it may be null.
        origins: what it is made of, as of the nearest stages upstream; sorted. None for a source's.
    """

    name: str
    type: str
    nullable: bool = True
    origins: tuple[ColumnOrigin, ...] = ()
