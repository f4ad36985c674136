"""Chunk sets: what is written is read back, by partition, and nothing else is believed."""

import pyarrow as pa
import pytest

from dagster_jet.errors import SnapshotInvalidError
from dagster_jet.snapshot.chunks import (
    PARTITION_COLUMN,
    ROTATION,
    ChunkSetName,
    chunk_keys,
    filter_partitions,
    needs_base,
    read_chain,
    superseded,
    turn,
    write_chunk_set,
)
from dagster_jet.snapshot.manifest import ChunkSet
from dagster_jet.store import Store, StoreConfig

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
    name = ChunkSetName("my-stage", 12, 3, 1, "77.ab12cd")
    assert ChunkSetName.parse(str(name)) == name


def test_filtering_by_partition():
    table = rows({1: [1], 2: [2], 3: [3]})
    assert filter_partitions(table, [1, 3]).column("v").to_pylist() == [1, 3]
