"""The map: every write on all replicas, every read from a good copy or a clear refusal."""

import uuid
from collections.abc import Iterator

import pytest

from dagster_jet.errors import (
    ConfigurationError,
    StoreCorruptedError,
    StoreUnavailableError,
)
from dagster_jet.store import MapKey, MemoryMember, ReplicatedMap, create_table, seal

Members = dict[str, MemoryMember]


@pytest.fixture
def members() -> Members:
    made = [MemoryMember(uuid.uuid4().hex) for _ in range(3)]
    return {member.member_id: member for member in made}


@pytest.fixture
def numbers(members: Members) -> ReplicatedMap:
    return ReplicatedMap(members, create_table(members, 12, 1), "map/test/numbers")


def replicas(of: ReplicatedMap, members: Members, key: MapKey) -> list[MemoryMember]:
    return [members[member_id] for member_id in of.table.replicas[key.partition]]


def stored(of: ReplicatedMap, key: MapKey) -> bytes:
    return f"{of.prefix}/{key.partition:04d}/{key.name}".encode()


def damage(of: ReplicatedMap, member: MemoryMember, key: MapKey) -> None:
    (copy,) = member.get_many([stored(of, key)])
    assert copy is not None
    changed = bytearray(copy)
    changed[-1] ^= 1
    member.put_many({stored(of, key): bytes(changed)})


