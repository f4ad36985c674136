"""From merged partials to the result a user sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Column: TypeAlias = pa.ChunkedArray | pa.Array


class Finish(Protocol):
    """A frozen, picklable function of an aggregate's merged partial columns."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType: ...
    def __call__(self, partials: Sequence[Column]) -> Column: ...


@dataclass(frozen=True)
class Itself:
    """The partial is the result."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return partials[0]

    def __call__(self, partials: Sequence[Column]) -> Column:
        return partials[0]


@dataclass(frozen=True)
class Counted:
    """Nothing counted is 0, not null."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.int64()

    def __call__(self, partials: Sequence[Column]) -> Column:
        return pc.fill_null(partials[0], 0)


@dataclass(frozen=True)
class Quotient:
    """Sum by count, as double; null where nothing was counted."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.float64()

    def __call__(self, partials: Sequence[Column]) -> Column:
        total, count = partials
        counted = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)
        return pc.divide(total.cast(pa.float64()), counted.cast(pa.float64()))
