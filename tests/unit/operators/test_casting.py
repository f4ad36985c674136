"""Null structs: what Arrow refuses in their fields does not hinder a cast or a Parquet file."""

from __future__ import annotations

import io
import random
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet.operators.rows.casting import cast_column, cast_rows, writable

MOMENTS = pa.struct([pa.field("n", pa.int64(), nullable=False), ("mean", pa.float64())])
SCHEMA = pa.schema([pa.field("m", MOMENTS), ("k", pa.int64())])
PLAIN: dict[pa.DataType, tuple[Any, ...]] = {
    pa.int32(): (0, 7),
    pa.string(): ("", "text"),
    pa.bool_(): (True, False),
    pa.decimal128(10, 2): (Decimal("1.50"), Decimal("0.00")),
    pa.timestamp("us", "UTC"): (datetime(2026, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)),
}


def of_spark(values: list[Any], type: pa.DataType) -> pa.Array:
    """Values as Spark writes them: the fields of a null struct are null."""
    if not pa.types.is_struct(type):
        return pa.array(values, type)
    fields = [
        of_spark([None if value is None else value[field.name] for value in values], field.type)
        for field in type
    ]
    valid = pa.array([None if value is None else 1 for value in values], pa.int8()).buffers()[0]
    return pa.Array.from_buffers(type, len(values), [valid], children=fields)


@pytest.mark.parametrize(("place", "n", "mean"), [(0, 1, 0.5), (2, 3, 1.5)])
def test_a_slice_beside_null_structs(place: int, n: int, mean: float) -> None:
    moments = of_spark([{"n": 1, "mean": 0.5}, None, {"n": 3, "mean": 1.5}], MOMENTS)
    rows = pa.table({"m": moments, "k": pa.array([1, 2, 3], pa.int32())}).slice(place, 1)
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
    with pytest.raises(pa.ArrowInvalid, match="field 'n' of type int64 has nulls"):
        cast_column(pa.array([{"n": 1}, {"n": None}]), pa.struct([MOMENTS.field("n")]))


@pytest.mark.parametrize("seed", range(200))
def test_any_nesting(seed: int) -> None:
    drawn = random.Random(seed)
    loose = drawn_type(drawn)
    strict = with_strict_fields(drawn, loose)
    values = [drawn_value(drawn, strict, nullable=True) for _ in range(drawn.randint(1, 12))]
    begin, count = drawn.randint(0, len(values)), drawn.randint(0, len(values))
    expected = pa.array(values, strict).slice(begin, count).to_pylist()

    cast = cast_column(of_spark(values, loose).slice(begin, count), strict)
    assert (cast.type, cast.to_pylist()) == (strict, expected)

    written = io.BytesIO()
    rows = pa.record_batch({"s": of_spark(values, strict).slice(begin, count)})
    pq.write_table(pa.Table.from_batches([writable(rows)]), written)
    assert pq.read_table(io.BytesIO(written.getvalue())).column("s").to_pylist() == expected


def drawn_type(drawn: random.Random, depth: int = 0) -> pa.DataType:
    kind = drawn.random()
    if depth == 0 or (depth < 3 and kind < 0.35):
        fields = range(drawn.randint(1, 3))
        return pa.struct([(f"f{place}", drawn_type(drawn, depth + 1)) for place in fields])
    if depth < 3 and kind < 0.5:
        return pa.list_(drawn_type(drawn, depth + 1))
    if depth < 3 and kind < 0.6:
        return pa.map_(pa.string(), drawn_type(drawn, depth + 1))
    return drawn.choice(list(PLAIN))


def with_strict_fields(drawn: random.Random, type: pa.DataType) -> pa.DataType:
    """The same type; some of its fields are declared without nulls."""

    def field(name: str, inner: pa.DataType) -> pa.Field:
        return pa.field(name, with_strict_fields(drawn, inner), nullable=drawn.random() < 0.5)

    if pa.types.is_struct(type):
        return pa.struct([field(each.name, each.type) for each in type])
    if pa.types.is_list(type):
        return pa.list_(field("element", type.value_type))
    if pa.types.is_map(type):
        return pa.map_(type.key_type, field("value", type.item_type))
    return type


def drawn_value(drawn: random.Random, type: pa.DataType, *, nullable: bool) -> Any:
    if nullable and drawn.random() < 0.3:
        return None
    if pa.types.is_struct(type):
        return {f.name: drawn_value(drawn, f.type, nullable=f.nullable) for f in type}
    if pa.types.is_list(type):
        inner = type.value_field
        return [
            drawn_value(drawn, inner.type, nullable=inner.nullable)
            for _ in range(drawn.randint(0, 3))
        ]
    if pa.types.is_map(type):
        item = type.item_field
        return [
            (str(key), drawn_value(drawn, item.type, nullable=item.nullable))
            for key in range(drawn.randint(0, 3))
        ]
    return drawn.choice(PLAIN[type])
