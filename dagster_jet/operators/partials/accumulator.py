"""User-defined aggregate: Python functions over rows, whose accumulator is the partial.

Spark collects a group's rows, the operator runs `accumulate` over them, and state holds one
accumulator per group, saved by `saved_value.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from dagster_jet.core.ddl import sql_name
from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import UserFunctionError, where_raised
from dagster_jet.operators.partials.lists import AllValues
from dagster_jet.operators.partials.partial import (
    Groups,
    Merger,
    Partial,
    sql_text,
    struct_of,
)
from dagster_jet.operators.user import saved_value


@dataclass(frozen=True)
class Accumulator(Partial):
    """Arrives as list<struct<columns>>, is kept as binary."""

    columns: tuple[str, ...]
    create: Callable[[], Any]
    accumulate: Callable[[Any, dict[str, Any]], Any]
    combine_two: Callable[[Any, Any], Any]
    state_format: StateFormat = StateFormat.PLAIN

    grows: ClassVar[bool] = True

    def column_name(self, result: str) -> str:
        # Functions have no stable name. So the result may not be renamed (docs/operators.md).
        return f"__custom({result})"

    def sql(self, time: str) -> str:
        pairs = ", ".join(f"{sql_text(name)}, {sql_name(name)}" for name in self.columns)
        return f"collect_list(named_struct({pairs}))"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        return struct_of({name: rows.column(name) for name in self.columns}, None)

    @property
    def gather(self) -> Merger:
        return AllValues("").gather

    @property
    def combine(self) -> Merger:
        return self._combine

    def state_type(self, arrived: pa.DataType) -> pa.DataType:
        return pa.binary()

    def admit(self, arrived: pa.ChunkedArray) -> pa.Array:
        return pa.array([self._accumulated(rows) for rows in arrived.to_pylist()], pa.binary())

    def _accumulated(self, rows: list[dict[str, Any]]) -> bytes:
        accumulator = guarded(self.create)
        for row in rows:
            accumulator = guarded(self.accumulate, accumulator, row)
        return self._saved(accumulator)

    def _combine(self, values: pa.Array, groups: Groups) -> pa.Array:
        saved = values.to_pylist()
        out = [
            saved[rows[0]] if len(rows) == 1 else self._merged(saved[row] for row in rows)
            for rows in np.split(groups.rows, groups.starts[1:-1])
        ]
        return pa.array(out, pa.binary())

    def _merged(self, saved: Iterable[bytes]) -> bytes:
        accumulators = [saved_value.load(one, self.state_format) for one in saved]
        return self._saved(reduce(lambda a, b: guarded(self.combine_two, a, b), accumulators))

    def _saved(self, accumulator: Any) -> bytes:
        try:
            return saved_value.save(accumulator, self.state_format)
        except Exception as error:  # objects fail to pickle in many ways
            raise UserFunctionError(
                f"custom aggregate: an accumulator of type {type(accumulator).__name__} cannot be "
                f"saved: {error}.",
                cure=self.state_format.cure,
            ) from error


def guarded(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a user's function.

    Raises:
        UserFunctionError: it raised; the message names the function.
    """
    try:
        return function(*arguments)
    except Exception as error:
        name = getattr(function, "__qualname__", repr(function))
        raise UserFunctionError(
            f"{where_raised(error)}custom aggregate: {name} raised "
            f"{type(error).__name__}: {error}.",
            cure="Correct the function; nothing of this epoch was written.",
        ) from error
