"""Chunk sets: what is written is read back, by partition, and nothing else is believed."""

import pyarrow as pa
import pytest

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.snapshot.manifest import ChunkSet, Manifest
from dagster_jet.snapshot.storage import chunks
from dagster_jet.snapshot.storage.chains import ChainReader, read_chain
from dagster_jet.snapshot.storage.chunks import (
    PARTITION_COLUMN,
    ROTATION,
    ChunkSetName,
    ChunkSetWriter,
    chunk_keys,
    filter_partitions,
    needs_base,
    superseded,
    turn,
    write_chunk_set,
)
from dagster_jet.snapshot.storage.snapshot_store import execution_of
from dagster_jet.store import MapKey, Store, StoreConfig

COUNT = 271


@pytest.fixture
def chunk_map(tmp_path):
    urls = tuple(f"file://{tmp_path}/{name}" for name in "abc")
    with Store.open(StoreConfig(urls)) as store:
        yield store.map("jobs/j/state")


def rows(values: dict[int, list[int]]) -> pa.Table:
    pairs = [(p, v) for p, vs in values.items() for v in vs]
    return pa.table(
        {
            PARTITION_COLUMN: pa.array([p for p, _ in pairs], pa.int32()),
            "v": pa.array([v for _, v in pairs], pa.int64()),
        }
    )


def write(chunk_map, snapshot_id, table, full=(), *, base=False) -> ChunkSet:
    name = ChunkSetName("stage", snapshot_id, 1, 0, "a")
    return write_chunk_set(
        chunk_map, name, table, full, sequence=snapshot_id, is_base=base, partition_count=COUNT
    )


def read(chunk_map, chain, wanted=None):
    table = read_chain(chunk_map, chain, vertex="stage", partition_count=COUNT, wanted=wanted)
    return sorted(table.column("v").to_pylist()) if table is not None else []


def test_sets_of_a_chain_may_differ_in_what_may_be_null(chunk_map):
    never = [pa.field(f.name, f.type, nullable=False) for f in rows({}).schema]
    chain = [
        write(chunk_map, 1, rows({0: [1]}), range(COUNT), base=True),
        write(chunk_map, 2, rows({0: [2]}).cast(pa.schema(never))),
        write(chunk_map, 3, rows({0: [3]})),
    ]
    assert read(chunk_map, chain) == [1, 2, 3]


def test_a_chain_is_base_plus_what_changed(chunk_map):
    chain = [
        write(chunk_map, 1, rows({0: [1, 2], 5: [3]}), range(COUNT), base=True),
        write(chunk_map, 2, rows({5: [4]})),
    ]
    assert read(chunk_map, chain) == [1, 2, 3, 4]
    assert read(chunk_map, chain, frozenset({5})) == [3, 4]


def test_a_partition_written_in_full_hides_its_older_chunks(chunk_map):
    chain = [
        write(chunk_map, 1, rows({0: [1], 5: [2]}), range(COUNT), base=True),
        write(chunk_map, 2, rows({5: [30]}), [5]),
        write(chunk_map, 3, rows({5: [4]})),
    ]
    assert read(chunk_map, chain) == [1, 4, 30]


def test_a_partition_that_became_empty_stays_empty(chunk_map):
    chain = [
        write(chunk_map, 1, rows({0: [1], 5: [2]}), range(COUNT), base=True),
        write(chunk_map, 2, rows({0: [7]}), [5]),
    ]
    assert read(chunk_map, chain) == [1, 7]


def test_rows_keep_their_order_wherever_their_copies_are_cut(chunk_map, monkeypatch):
    """One piece, pieces of some partitions, pieces smaller than a partition; input in chunks."""
    numbers = [(n * 7 % 11, n) for n in range(500)]
    parts = [
        pa.table(
            {
                PARTITION_COLUMN: pa.array([p for p, _ in some], pa.int32()),
                "v": pa.array([v if v % 5 else None for _, v in some], pa.int64()),
                "s": [None if v % 3 == 0 else "x" * (v % 17) for _, v in some],
            }
        )
        for some in (numbers[:200], numbers[200:201], numbers[201:])
    ]
    table = pa.concat_tables(parts)
    expected = table.sort_by(PARTITION_COLUMN)
    for snapshot_id, copied_bytes in enumerate((2**20, 3_000, 1)):
        monkeypatch.setattr(chunks, "_COPIED_BYTES", copied_bytes)
        chunk_set = write(chunk_map, snapshot_id, table, range(COUNT), base=True)
        assert (chunk_set.rows, chunk_set.chunks) == (500, 11)
        found = read_chain(chunk_map, [chunk_set], vertex="stage", partition_count=COUNT)
        assert found.equals(expected), "by partition, and in each in the order of the input"


def test_a_set_that_cannot_be_made_leaves_nothing(chunk_map):
    def broken():
        yield MapKey(1, "stage/half"), b"a chunk"
        raise MemoryError

    with pytest.raises(MemoryError):
        chunk_map.put_all(broken())
    assert chunk_map.keys() == []