def test_each_pair_is_copied_before_the_next_is_made(
    numbers: ReplicatedMap, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large batch is in memory only once, for all replicas, however it is made."""
    sealed: list[bytes] = []

    def counting(payload: memoryview) -> bytes:
        sealed.append(bytes(payload))
        return seal(payload)

    monkeypatch.setattr("dagster_jet.store.values.sealing.seal", counting)

    def made() -> Iterator[tuple[MapKey, memoryview]]:
        for partition in range(12):
            assert len(sealed) == partition
            yield MapKey(partition, "k"), memoryview(b"%d" % partition)

    numbers.put_all(made())
    assert sealed == [b"%d" % partition for partition in range(12)]
    assert numbers.get_all([MapKey(p, "k") for p in range(12)]) == sealed


def test_what_is_put_is_found_on_every_replica(numbers: ReplicatedMap, members: Members) -> None:
    items = {numbers.key(f"key {i}"): b"%d" % i for i in range(100)}
    numbers.put_all(items)
    assert numbers.get_all([*items, numbers.key("none")]) == [*items.values(), None]
    assert numbers.keys() == sorted(items)
    for key in items:
        holding = [m for m in members.values() if m.get_many([stored(numbers, key)]) != [None]]
        assert {member.member_id for member in holding} == set(
            numbers.table.replicas[key.partition]
        )


def test_keys_may_be_listed_by_their_beginning(numbers: ReplicatedMap) -> None:
    names = ["a/1", "a/2", "b/1", "ä/1"]
    numbers.put_all({numbers.key(name): b"" for name in names})
    assert {key.name for key in numbers.keys("a/")} == {"a/1", "a/2"}
    assert {key.name for key in numbers.keys()} == set(names)


def test_an_empty_value_is_a_value(numbers: ReplicatedMap) -> None:
    numbers.put_all({MapKey(0, "empty"): b""})
    assert numbers.get(MapKey(0, "empty")) == b""


def test_deleted_keys_are_gone(numbers: ReplicatedMap) -> None:
    key, other = MapKey(0, "a"), MapKey(7, "b")
    numbers.put_all({key: b"1", other: b"2"})
    for _ in range(2):
        numbers.delete_all([key])
    assert numbers.get_all([key, other]) == [None, b"2"]
    assert numbers.keys() == [other]


def test_a_key_may_be_asked_for_twice(numbers: ReplicatedMap) -> None:
    numbers.put_all({MapKey(0, "a"): b"1"})
    assert numbers.get_all([MapKey(0, "a"), MapKey(0, "a")]) == [b"1", b"1"]


@pytest.mark.parametrize("which", [0, 1])
def test_a_lost_member_is_read_around(numbers: ReplicatedMap, members: Members, which: int) -> None:
    key = MapKey(5, "a")
    numbers.put_all({key: b"1"})
    replicas(numbers, members, key)[which].reachable = False
    assert numbers.get(key) == b"1"
    assert numbers.stats.fallback_reads == (1 if which == 0 else 0)
    assert key in numbers.keys()


def test_a_write_that_misses_a_replica_fails_and_names_it(
    numbers: ReplicatedMap, members: Members
) -> None:
    gone = replicas(numbers, members, MapKey(0, ""))[1]
    gone.reachable = False
    touched = sum(gone.member_id in held for held in numbers.table.replicas)
    with pytest.raises(StoreUnavailableError, match=f"{touched} partitions.*{gone.member_id}"):
        numbers.put_all({MapKey(p, "a"): b"" for p in range(12)})
    with pytest.raises(StoreUnavailableError, match=gone.member_id):
        numbers.delete_all([MapKey(0, "a")])


@pytest.mark.parametrize("which", [0, 1])
def test_a_missing_copy_is_written_again(
    numbers: ReplicatedMap, members: Members, which: int
) -> None:
    key = MapKey(3, "a")
    numbers.put_all({key: b"1"})
    member = replicas(numbers, members, key)[which]
    member.forget()
    assert numbers.get(key) == b"1"
    if which == 0:
        assert numbers.stats.repaired == 1
        assert member.get_many([stored(numbers, key)]) != [None]


def test_a_flipped_byte_is_repaired_and_counted(numbers: ReplicatedMap, members: Members) -> None:
    keys = [MapKey(p, "a") for p in range(12)]
    numbers.put_all(dict.fromkeys(keys, b"value"))
    primary = replicas(numbers, members, keys[0])[0]
    for key in keys:
        if replicas(numbers, members, key)[0] is primary:
            damage(numbers, primary, key)
    assert numbers.get_all(keys) == [b"value"] * 12
    assert (numbers.stats.repaired, numbers.stats.fallback_reads) == (4, 4)
    assert numbers.get_all(keys) == [b"value"] * 12
    assert (numbers.stats.repaired, numbers.stats.fallback_reads) == (4, 4)


def test_a_repair_does_not_overwrite_a_newer_value(
    numbers: ReplicatedMap, members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = MapKey(0, "a")
    numbers.put_all({key: b"old"})
    primary = replicas(numbers, members, key)[0]
    damage(numbers, primary, key)
    repair = primary.replace_many

    def newer_value_first(items: dict) -> int:
        numbers.put_all({key: b"new"})
        return repair(items)

    monkeypatch.setattr(primary, "replace_many", newer_value_first)
    assert numbers.get(key) == b"old"
    assert numbers.get(key) == b"new"
    assert numbers.stats.repaired == 0


def test_when_no_copy_is_good_the_read_is_refused(numbers: ReplicatedMap, members: Members) -> None:
    key = MapKey(9, "the key")
    numbers.put_all({key: b"1"})
    for member in replicas(numbers, members, key):
        damage(numbers, member, key)
    with pytest.raises(StoreCorruptedError, match=r"'the key' \(partition 9\).*damaged") as refused:
        numbers.get(key)
    for member in replicas(numbers, members, key):
        assert member.member_id in str(refused.value)


def test_a_damaged_copy_beside_a_missing_one_is_not_an_absent_key(
    numbers: ReplicatedMap, members: Members
) -> None:
    key = MapKey(9, "a")
    numbers.put_all({key: b"1"})
    first, second = replicas(numbers, members, key)
    damage(numbers, first, key)
    second.forget()
    with pytest.raises(StoreCorruptedError):
        numbers.get(key)


@pytest.mark.parametrize("which", [0, 1])
def test_one_replica_is_enough_to_say_that_a_key_does_not_exist(
    numbers: ReplicatedMap, members: Members, which: int
) -> None:
    key = MapKey(2, "never put")
    first, second = replicas(numbers, members, key)
    away = (first, second)[which]
    away.reachable = False
    assert numbers.get(key) is None
    # What something decided names exists: there, one replica that knows nothing has lost it.
    with pytest.raises(StoreUnavailableError, match=away.member_id):
        numbers.get(key, every_replica=True)
    first.reachable = second.reachable = False
    with pytest.raises(StoreUnavailableError, match=second.member_id):
        numbers.get(key)


def test_keys_are_not_listed_when_a_partition_cannot_be_seen(
    numbers: ReplicatedMap, members: Members
) -> None:
    for member in replicas(numbers, members, MapKey(0, "")):
        member.reachable = False
    with pytest.raises(StoreUnavailableError, match="cannot be listed"):
        numbers.keys()


def test_keys_that_do_not_fit_are_refused(numbers: ReplicatedMap) -> None:
    with pytest.raises(ConfigurationError, match="partition 12"):
        numbers.put_all({MapKey(12, "a"): b""})
    with pytest.raises(ConfigurationError, match="511"):
        numbers.put_all({MapKey(0, "a" * 600): b""})
