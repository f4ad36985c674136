"""Versioned states: the newest version of a key counts, whatever its hash and its nulls."""

import pyarrow as pa

from dagster_jet.operators.operator import newest_version

SCHEMA = pa.schema(
    [("__hash", pa.int64()), ("__version", pa.int64()), ("a", pa.string()), ("b", pa.string())]
)


def rows(*rows):
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA
    )


def test_keys_with_nulls_and_one_hash_do_not_swallow_each_other():
    # Spark's hash skips nulls: these two keys always collide.
    old = rows((7, 1, "x", None), (7, 1, None, "x"))
    new = rows((7, 2, None, "x"), (7, 2, None, "x"))
    assert newest_version([new, old], ["a", "b"]).to_pylist() == [
        *new.to_pylist(),
        *rows((7, 1, "x", None)).to_pylist(),
    ]


def test_all_rows_of_the_newest_version_stay():
    first, second = rows((1, 4, "x", "x"), (1, 4, "x", "x")), rows((1, 3, "x", "x"))
    assert newest_version([second, first], ["a", "b"]).equals(first)


def test_nothing_stays_nothing():
    assert newest_version([rows(), rows()], ["a"]).num_rows == 0
