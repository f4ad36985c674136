"""Means and squared deviations of one or two numbers, for variance and correlation.

Partials are merged by their means, not by sums of squares, which would lose all digits of numbers
that are close together.

Source: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
variances", 1979.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dagster_jet.core.ddl import sql_name
from dagster_jet.operators.partials.partial import Groups, Merger, Partial, one_array

_FIELDS = [
    pa.field("n", pa.int64(), nullable=False),
    *(pa.field(name, pa.float64()) for name in ("mean_x", "mean_y", "xx", "xy", "yy")),
]


@dataclass(frozen=True)
class Moments(Partial):
    """struct<n, mean_x, mean_y, xx, xy, yy>: count, means, and sums of products of the deviations
    from the means. Of one column both numbers are the same. Rows without one of them are ignored;
    without any row all but n are null."""

    x: str
    y: str

    def column_name(self, result: str) -> str:
        return f"__moments({self.x}{'' if self.x == self.y else ',' + self.y})"

    def sql(self, time: str) -> str:
        x, y = (f"cast({sql_name(column)} AS double)" for column in (self.x, self.y))
        both = f"FILTER (WHERE {x} IS NOT NULL AND {y} IS NOT NULL)"
        n = f"count(1) {both}"

        def products(a: str, b: str) -> str:
            return f"covar_pop({a}, {b}) {both} * {n}"

        fields = {
            "n": n,
            "mean_x": f"avg({x}) {both}",
            "mean_y": f"avg({y}) {both}",
            "xx": products(x, x),
            "xy": products(x, y),
            "yy": products(y, y),
        }
        named = ", ".join(f"'{name}', {sql}" for name, sql in fields.items())
        return f"named_struct({named})"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        x, y = (one_array(rows.column(c)).cast(pa.float64(), safe=False) for c in (self.x, self.y))
        missing = pc.or_(x.is_null(), y.is_null())
        nothing = pc.if_else(missing, pa.scalar(None, pa.float64()), 0.0)
        counts = pc.if_else(missing, 0, 1).cast(pa.int64())
        means = (pc.if_else(missing, pa.scalar(None, pa.float64()), mean) for mean in (x, y))
        return _partial(counts, *means, nothing, nothing, nothing)

    @property
    def combine(self) -> Merger:
        return _merged


def numbers_of(partials: pa.Array) -> tuple[np.ndarray, ...]:
    """The fields as arrays; 0 instead of null."""
    fields = (one_array(partials).field(place) for place in range(6))
    return tuple(pc.fill_null(field, 0).to_numpy(zero_copy_only=False) for field in fields)


def _merged(values: pa.Array, groups: Groups) -> pa.Array:
    n, mean_x, mean_y, xx, xy, yy = numbers_of(values.take(pa.array(groups.rows)))
    group = groups.numbers
    total = np.bincount(group, n, groups.count)
    # Deviations from one of the means: equal means stay exactly equal.
    first = np.full(groups.count, len(n) - 1)
    np.minimum.at(first, group[n > 0], np.flatnonzero(n > 0))
    from_x, from_y = mean_x - mean_x[first][group], mean_y - mean_y[first][group]
    some = np.maximum(total, 1)
    shift_x = np.bincount(group, n * from_x, groups.count) / some
    shift_y = np.bincount(group, n * from_y, groups.count) / some
    off_x, off_y = from_x - shift_x[group], from_y - shift_y[group]
    own = (
        np.bincount(group, products + n * a * b, groups.count)
        for products, a, b in ((xx, off_x, off_x), (xy, off_x, off_y), (yy, off_y, off_y))
    )
    means = (mean_x[first] + shift_x, mean_y[first] + shift_y)
    nothing = total == 0
    floats = (pa.array(field, pa.float64(), mask=nothing) for field in (*means, *own))
    return _partial(pa.array(total.astype(np.int64)), *floats)


def _partial(*fields: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays(fields, fields=_FIELDS)
