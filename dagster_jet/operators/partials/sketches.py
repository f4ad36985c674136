"""Sketches: partials of bounded size for approximate results.

The bytes are those of Apache DataSketches. Spark's `hll_sketch_agg` and `kll_sketch_agg_double`
write them in the JVM and the `datasketches` package reads them here, and vice versa. Sketches are
merged one by one in Python: per (key, window) and step, not per row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from dagster_jet.core.ddl import sql_name
from dagster_jet.core.library import library
from dagster_jet.core.partition import key_hash
from dagster_jet.operators.partials.partial import Groups, Merger, Partial
from dagster_jet.operators.rows.hashes import is_hashable, key_hashes


def datasketches() -> Any:
    """Returns the package `datasketches`.

    Raises:
        MissingEnvironmentError: it is not installed.
    """
    needs = "approx_count_distinct and quantile need the package 'datasketches'"
    return library("datasketches", "dagster-jet[sketches]", needs)


@dataclass(frozen=True)
class HllSketch(Partial):
    """HyperLogLog over 64-bit hashes of values of any type; at most 2^lg_k bytes."""

    column: str
    lg_k: int

    def column_name(self, result: str) -> str:
        return f"__hll({self.column},{self.lg_k})"

    def sql(self, time: str) -> str:
        name = sql_name(self.column)
        sketch = f"hll_sketch_agg(xxhash64({name}), {self.lg_k})"
        return f"{sketch} FILTER (WHERE {name} IS NOT NULL)"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        column = rows.column(self.column)
        if is_hashable(column.type):
            hashes = key_hashes([column], rows.num_rows)
        else:  # Spark has no equal function: hash of the text
            hashes = np.array([key_hash(str(value)) for value in column.to_pylist()], np.int64)
        missing = column.combine_chunks().is_null().to_numpy(zero_copy_only=False)
        return pa.array(hashes, pa.int64(), mask=missing)

    @property
    def gather(self) -> Merger:
        return self._build

    @property
    def combine(self) -> Merger:
        return self._union

    def _build(self, values: pa.Array, groups: Groups) -> pa.Array:
        package = datasketches()

        def sketch(hashes: list[int]) -> bytes:
            made = package.hll_sketch(self.lg_k, package.tgt_hll_type.HLL_8)
            for hashed in hashes:
                made.update(hashed)
            return bytes(made.serialize_compact())

        return _per_group(sketch, values, groups)

    def _union(self, values: pa.Array, groups: Groups) -> pa.Array:
        package = datasketches()

        def union(sketches: list[bytes]) -> bytes:
            made = package.hll_union(self.lg_k)
            for sketch in sketches:
                made.update(package.hll_sketch.deserialize(sketch))
            return bytes(made.get_result(package.tgt_hll_type.HLL_8).serialize_compact())

        return _per_group(union, values, groups)

    def estimate(self, sketch: bytes) -> int:
        """Returns an estimate that does not depend on how values were split into sketches. A sketch
        fed in one go has a more exact estimate; merging it with itself discards that."""
        package = datasketches()
        union = package.hll_union(self.lg_k)
        for _ in range(2):
            union.update(package.hll_sketch.deserialize(sketch))
        return round(float(union.get_estimate()))


@dataclass(frozen=True)
class KllSketch(Partial):
    """Quantiles of a number as double. Compaction is random: results over the same rows may differ,
    within the error."""

    column: str
    k: int

    def column_name(self, result: str) -> str:
        return f"__kll({self.column},{self.k})"

    def sql(self, time: str) -> str:
        return f"kll_sketch_agg_double(cast({sql_name(self.column)} AS double), {self.k})"

    def lift(self, rows: pa.Table, times: pa.Array) -> pa.Array:
        return rows.column(self.column).cast(pa.float64(), safe=False)

    @property
    def gather(self) -> Merger:
        return self._build

    @property
    def combine(self) -> Merger:
        return self._union

    def _build(self, values: pa.Array, groups: Groups) -> pa.Array:
        package = datasketches()

        def sketch(values: list[float]) -> bytes:
            made = package.kll_doubles_sketch(self.k)
            for value in values:
                made.update(value)
            return bytes(made.serialize())

        return _per_group(sketch, values, groups)

    def _union(self, values: pa.Array, groups: Groups) -> pa.Array:
        package = datasketches()

        def union(sketches: list[bytes]) -> bytes:
            made = package.kll_doubles_sketch(self.k)
            for sketch in sketches:
                made.merge(package.kll_doubles_sketch.deserialize(sketch))
            return bytes(made.serialize())

        return _per_group(union, values, groups)

    def quantile(self, sketch: bytes, fraction: float) -> float | None:
        read = datasketches().kll_doubles_sketch.deserialize(sketch)
        return None if read.is_empty() else float(read.get_quantile(fraction, True))


def _per_group(make: Callable[[list[Any]], bytes], values: pa.Array, groups: Groups) -> pa.Array:
    items = values.take(pa.array(groups.rows)).to_pylist()
    starts = groups.starts.tolist()
    made = [
        make([item for item in items[start:end] if item is not None])
        for start, end in pairwise(starts)
    ]
    return pa.array(made, pa.binary())
