"""Rows that have the types of a schema already are not cast."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dagster_jet.operators.rows.casting import cast_rows

MOMENTS = pa.struct([pa.field("n", pa.int64(), nullable=False), ("mean", pa.float64())])
SCHEMA = pa.schema([pa.field("m", MOMENTS), ("k", pa.int64())])


def of_two_stages() -> pa.Table:
    """The second row is another stage's, so it has no moments."""
    n, mean = pa.array([1, None, 3], pa.int64()), pa.array([0.5, None, 1.5])
    valid = pa.array([1, None, 3], pa.int64()).buffers()[0]
    moments = pa.Array.from_buffers(MOMENTS, 3, [valid], children=[n, mean])
    return pa.table({"m": moments, "k": pa.array([1, 2, 3], pa.int32())})


@pytest.mark.parametrize(("place", "n", "mean"), [(0, 1, 0.5), (2, 3, 1.5)])
def test_a_slice_beside_rows_of_other_stages(place: int, n: int, mean: float) -> None:
    rows = of_two_stages().slice(place, 1)
    with pytest.raises(pa.ArrowInvalid, match="cannot be viewed"):  # else nothing needs `casting`
        rows.column("m").cast(MOMENTS)
    cast = cast_rows(rows, SCHEMA)
    assert cast.schema == SCHEMA
    assert cast.to_pylist() == [{"m": {"n": n, "mean": mean}, "k": n}]


def test_what_a_cast_refuses_is_refused() -> None:
    rows = pa.table({"k": pa.array([1, None])})
    never_null = pa.schema([pa.field("k", pa.int64(), nullable=False)])
    with pytest.raises(ValueError, match="'k' has nulls"):
        cast_rows(rows, never_null)
    with pytest.raises(ValueError, match="expected"):
        cast_rows(rows.append_column("more", pa.array([1, 2])), pa.schema([("k", pa.int64())]))
