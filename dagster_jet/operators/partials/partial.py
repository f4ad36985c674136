"""Partial values: computed per group by the JVM, then merged in Arrow.

A partial is made in two ways that must agree: by an SQL expression in Spark, and by `lift` +
`gather` without a JVM (between stages of one task, tests). Then `admit` is called once and
`combine` any number of times, in any order and grouping.
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
    """Row numbers of each group. Groups are numbered from 0."""

    rows: np.ndarray
    """Row numbers, group by group; inside a group in the order of the rows."""
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
"""Merges the values of a group: an Arrow hash aggregate ("sum", "min", "max"), or a function of a
column and its groups that returns one value per group."""


class Partial(ABC):
    """One partial column. Subclasses are frozen dataclasses: equal ones are computed once."""

    grows: ClassVar[bool] = False
    """True if its size grows with the rows, or is up to a user's function."""

    @abstractmethod
    def column_name(self, result: str) -> str:
        """Name of its column in input and state. `result` is the output that needs it.

        The name says what the column holds. If the aggregates of a stage change, the schemas
        differ, so state is never misread.
        """

    @abstractmethod
    def sql(self, time: str) -> str:
        """Spark SQL aggregate expression. `time` is the SQL of the event time: a timestamp, or a
        bigint of ms."""

    @abstractmethod
    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        """Without a JVM: one value per raw row, from which `gather` makes the result of `sql`."""

    @property
    def gather(self) -> Merger:
        """Merges the lifted values of a group into its partial."""
        return self.combine

    @property
    @abstractmethod
    def combine(self) -> Merger:
        """Merges the partials of a group. Associative, independent of order."""

    def state_type(self, arrived: pa.DataType) -> pa.DataType:
        """Type of the partial in state, given the type with which it arrives."""
        return arrived

    def admit(self, arrived: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
        """Converts arrived partials to the form of the state, if that differs."""
        return arrived


def sql_text(text: str) -> str:
    """`text` as a Spark SQL literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Returns the values as one array."""
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


def nullable(kind: pa.DataType) -> pa.DataType:
    """The type with nulls allowed in all fields of structs: Arrow does not cast a null struct whose
    fields must not be null."""
    if not pa.types.is_struct(kind):
        return kind
    return pa.struct([f.with_type(nullable(f.type)).with_nullable(True) for f in kind])


def take_groups(lists: pa.Array, groups: Groups) -> tuple[pa.Array, np.ndarray]:
    """Concatenates list values by group: (elements, their starts per group). Null is empty."""
    taken = lists.take(pa.array(groups.rows))
    lengths = taken.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.concatenate(([0], np.cumsum(lengths)))
    return taken.flatten(), ends[groups.starts]


def as_list(values: pa.Array, starts: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Lists of type `kind`; list i is `values[starts[i]:starts[i + 1]]`."""
    offsets = pa.array(starts.astype(np.int32))
    return pa.ListArray.from_arrays(offsets, values, type=kind)