def test_a_missing_chunk_is_named_by_partition(chunk_map):
    chain = [write(chunk_map, 1, rows({7: [1]}), base=True)]
    chunk_map.delete_all(
        [k for k in chunk_keys(chunk_map, chain[0].name, COUNT) if k.partition == 7]
    )
    with pytest.raises(SnapshotInvalidError, match=r"stage 'stage': 1 state chunks .*\[7\]"):
        read(chunk_map, chain)


def test_a_valid_value_under_the_wrong_name_is_refused(chunk_map):
    chain = [write(chunk_map, 1, rows({7: [1]}), base=True)]
    other = write(chunk_map, 2, rows({7: [2]}))
    mine = next(k for k in chunk_keys(chunk_map, chain[0].name, COUNT) if k.partition == 7)
    theirs = next(k for k in chunk_keys(chunk_map, other.name, COUNT) if k.partition == 7)
    chunk_map.put_all({mine: chunk_map.get(theirs)})
    with pytest.raises(SnapshotInvalidError, match="partition 7"):
        read(chunk_map, chain)


def test_a_missing_index_is_refused(chunk_map):
    chain = [write(chunk_map, 1, rows({7: [1]}), base=True)]
    chunk_map.delete_all(chunk_keys(chunk_map, chain[0].name, COUNT))
    with pytest.raises(SnapshotInvalidError, match=r"index .* is missing"):
        read(chunk_map, chain)


def test_rotation_bounds_a_chain_and_loses_nothing(chunk_map):
    """Three times around: the chain stays short and always reads back the whole state."""
    state: dict[int, list[int]] = {p: [p] for p in range(COUNT)}
    chain = [write(chunk_map, 0, rows(state), range(COUNT), base=True)]
    for sequence in range(1, 3 * ROTATION):
        changed = sequence % COUNT
        state[changed] = [*state[changed], 1000 + sequence]
        full = [p for p in range(COUNT) if turn(p, sequence)]
        delta = {changed: [1000 + sequence]} | {p: state[p] for p in full}
        dropped = superseded(chain, sequence)
        chain = [*chain[dropped:], write(chunk_map, sequence, rows(delta), full)]
    assert len(chain) <= ROTATION
    assert read(chunk_map, chain) == sorted(v for values in state.values() for v in values)


def test_a_base_is_due_first_and_when_history_outweighs_state():
    assert needs_base([], live_rows=0)
    small = [ChunkSet(f"s/{i}", 0, 1, 10, 100, i) for i in range(10)]
    assert not needs_base(small, live_rows=1000)
    assert needs_base(small, live_rows=5)


def test_names_say_who_wrote_a_set():
    for vertex in ("my-stage", "manifest", "a/b-9"):
        assert execution_of(str(ChunkSetName(vertex, 12, 3, 1, "77.ab12cd"))) == 3
    manifest = Manifest("j", 12, 5, 3, 1, "", COUNT, {}, {}, {}, ())
    assert execution_of(manifest.name) == 3


def test_filtering_by_partition():
    table = rows({1: [1], 2: [2], 3: [3]})
    assert filter_partitions(table, [1, 3]).column("v").to_pylist() == [1, 3]


def test_a_large_set_goes_in_several_batches_and_comes_back_in_portions(chunk_map, monkeypatch):
    monkeypatch.setattr(chunks, "BATCH_BYTES", 200)
    batches = []
    put_all = chunk_map.put_all

    def put_listed(items):
        batches.append(list(items))
        put_all(batches[-1])

    monkeypatch.setattr(chunk_map, "put_all", put_listed)
    writer = ChunkSetWriter(chunk_map, ChunkSetName("stage", 1, 1, 0, "a"), COUNT)
    writer.add(rows({p: [p] for p in range(0, 20)}))
    writer.add(rows({p: [p] for p in range(20, 40)}))
    chain = [writer.finish(range(COUNT), sequence=0, is_base=True)]
    assert len(batches) > 3
    assert all("index" not in key.name for items in batches[:-1] for key, _ in items)
    chain.append(write(chunk_map, 2, rows({3: [300, 301], 39: [390]})))
    assert (chain[0].chunks, chain[0].rows) == (40, 40)
    reader = ChainReader.open(chunk_map, chain, vertex="stage", partition_count=COUNT)
    tables = list(reader.tables(4))
    assert max(table.num_rows for table in tables) <= 4
    # Filters of many small Arrow chunks are slow.
    assert {c.num_chunks for table in tables for c in table.columns} == {1}
    values = [set(table.column(PARTITION_COLUMN).to_pylist()) for table in tables]
    assert sum(map(len, values)) == 40  # no partition is torn apart
    found = [v for table in tables for v in table.column("v").to_pylist()]
    assert sorted(found) == [*range(40), 300, 301, 390] == read(chunk_map, chain)
