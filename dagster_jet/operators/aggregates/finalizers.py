"""Finalizers: compute result columns from merged partials."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import PipelineError, UserFunctionError
from dagster_jet.operators.partials.accumulator import guarded
from dagster_jet.operators.partials.moments import numbers_of
from dagster_jet.operators.partials.ordering import order_in_groups
from dagster_jet.operators.partials.partial import as_list, one_array
from dagster_jet.operators.partials.sketches import HllSketch, KllSketch
from dagster_jet.operators.user import saved_value
from dagster_jet.operators.user.batch_calls import name_of
from dagster_jet.operators.user.python_rows import strict_array

Column: TypeAlias = pa.ChunkedArray | pa.Array


class Finish(Protocol):
    """Frozen, picklable function from an aggregate's merged partial columns to its result."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType: ...
    def __call__(self, partials: Sequence[Column]) -> Column: ...


@dataclass(frozen=True)
class Itself:
    """Returns the partial unchanged."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return partials[0]

    def __call__(self, partials: Sequence[Column]) -> Column:
        return partials[0]


@dataclass(frozen=True)
class Counted:
    """Count; null becomes 0."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.int64()

    def __call__(self, partials: Sequence[Column]) -> Column:
        return pc.fill_null(partials[0], 0)


@dataclass(frozen=True)
class Quotient:
    """Sum divided by count, as double; null if the count is 0."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.float64()

    def __call__(self, partials: Sequence[Column]) -> Column:
        total, count = partials
        counted = pc.if_else(pc.equal(count, 0), pa.scalar(None, pa.int64()), count)
        # `safe` would refuse integers from 2^53 on that a double does not represent exactly.
        numbers = (part.cast(pa.float64(), safe=False) for part in (total, counted))
        return pc.divide(*numbers)


@dataclass(frozen=True)
class ValueOf:
    """Value field of struct<time, value>."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return partials[0].field("value").type

    def __call__(self, partials: Sequence[Column]) -> Column:
        return pc.struct_field(partials[0], "value")


@dataclass(frozen=True)
class Length:
    """Length of a list; null becomes 0."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.int64()

    def __call__(self, partials: Sequence[Column]) -> Column:
        return pc.fill_null(pc.list_value_length(partials[0]).cast(pa.int64()), 0)


@dataclass(frozen=True)
class ListOfValues:
    """Values of list<struct<..., value>>; sorted by time and value if `by_time`."""

    by_time: bool

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.list_(pa.field("element", partials[0].value_type.field("value").type))

    def __call__(self, partials: Sequence[Column]) -> Column:
        lists = one_array(partials[0])
        numbers, starts = _owners(lists)
        elements = lists.flatten()
        values = pc.struct_field(elements, "value")
        if self.by_time:
            order = order_in_groups(numbers, [pc.struct_field(elements, "time"), values])
            values = values.take(pa.array(order))
        return as_list(values, starts, self.result_type([lists.type]))


@dataclass(frozen=True)
class InOrder:
    """Elements of a list, sorted; null becomes an empty list."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.list_(pa.field("element", partials[0].value_type))

    def __call__(self, partials: Sequence[Column]) -> Column:
        lists = one_array(partials[0])
        numbers, starts = _owners(lists)
        values = lists.flatten()
        values = values.take(pa.array(order_in_groups(numbers, [values])))
        return as_list(values, starts, self.result_type([lists.type]))


@dataclass(frozen=True)
class MostFrequent:
    """Value of list<struct<value, count>> with the highest count; the smallest of several."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return partials[0].value_type.field("value").type

    def __call__(self, partials: Sequence[Column]) -> Column:
        lists = one_array(partials[0])
        numbers, starts = _owners(lists)
        elements = lists.flatten()
        rarity = pc.negate(pc.struct_field(elements, "count"))
        order = order_in_groups(numbers, [rarity, pc.struct_field(elements, "value")])
        some = starts[:-1] < starts[1:]
        best = np.full(len(lists), -1)
        best[some] = order[starts[:-1][some]]
        return pc.struct_field(elements, "value").take(pa.array(best, mask=~some))


@dataclass(frozen=True)
class Truth(Itself):
    """The partial itself, which is boolean."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        if not pa.types.is_boolean(partials[0]):
            raise PipelineError(
                f"bool_and and bool_or take a boolean, not {partials[0]}.",
                cure='Write a condition, for example bool_or("delay > 15").',
            )
        return partials[0]


@dataclass(frozen=True)
class Spread:
    """Sample variance of moments, or its square root."""

    is_root: bool

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.float64()

    def __call__(self, partials: Sequence[Column]) -> Column:
        n, _, _, xx, _, _ = numbers_of(partials[0])
        variance = xx / np.maximum(n - 1, 1)
        return pa.array(np.sqrt(variance) if self.is_root else variance, mask=n < 2)


@dataclass(frozen=True)
class Correlated:
    """Correlation of moments."""

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.float64()

    def __call__(self, partials: Sequence[Column]) -> Column:
        n, mean_x, mean_y, xx, xy, yy = numbers_of(partials[0])
        # Rounding leaves something of a number that is always the same.
        least = n * (4 * np.finfo(float).eps) ** 2
        undefined = (n < 2) | (xx <= least * mean_x**2) | (yy <= least * mean_y**2)
        root = np.sqrt(np.where(undefined, 1, xx)) * np.sqrt(np.where(undefined, 1, yy))
        return pa.array(np.clip(xy / root, -1, 1), mask=undefined)


@dataclass(frozen=True)
class DistinctEstimate:
    sketch: HllSketch

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.int64()

    def __call__(self, partials: Sequence[Column]) -> Column:
        return pa.array([self.sketch.estimate(b) for b in partials[0].to_pylist()], pa.int64())


@dataclass(frozen=True)
class QuantileEstimate:
    sketch: KllSketch
    fraction: float

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return pa.float64()

    def __call__(self, partials: Sequence[Column]) -> Column:
        answers = [self.sketch.quantile(b, self.fraction) for b in partials[0].to_pylist()]
        return pa.array(answers, pa.float64())


@dataclass(frozen=True)
class CustomFinish:
    """User's function of the accumulator; must return a value that fits `kind`, or None."""

    function: Callable[[Any], Any]
    kind: pa.DataType
    state_format: StateFormat = StateFormat.PLAIN

    def result_type(self, partials: Sequence[pa.DataType]) -> pa.DataType:
        return self.kind

    def __call__(self, partials: Sequence[Column]) -> Column:
        accumulators = (
            saved_value.load(saved, self.state_format) for saved in partials[0].to_pylist()
        )
        results = [guarded(self.function, accumulator) for accumulator in accumulators]
        try:
            return strict_array(results, pa.field("", self.kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise UserFunctionError(
                f"custom aggregate: {name_of(self.function)} returned a value that is not "
                f"{self.kind}: {error}.",
                cure="Return a value of result_type, or None.",
            ) from error


def _owners(lists: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The number of the list of each element, and where each list starts."""
    lengths = lists.value_lengths().fill_null(0).to_numpy(zero_copy_only=False)
    return np.repeat(np.arange(len(lists)), lengths), np.concatenate(([0], np.cumsum(lengths)))
