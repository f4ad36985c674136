"""Chunks behind each other in one memory, each with room for its envelope."""

from __future__ import annotations

import pyarrow as pa
import pytest

from dagster_jet.snapshot.shelf import Shelf
from dagster_jet.store import OVERHEAD_BYTES, seal
from dagster_jet.store.envelope import seal_in_place

ROWS = pa.record_batch(
    {
        "__partition": pa.array([1, 2, 3], pa.int32()),
        "k": ["a", None, "ccc"],
        "values": [[1], [], None],
        "blob": [b"x", b"", None],
    }
)


@pytest.mark.parametrize(
    "rows", [ROWS, ROWS.slice(1, 1), ROWS.slice(2), ROWS.slice(3)], ids=["all", "1", "last", "none"]
)
def test_a_chunk_is_what_the_rows_serialise_to(rows):
    shelf = Shelf(ROWS.schema, 10_000)
    for _ in range(2):
        assert shelf.has_room(rows)
        assert bytes(shelf.put(rows)) == rows.serialize().to_pybytes()


def test_room_is_counted_to_the_byte_and_given_back():
    needed = OVERHEAD_BYTES + len(ROWS.serialize())
    assert not Shelf(ROWS.schema, needed - 1).has_room(ROWS)
    shelf = Shelf(ROWS.schema, needed)
    for _ in range(2):
        assert shelf.has_room(ROWS)
        first = bytes(shelf.put(ROWS))
        assert not shelf.has_room(ROWS.slice(0, 0))
        shelf.clear()
    assert first == ROWS.serialize().to_pybytes()


def test_sealing_in_place_is_sealing():
    shelf = Shelf(ROWS.schema, 10_000)
    before = bytes(shelf.put(ROWS))
    chunk = shelf.put(ROWS.slice(1))
    after = shelf.put(ROWS)
    assert bytes(seal_in_place(chunk)) == seal(bytes(chunk))
    assert before == bytes(after) == ROWS.serialize().to_pybytes(), "its neighbours are as before"
