"""Base of operators over the rows of a stream. Subclasses are frozen dataclasses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from dagster_jet.operators.address import ADDRESS, check_columns
from dagster_jet.operators.operator import (
    ARRIVAL_COLUMN,
    TIME_COLUMN,
    Operator,
    newest_version,
)


class RowOperator(Operator):
    """Operator over the rows of a stream, whose results may depend on their order of arrival.

    Its state is versioned. A row of the state expires `ttl_ms` after its time.
    """

    if TYPE_CHECKING:  # fields of the subclasses

        @property
        def keys(self) -> tuple[str, ...]:
            """Columns that identify a row of the state."""

        @property
        def row_schema(self) -> pa.Schema:
            """The stream's columns, `keys` among them."""

        @property
        def ttl_ms(self) -> int | None: ...

    def __post_init__(self) -> None:
        check_columns(self, self.keys)

    @property
    def input_schemas(self) -> tuple[pa.Schema, ...]:
        return (pa.schema([*ADDRESS, pa.field(ARRIVAL_COLUMN, pa.int64()), *self.row_schema]),)

    @property
    def result_schema(self) -> pa.Schema:
        return self.row_schema

    @property
    def time_column(self) -> str:
        return TIME_COLUMN

    def merge(self, tables: Sequence[pa.Table]) -> pa.Table:
        return newest_version(tables, self.keys)

    def expired_until(self, watermark_ms: int | None) -> int | None:
        if watermark_ms is None or self.ttl_ms is None:
            return None
        return watermark_ms - self.ttl_ms - 1
