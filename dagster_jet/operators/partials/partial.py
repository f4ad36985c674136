"""What a partial value is: computed per group by the JVM, merged in Arrow for as long as it lives.

A partial has two makers that must agree: an SQL expression for Spark, and `lift` + `gather` for
everything without a JVM (the local runtime, tests). From there on both live the same life:
`admit` once, `combine` any number of times, in any order and grouping.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Groups:
    """Which rows belong together. Groups are numbered from 0."""

    rows: np.ndarray
    """Row numbers, group after group, in the rows' own order inside a group."""
    starts: np.ndarray
    """Group i is `rows[starts[i]:starts[i + 1]]`."""

    @property
    def count(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def numbers(self) -> np.ndarray:
        """The group number of every entry of `rows`."""
        return np.repeat(np.arange(self.count), np.diff(self.starts))


Merger = str | Callable[[pa.Array, Groups], pa.Array]
"""How the values of a group become one: an Arrow hash aggregate ("sum", "min", "max"), or a
function of a column and its groups that returns one value per group."""


class Partial(ABC):
    """One partial column. Subclasses are frozen dataclasses: equal ones are computed once."""

    grows: ClassVar[bool] = False
    """With the rows behind it, or as a user's function likes."""

    @abstractmethod
    def column_name(self, result: str) -> str:
        """Its column in input and state. `result` is the output that asked for it.

        The name says what is inside, so that state is never read as something else after the
        aggregates of a stage were changed: the schemas differ.
        """

    @abstractmethod
    def sql(self, time: str) -> str:
        """The Spark SQL aggregate expression. `time` is that of the event time, a bigint of ms."""

    @abstractmethod
    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        """Without a JVM: one value per raw row, from which `gather` makes what `sql` would."""

    @property
    def gather(self) -> Merger:
        """From the lifted values of a group to its partial."""
        return self.combine

    @property
    @abstractmethod
    def combine(self) -> Merger:
        """From the partials of a group to one. Associative, order-free."""

    def state_type(self, arrived: pa.DataType) -> pa.DataType:
        """The type a partial has in state, given the one it arrives with."""
        return arrived

    def admit(self, arrived: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
        """From the form the JVM can compute to the form that is kept, where they differ."""
        return arrived


def sql_name(column: str) -> str:
    """`column` quoted for Spark SQL; dots reach into structs, as in `F.col`."""
    if "`" in column:
        return column
    return ".".join(f"`{part}`" for part in column.split("."))


def sql_text(text: str) -> str:
    """`text` as a Spark SQL literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """The same values in one piece."""
    if isinstance(column, pa.Array):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def struct_of(fields: dict[str, pa.ChunkedArray | pa.Array], missing: pa.Array | None) -> pa.Array:
    """struct<fields>, null where `missing`."""
    arrays = [one_array(column) for column in fields.values()]
    types = [pa.field(name, a.type) for name, a in zip(fields, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=types, mask=missing)


def take_groups(lists: pa.Array, groups: Groups) -> tuple[pa.Array, np.ndarray]:
    """Concatenates list values group by group: (elements, their starts per group). Null: empty."""
    taken = lists.take(pa.array(groups.rows))
    lengths = taken.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate(([0], np.cumsum(lengths)))
    return taken.flatten(), ends[groups.starts]


def as_list(values: pa.Array, starts: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Lists of type `kind`; list i is `values[starts[i]:starts[i + 1]]`."""
    offsets = pa.array(starts.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, type=kind)
