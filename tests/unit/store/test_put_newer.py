"""`ReplicatedMap.put_newer` and `keys_in`: versions only grow, on every replica by itself."""

import random
import uuid
from collections.abc import Iterator, Mapping

import pytest

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.store import MapKey, MemoryMember, PartitionTable, ReplicatedMap, create_table
from dagster_jet.store.members import Replacement

KEY = MapKey(0, "k")


@pytest.fixture
def members() -> Iterator[dict[str, MemoryMember]]:
    opened = [MemoryMember(uuid.uuid4().hex) for _ in range(3)]
    yield {member.member_id: member for member in opened}


def table_of(members: Mapping[str, MemoryMember]) -> PartitionTable:
    return create_table(members, 4, 1)


def value(version: int, text: str = "") -> bytes:
    return version.to_bytes(8, "big") + text.encode()


def copies(members: Mapping[str, MemoryMember], m: ReplicatedMap) -> list[bytes | None]:
    stored = m._stored(KEY)
    return [members[holder].get_many([stored])[0] for holder in m.table.replicas[0]]


def test_replicas_agree_whatever_the_order_of_the_writers(
    members: dict[str, MemoryMember],
) -> None:
    m = ReplicatedMap(members, table_of(members), "m")
    versions = [value(number, f"v{number}") for number in range(20)]
    order = versions[:]
    random.Random(1).shuffle(order)
    for one in order:
        m.put_newer({KEY: one})
    assert m.get(KEY) == versions[-1]
    assert len(set(copies(members, m))) == 1


def test_a_version_that_is_there_stays_as_it_is(members: dict[str, MemoryMember]) -> None:
    m = ReplicatedMap(members, table_of(members), "m")
    m.put_newer({KEY: value(1, "first")})
    m.put_newer({KEY: value(1, "again")})
    assert m.get(KEY) == value(1, "first")


def test_a_damaged_copy_is_replaced(members: dict[str, MemoryMember]) -> None:
    m = ReplicatedMap(members, table_of(members), "m")
    m.put_newer({KEY: value(9, "old")})
    backup = members[m.table.replicas[0][1]]
    backup.put_many({m._stored(KEY): b"damaged"})
    m.put_newer({KEY: value(9, "old")})
    assert len(set(copies(members, m))) == 1


@pytest.mark.parametrize(("other", "stays"), [(3, 5), (7, 7)])
def test_another_writer_between_look_and_write(
    members: dict[str, MemoryMember], other: int, stays: int
) -> None:
    """The member refuses what was looked at too early; the second look decides."""

    class Racing(MemoryMember):
        raced = False

        def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
            if not Racing.raced:
                Racing.raced = True
                rival.put_newer({KEY: value(other)})
            return super().replace_many(items)

    racing = {name: Racing(name.removeprefix("memory://")) for name in members}
    table = table_of(members)
    rival = ReplicatedMap(members, table, "m")
    m = ReplicatedMap(racing, table, "m")
    m.put_newer({KEY: value(5), MapKey(0, "untouched"): value(1)})
    assert Racing.raced
    assert m.get(KEY) == value(stays)
    assert len(set(copies(members, m))) == 1


def test_a_member_that_is_away_is_named_and_the_others_have_it(
    members: dict[str, MemoryMember],
) -> None:
    m = ReplicatedMap(members, table_of(members), "m")
    away = members[m.table.replicas[0][0]]
    away.reachable = False
    with pytest.raises(StoreUnavailableError, match=away.member_id):
        m.put_newer({KEY: value(1)})
    assert m.get(KEY) == value(1)


def test_keys_of_a_partition(members: dict[str, MemoryMember]) -> None:
    m = ReplicatedMap(members, table_of(members), "m")
    keys = [MapKey(partition, f"k/{n}") for partition in range(4) for n in range(3)]
    m.put_all(dict.fromkeys(keys, b""))
    ReplicatedMap(members, table_of(members), "mm").put_all({KEY: b""})
    assert [key for partition in range(4) for key in m.keys_in(partition)] == m.keys("") == keys
    holders = m.table.replicas[2]
    members[holders[0]].reachable = False
    assert m.keys_in(2) == keys[6:9]
    members[holders[1]].reachable = False
    with pytest.raises(StoreUnavailableError, match="partition 2"):
        m.keys_in(2)
