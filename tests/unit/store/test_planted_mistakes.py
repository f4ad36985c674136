"""Mistakes planted in how values are stored and snapshots counted; a check names each of them.

Those of the register are in tests/simulation/quorum/mutants.py, those of placement in
test_placement.py, those of the coordinator in tests/simulation/test_mutants.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.errors import SnapshotInvalidError, StoreError
from dagster_jet.snapshot.storage import chains, chunks
from dagster_jet.snapshot.storage.chunks import PARTITION_COLUMN, ChunkSetName
from dagster_jet.store import MapKey, MemoryMember, ReplicatedMap, Store
from dagster_jet.store.map import routing
from dagster_jet.store.values import envelope

Check = Callable[[Any], None]
Plant = Callable[[pytest.MonkeyPatch], None]
KEY = MapKey.of("k", 12)


# --- what must hold -------------------------------------------------------------------------------


def a_changed_copy_is_not_believed(places: Any) -> None:
    with Store.open(places.config()) as store:
        store.map("m").put_all({KEY: b"a value"})
        name = store.table.primary(KEY.partition).removeprefix("memory://")
        member = MemoryMember(name)
        (stored,) = member.list_keys(b"map/")
        (copy,) = member.get_many([stored])
        member.put_many({stored: copy.replace(b"a value", b"b value")})
        assert store.map("m").get(KEY) == b"a value", "a copy with a wrong checksum was believed"


def every_replica_has_a_copy(places: Any) -> None:
    with Store.open(places.config()) as store:
        store.map("m").put_all({KEY: b"a value"})
        held = sum(len(places.member(name).list_keys(b"map/")) for name in "abc")
        assert held == 2, f"{held} of 2 replicas were written"


def a_backup_is_read_when_the_primary_is_away(places: Any) -> None:
    with Store.open(places.config()) as store:
        store.map("m").put_all({KEY: b"a value"})
        places.gone.add(store.table.primary(KEY.partition))
        assert store.map("m").get_all([KEY]) == [b"a value"], "the backup was not read"


def the_newest_version_stays(places: Any) -> None:
    with Store.open(places.config()) as store:
        for version in (2, 1):
            store.map("m").put_newer({KEY: version.to_bytes(8, "big")})
        assert store.map("m").get(KEY) == (2).to_bytes(8, "big"), "an older version came later"


def a_deleted_key_stays_deleted(places: Any) -> None:
    with Store.open(places.config()) as store:
        values = store.map("m")
        values.put_all({KEY: b"a value"})
        values.delete_all([KEY])
        held = sum(len(places.member(name).list_keys(b"map/")) for name in "abc")
        assert held == 0 and values.get(KEY) is None, "a copy of a deleted key is left"


def a_snapshot_that_lacks_a_chunk_is_refused(places: Any) -> None:
    with Store.open(places.config()) as store:
        written = chunk_set(store)
        lost = MapKey(3, written.name)
        store.map("state").delete_all([lost])
        with pytest.raises(SnapshotInvalidError, match=r"partitions \[3\]"):
            rows_of(store, written)


def a_snapshot_is_counted_as_it_was_written(places: Any) -> None:
    with Store.open(places.config()) as store:
        written = chunk_set(store)
        assert rows_of(store, written) == [10, 20, 30]
        with pytest.raises(SnapshotInvalidError, match="the manifest"):
            rows_of(store, replace(written, rows=written.rows + 1))


def a_chunk_of_another_snapshot_is_refused(places: Any) -> None:
    with Store.open(places.config()) as store:
        first, second = chunk_set(store, 1), chunk_set(store, 2, [11, 21, 31])
        other = store.map("state").get(MapKey(3, first.name))
        assert other is not None
        store.map("state").put_all({MapKey(3, second.name): other})
        with pytest.raises(SnapshotInvalidError, match="not the one that was acknowledged"):
            rows_of(store, second)


def chunk_set(store: Store, snapshot: int = 1, values: Sequence[int] = (10, 20, 30)) -> Any:
    table = pa.table({PARTITION_COLUMN: pa.array([1, 2, 3], pa.int32()), "v": list(values)})
    name = ChunkSetName("stage", snapshot, 1, 0, "a")
    return chunks.write_chunk_set(
        store.map("state"), name, table, range(12), sequence=0, is_base=True, partition_count=12
    )


def rows_of(store: Store, written: Any) -> list[int]:
    table = chains.read_chain(store.map("state"), [written], vertex="stage", partition_count=12)
    return [] if table is None else sorted(table.column("v").to_pylist())


# --- what is planted ------------------------------------------------------------------------------


def skip_the_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(envelope, "_checksum", lambda head, payload: 0)


def write_the_primary_only(patch: pytest.MonkeyPatch) -> None:
    rounds = routing.ReplicaRouting.put_rounds
    patch.setattr(
        routing.ReplicaRouting,
        "put_rounds",
        lambda self, p: tuple(r[:1] for r in rounds(self, p)[:1]),
    )


def read_the_primary_only(patch: pytest.MonkeyPatch) -> None:
    holders = routing.ReplicaRouting.holders
    patch.setattr(routing.ReplicaRouting, "holders", lambda self, p: holders(self, p)[:1])


def forget_the_version(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReplicatedMap, "_version_of", lambda self, key, copy: -1)


def delete_the_primary_only(patch: pytest.MonkeyPatch) -> None:
    rounds = routing.ReplicaRouting.delete_rounds
    patch.setattr(
        routing.ReplicaRouting, "delete_rounds", lambda self, p: (rounds(self, p)[0][:1],)
    )


def take_a_missing_chunk_for_an_empty_one(patch: pytest.MonkeyPatch) -> None:
    get_all = ReplicatedMap.get_all

    def lenient(self: ReplicatedMap, keys: Sequence[MapKey], **how: bool) -> list[bytes | None]:
        found = get_all(self, keys, **how)
        there = [value for value in found if value is not None]
        return [there[0] if value is None else value for value in found]

    patch.setattr(ReplicatedMap, "get_all", lenient)
    skip_the_chunks_checksum(patch)


def skip_the_chunks_checksum(patch: pytest.MonkeyPatch) -> None:
    for module in (chunks, chains):
        patch.setattr(module, "checksum", lambda data: 0)


def count_wrongly(patch: pytest.MonkeyPatch) -> None:
    read_index = chains.read_index

    def uncounted(written: Any, data: bytes | None, vertex: str) -> Mapping[str, Any]:
        return read_index(replace(written, rows=3, chunks=3), data, vertex)

    patch.setattr(chains, "read_index", uncounted)


MISTAKES: dict[Plant, Check] = {
    skip_the_checksum: a_changed_copy_is_not_believed,
    write_the_primary_only: every_replica_has_a_copy,
    read_the_primary_only: a_backup_is_read_when_the_primary_is_away,
    forget_the_version: the_newest_version_stays,
    delete_the_primary_only: a_deleted_key_stays_deleted,
    take_a_missing_chunk_for_an_empty_one: a_snapshot_that_lacks_a_chunk_is_refused,
    count_wrongly: a_snapshot_is_counted_as_it_was_written,
    skip_the_chunks_checksum: a_chunk_of_another_snapshot_is_refused,
}


@pytest.mark.parametrize("check", MISTAKES.values(), ids=lambda check: check.__name__)
def test_it_holds(places: Any, check: Check) -> None:
    check(places)


@pytest.mark.parametrize("plant", MISTAKES, ids=lambda plant: plant.__name__)
def test_a_planted_mistake_is_seen(
    places: Any, monkeypatch: pytest.MonkeyPatch, plant: Plant
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception, StoreError)) as seen:
        MISTAKES[plant](places)
    print(f"{plant.__name__}: {seen.value}")
