"""Rows as dicts: one new dict per row, whatever the columns are called."""

from __future__ import annotations

import pyarrow as pa

from dagster_jet.operators.user.python_rows import row_dicts


def test_names_may_hold_anything() -> None:
    names = ["it's", '"quoted"', "a\\b\n", "class", "{value_0}", "ä"]
    table = pa.table([[number, None] for number in range(len(names))], names)
    assert list(row_dicts(table)) == [
        dict(zip(names, range(len(names)), strict=True)),
        dict.fromkeys(names),
    ]


def test_every_row_is_a_dict_of_its_own() -> None:
    first, second = row_dicts(pa.table({"a": [1, 1]}))
    first["a"] = 2
    assert second == {"a": 1}


def test_without_columns_there_is_nothing_to_hand_over() -> None:
    assert list(row_dicts(pa.table({"a": [1]}).select([]))) == []
