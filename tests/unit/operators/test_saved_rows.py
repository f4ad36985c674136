"""Saved rows as they count, and what has changed between two snapshots. That they come to what each
operator says is compared on Spark, for every kind of stage (integration/two_runtimes.py)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.operators.saved_rows import living_rows
from dagster_jet.operators.state_difference import difference

WINDOWS = {"kind": "aggregate", "keys": ["k"]}
MAPPED = {"kind": "map_stateful", "keys": ["k"]}


def windows(*rows: tuple[str, int, int, str]) -> pa.Table:
    """(key, end of the window, rows, least of s)"""
    names = ["__partition", "k", "__window_end", "__count()", "__min(s)", "__rows"]
    full = [(0, k, end, n, s, n) for k, end, n, s in rows]
    columns = list(zip(*full, strict=True)) if full else [[]] * len(names)
    types = [pa.int32(), pa.string(), pa.int64(), pa.int64(), pa.string(), pa.int64()]
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names)


def states(*rows: tuple[str, int, bytes | None]) -> pa.Table:
    """(key, version, state)"""
    full = [(0, 5, 0, k, version, state) for k, version, state in rows]
    names = ["__partition", "__hash", "__time", "k", "__version", "__state"]
    types = [pa.int32(), pa.int64(), pa.int64(), pa.string(), pa.int64(), pa.binary()]
    columns = list(zip(*full, strict=True))
    return pa.table([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names)


def rows(table: pa.Table, *names: str) -> list[tuple[object, ...]]:
    return sorted(tuple(row[name] for name in names) for row in table.to_pylist())


def test_parts_of_a_window_add_up_and_closed_ones_are_gone() -> None:
    saved = windows(("a", 10, 1, "x"), ("a", 20, 2, "z"), ("a", 20, 3, "y"), ("b", 20, 1, "w"))
    living = living_rows(saved, WINDOWS, 10)
    assert living.column_names == saved.column_names
    found = rows(living, "k", "__window_end", "__count()", "__min(s)", "__rows")
    assert found == [("a", 20, 5, "y", 5), ("b", 20, 1, "w", 1)]


def test_the_newest_version_of_a_key_counts_and_a_cleared_one_is_gone() -> None:
    saved = states(("a", 1, b"1"), ("a", 3, b"3"), ("b", 1, b"1"), ("b", 2, None))
    assert rows(living_rows(saved, MAPPED, None), "k", "__state") == [("a", b"3")]


@pytest.mark.parametrize(
    ("kind", "found"),
    [("map_stateful_in_batches", [("b", 2)]), ("join_as_of", [("a", None), ("b", 2)])],
)
def test_a_cleared_key_is_gone_from_a_state_in_event_order(
    kind: str, found: list[tuple[object, ...]]
) -> None:
    """All columns of its state are null; the version of a join may be so, too."""
    saved = states(("a", 1, b"1"), ("a", 2, None), ("b", 1, b"1")).drop_columns(["__state"])
    saved = saved.append_column("total", pa.array([1, None, 2]))
    saved = saved.append_column("__expiry", pa.array([9, 9, 9]))
    saved = saved.append_column("__arrival", pa.nulls(3, pa.int64()))
    saved = saved.append_column("__row", pa.nulls(3, pa.struct([("v", pa.int64())])))
    living = living_rows(saved, {"kind": kind, "keys": ["k"]}, None)
    assert rows(living, "k", "total") == found


def test_what_only_users_code_can_merge_stays_apart() -> None:
    saved = windows(("a", 20, 2, "z"), ("a", 20, 3, "y"))
    names = [n if n != "__min(s)" else "__custom(worst)" for n in saved.column_names]
    saved = saved.rename_columns(names)
    assert living_rows(saved, WINDOWS, None).num_rows == 2


def test_keys_that_came_went_and_changed() -> None:
    before = windows(("a", 20, 1, "x"), ("b", 20, 1, "x"), ("c", 20, 1, "x"), ("c", 30, 1, "y"))
    after = windows(("b", 20, 1, "x"), ("c", 20, 4, "x"), ("c", 30, 1, "w"), ("d", 20, 1, "x"))
    found = difference("hourly", before, after, WINDOWS)
    assert rows(found.added, "k", "__window_end", "__rows") == [("d", 20, 1)]
    assert rows(found.removed, "k", "__window_end", "__rows") == [("a", 20, 1)]
    changed = sorted(found.changed.to_pylist(), key=lambda row: row["__window_end"])
    assert [(row["k"], row["__window_end"]) for row in changed] == [("c", 20), ("c", 30)]
    assert changed[0]["before"]["__count()"] == 1 and changed[0]["after"]["__count()"] == 4
    assert changed[1]["before"]["__min(s)"] == "y" and changed[1]["after"]["__min(s)"] == "w"
    assert not found.is_empty
    assert difference("hourly", before, before, WINDOWS).is_empty


def test_a_key_that_was_written_again_and_is_the_same_has_not_changed() -> None:
    found = difference("m", states(("a", 1, b"s")), states(("a", 9, b"s")), MAPPED)
    assert found.is_empty


def test_nothing_and_nan_are_equal_to_themselves() -> None:
    def table(*values: float | None) -> pa.Table:
        keys = pa.array(range(len(values)), pa.int64())
        return pa.table({"k": keys, "__sum(x)": pa.array(values, pa.float64())})

    nan = float("nan")
    before, after = table(None, nan, 1.0, None), table(None, nan, nan, 2.0)
    found = difference("s", before, after, WINDOWS)
    assert sorted(found.changed["k"].to_pylist()) == [2, 3]


def test_lists_are_compared() -> None:
    def table(*values: list[int]) -> pa.Table:
        keys = pa.array(range(len(values)), pa.int64())
        return pa.table({"k": keys, "__list(x)": pa.array(values, pa.list_(pa.int64()))})

    found = difference("s", table([1], [2]), table([1], [2, 3]), WINDOWS)
    (changed,) = found.changed.to_pylist()
    assert changed == {"k": 1, "before": {"__list(x)": [2]}, "after": {"__list(x)": [2, 3]}}


def test_rows_without_a_key_count_as_often_as_they_are_there() -> None:
    def journal(*paths: str) -> pa.Table:
        return pa.table({"path": paths, "__partition": pa.array([0] * len(paths), pa.int32())})

    found = difference("s", journal("a", "b", "b"), journal("b", "c", "c"), {"kind": "source"})
    assert found.added.column("path").to_pylist() == ["c", "c"]
    assert sorted(found.removed.column("path").to_pylist()) == ["a", "b"]
    assert found.changed.num_rows == 0


def test_dates_that_python_does_not_have_are_compared() -> None:
    """Failed before: an OverflowError."""

    def days(name: str, *values: list[int]) -> pa.Table:
        keys = pa.array(range(len(values)), pa.int64())
        return pa.table({name: keys, "__list(d)": pa.array(values, pa.list_(pa.date32()))})

    far, farther = [10_000_000], [10_000_001]
    found = difference("s", days("k", far, far), days("k", far, farther), WINDOWS)
    assert found.changed["k"].to_pylist() == [1]
    twice = pa.table({"d": pa.array([*far, *farther, *farther], pa.date32())})
    found = difference("s", twice.slice(0, 2), twice, {"kind": "source"})
    assert found.added.equals(twice.slice(2).select(found.added.column_names))


def test_other_columns_cannot_be_compared() -> None:
    before, after = windows(("a", 20, 1, "x")), states(("a", 1, b"s"))
    with pytest.raises(SnapshotInvalidError, match="two snapshots have different columns"):
        difference("hourly", before, after, WINDOWS)
