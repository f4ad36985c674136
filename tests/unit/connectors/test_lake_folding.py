"""Changes folded to one per key, against a dictionary that applies them one by one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_jet.connectors.lake.folding import IS_GONE, Folded, folded_changes, folded_rows

KEY = st.tuples(st.integers(0, 3), st.sampled_from(["a", "b"]))
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.int64())])
CHANGES = pa.schema(
    [
        *SCHEMA,
        ("op", pa.string()),
        ("_lsn", pa.int64()),
        ("_row", pa.int64()),
        ("_old", pa.struct([("id", pa.int64()), ("part", pa.string())])),
        ("_unchanged", pa.list_(pa.string())),
    ]
)
Table = dict[Any, int]


def applied(folded: Folded, table: Table) -> Table:
    after = {} if folded.begins_empty else dict(table)
    seen = set()
    for row in folded.rows.to_pylist():
        key = row["id"], row["part"]
        assert key not in seen
        seen.add(key)
        if row[IS_GONE]:
            after.pop(key, None)
        else:
            after[key] = row["value"]
    return after


@given(st.lists(st.lists(st.tuples(KEY, st.integers(0, 99)), max_size=6), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_last_row_of_a_key_counts(epochs: list[list[tuple[Any, int]]]) -> None:
    tables, expected = [], {}
    for epoch in epochs:
        expected.update(dict(epoch))
        rows = [{"id": key[0], "part": key[1], "value": value} for key, value in epoch]
        tables.append(pa.Table.from_pylist(rows, SCHEMA))
    assert applied(folded_rows(tables, ["id", "part"]), {}) == expected


@given(
    st.dictionaries(KEY, st.integers(0, 99)),
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from(["insert", "update", "update", "delete", "delete", "truncate"]),
                KEY,
                KEY,
            ),
            max_size=8,
        ),
        min_size=1,
        max_size=3,
    ),
)
@settings(max_examples=100, deadline=None)
def test_changes_are_applied_in_their_order(table: Table, epochs: Any) -> None:
    expected, tables, number = dict(table), [], 0
    for epoch in epochs:
        rows = []
        for op, old, new in epoch:
            number += 1
            row: dict[str, Any] = {"op": op, "_lsn": 1, "_row": number}
            if op in ("insert", "update"):
                row |= {"id": new[0], "part": new[1], "value": 100 + number}
            if op in ("delete", "update"):
                row["_old"] = {"id": old[0], "part": old[1]}
                expected.pop(old, None)
            if op in ("insert", "update"):
                expected[new] = 100 + number
            if op == "truncate":
                expected.clear()
            rows.append(row)
        tables.append(pa.Table.from_pylist(rows, CHANGES))
    assert applied(folded_changes(tables, ["id", "part"]), table) == expected
