"""Bases of operators over partial aggregates. Subclasses are frozen dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.operators.address import check_columns
from dagster_jet.operators.aggregates.aggregation import Aggregation
from dagster_jet.operators.operator import TIME_COLUMN, VERSION_COLUMN, Operator, newest_version


class PartialsOperator(Operator):
    """Operator over partial aggregates of a first stage."""

    if TYPE_CHECKING:  # fields of the subclasses

        @property
        def input_schema(self) -> pa.Schema: ...

        @property
        def keys(self) -> tuple[str, ...]: ...

        @property
        def aggregation(self) -> Aggregation: ...

    def __post_init__(self) -> None:
        check_columns(self, self.keys)

    @property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        return (self.input_schema,)

    @cached_property
    def state_schema(self) -> pa.Schema:
        return self.aggregation.state_schema(self.input_schema)


class VersionedPartials(PartialsOperator):
    """The same with a versioned state, whose rows expire by the time of their newest event."""

    @cached_property
    def state_schema(self) -> pa.Schema:
        return super().state_schema.append(pa.field(VERSION_COLUMN, pa.int64()))

    @property
    def time_column(self) -> str:
        return TIME_COLUMN

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Keeps the newest rows of every key."""
        return newest_version(tables, self.keys)
