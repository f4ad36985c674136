"""Several tables are sent as one, and a select keeps some of their columns."""

from __future__ import annotations

import pyarrow as pa

from dagster_jet.spark.tasks.column_choice import ColumnChoice
from dagster_jet.spark.tasks.tagged_rows import TAG_COLUMN, TaggedRows

PEOPLE = pa.schema([pa.field("p", pa.int32(), nullable=False), ("name", pa.string())])
SIZES = pa.schema([("p", pa.int32()), ("name", pa.int64()), ("x", pa.float64())])


def test_one_kind_is_not_changed() -> None:
    tagged = TaggedRows((PEOPLE,), PEOPLE.field("p"))
    rows = pa.table({"p": [1], "name": ["a"], "behind": [7]})
    assert tagged.schema is PEOPLE
    assert tagged.rows_of(rows, 0).column_names == ["p", "name"]


def test_kinds_share_columns_by_type() -> None:
    tagged = TaggedRows((PEOPLE, SIZES), pa.field("p", pa.int32()))
    assert tagged.schema.names == ["p", TAG_COLUMN, "__0", "__1", "__2"]
    names = pa.schema(
        [("p", pa.int32()), ("x", pa.float64()), ("a", pa.string()), ("b", pa.string())]
    )
    wide = TaggedRows((PEOPLE, SIZES, names, PEOPLE), pa.field("p", pa.int32()))
    assert wide.types == (pa.string(), pa.int64(), pa.float64(), pa.string())
    assert [wide.columns(tag) for tag in range(4)] == [(0,), (1, 2), (2, 0, 3), (0,)]


def test_the_column_of_all_kinds_is_there_once() -> None:
    tagged = TaggedRows((PEOPLE, SIZES), pa.field("p", pa.int32()))
    rows = pa.Table.from_pylist(
        [
            {"p": 1, TAG_COLUMN: 0, "__0": "a"},
            {"p": 2, TAG_COLUMN: 1, "__1": 5, "__2": 0.5},
            {"p": 3, TAG_COLUMN: 0, "__0": None},
        ],
        tagged.schema,
    )
    assert tagged.rows_of(rows, 0).to_pylist() == [{"p": 1, "name": "a"}, {"p": 3, "name": None}]
    sizes = tagged.rows_of(rows.append_column("behind", pa.array([0, 0, 0])), 1)
    assert sizes.schema == SIZES
    assert sizes.to_pylist() == [{"p": 2, "name": 5, "x": 0.5}]


def test_rows_go_in_and_come_out_as_they_were() -> None:
    tagged = TaggedRows((PEOPLE, SIZES))
    people = pa.record_batch([pa.array([1, 2], pa.int32()), ["a", None]], schema=PEOPLE)
    sizes = pa.record_batch([pa.array([3], pa.int32()), [4], [0.5]], schema=SIZES)
    both = pa.Table.from_batches([tagged.batch(0, people), tagged.batch(1, sizes)])
    assert both.schema == tagged.schema
    assert tagged.rows_of(both, 0).to_pylist() == people.to_pylist()
    assert tagged.rows_of(both, 1).to_pylist() == sizes.to_pylist()


def test_choices_follow_each_other() -> None:
    first = ColumnChoice(("c", "a", "a"), ("x", "y", "z"))
    both = first.then(ColumnChoice(("z", "x"), ("one", "two")))
    assert both == ColumnChoice(("a", "c"), ("one", "two"))
    rows = pa.record_batch([[1], [2], [3]], names=["a", "b", "c"])
    assert both.batch(rows).to_pylist() == [{"one": 1, "two": 3}]
    assert both.table(pa.Table.from_batches([rows])).to_pylist() == [{"one": 1, "two": 3}]
