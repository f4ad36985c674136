"""The partition table is balanced, keeps replicas apart, and moves as few as balance allows."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dagster_jet
from dagster_jet.errors import ConfigurationError
from dagster_jet.store.map.partition_table import (
    PartitionTable,
    create_table,
    with_member_added,
    with_member_removed,
)

HISTORIES = int(os.environ.get("JET_SIMULATION_HISTORIES", "1000"))


def lost_partitions(table: PartitionTable, gone: Iterable[str]) -> tuple[int, ...]:
    """The partitions whose replicas were all on the members `gone`."""
    missing = frozenset(gone)
    return tuple(p for p, held in enumerate(table.replicas) if missing.issuperset(held))


def copies_to_make(before: PartitionTable, after: PartitionTable) -> tuple[tuple[int, str], ...]:
    """(partition, member) of every copy that a member must receive."""
    return tuple(
        (partition, member)
        for partition, held in enumerate(after.replicas)
        for member in held
        if member not in before.replicas[partition]
    )


def primaries(table: PartitionTable) -> dict[str, int]:
    held = [table.primary(p) for p in range(table.partition_count)]
    return {member: held.count(member) for member in table.members}


def backups(table: PartitionTable) -> dict[str, int]:
    held = [member for p in range(table.partition_count) for member in table.backups(p)]
    return {member: held.count(member) for member in table.members}


def assert_sound(table: PartitionTable) -> None:
    copies = 1 + min(table.backup_count, len(table.members) - 1)
    for partition, held in enumerate(table.replicas):
        assert len(held) >= copies, f"partition {partition} misses a backup"
        assert len(held) <= copies, f"partition {partition} has a backup too many"
        assert len(set(held)) == copies, f"partition {partition} is twice on one member"
        assert set(held) <= set(table.members), f"partition {partition} is on a stranger"
    for role, count in (("primaries", primaries(table)), ("backups", backups(table))):
        assert max(count.values()) - min(count.values()) <= 1, f"{role} are not balanced"


def assert_moved_little(before: PartitionTable, after: PartitionTable) -> None:
    """Who joins receives its share, and nobody else anything; what left is made again.

    Balance of both roles at once may cost a replica more. How many is not known exactly; there
    is no need for more than one per member.
    """
    if before.backup_count >= min(len(before.members), len(after.members)):
        return  # the number of replicas changes as well
    moved = copies_to_make(before, after)
    joined = set(after.members) - set(before.members)
    if joined:
        assert {member for _, member in moved} <= joined, "data moved between old members"
        shares = [before.partition_count * n / len(after.members) for n in (1, before.backup_count)]
        assert len(moved) <= sum(map(ceil, shares)), "more than its share moved to the new member"
    else:
        left = set(before.members) - set(after.members)
        lost = sum(len(left.intersection(held)) for held in before.replicas)
        assert lost <= len(moved), "a replica was not made again"
        assert len(moved) <= lost + len(after.members), "far more moved than the member had held"


def assert_promoted(before: PartitionTable, after: PartitionTable) -> None:
    """Primaries have the data, but for the few that balance has put elsewhere."""
    without = [
        partition
        for partition, held in enumerate(before.replicas)
        if set(held) & set(after.members) and after.primary(partition) not in held
    ]
    assert len(without) <= len(after.members), "primaries without the data"


@dataclass(frozen=True)
class Cast:
    """The real ones, or a mutant in the place of one of them."""

    create: Callable[[list[str], int, int], PartitionTable] = create_table
    add: Callable[[PartitionTable, str], PartitionTable] = with_member_added
    remove: Callable[[PartitionTable, str], PartitionTable] = with_member_removed


# --- the worked example of store.md: 3 members, 12 partitions, one backup ---------------------


def test_three_members_hold_four_primaries_and_four_backups_each() -> None:
    table = create_table(["m1", "m2", "m3"], 12, 1)
    assert primaries(table) == backups(table) == {"m1": 4, "m2": 4, "m3": 4}


def test_when_one_dies_its_backups_are_promoted_where_they_are() -> None:
    before = create_table(["m1", "m2", "m3"], 12, 1)
    after = with_member_removed(before, "m1")
    for partition in range(12):
        if before.primary(partition) == "m1":
            assert after.primary(partition) == before.backups(partition)[0]
        else:
            assert after.primary(partition) == before.primary(partition)
    assert len(copies_to_make(before, after)) == 8
    assert primaries(after) == backups(after) == {"m2": 6, "m3": 6}
    assert after.version == before.version + 1


def test_a_fourth_receives_one_primary_and_one_backup_from_each() -> None:
    before = create_table(["m1", "m2", "m3"], 12, 1)
    after = with_member_added(before, "m4")
    assert primaries(after) == backups(after) == dict.fromkeys(["m1", "m2", "m3", "m4"], 3)
    assert [member for _, member in copies_to_make(before, after)] == ["m4"] * 6
    given_up = [
        (role, *(set(held) - set(after.replicas[p])))
        for p, held in enumerate(before.replicas)
        for role in ["primary" if after.primary(p) == "m4" else "backup"]
        if "m4" in after.replicas[p]
    ]
    assert sorted(given_up) == [(r, m) for r in ("backup", "primary") for m in ("m1", "m2", "m3")]


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_the_default_table_moves_nothing_but_what_it_must(wanted: int) -> None:
    table = create_table([f"m{n}" for n in range(5)], 271, wanted)
    for gone, new in (("m0", "m5"), ("m3", "m0")):
        before, table = table, with_member_removed(table, gone)
        lost = sum(gone in held for held in before.replicas)
        assert len(copies_to_make(before, table)) == lost
        before, table = table, with_member_added(table, new)
        assert len(copies_to_make(before, table)) == 271 // 5 + 271 * wanted // 5


# --- properties -----------------------------------------------------------------------------

names = st.integers(1, 9).map(lambda n: [f"m{i}" for i in range(n)])
partition_counts = st.integers(1, 60)
backup_counts = st.integers(0, 6)


@given(names, partition_counts, backup_counts)
@settings(deadline=None)
def test_a_new_table_is_sound(members: list[str], partitions: int, wanted: int) -> None:
    table = create_table(members, partitions, wanted)
    assert_sound(table)
    assert PartitionTable.from_json(table.to_json()) == table


@given(names, partition_counts, backup_counts)
@settings(deadline=None)
def test_adding_moves_only_the_new_members_share(members: list[str], n: int, wanted: int) -> None:
    before = create_table(members, n, wanted)
    after = with_member_added(before, "new")
    assert_sound(after)
    moved = copies_to_make(before, after)
    if wanted < len(members):  # else there are more replicas than before, not only other ones
        assert {member for _, member in moved} <= {"new"}
        assert len(moved) == n // (len(members) + 1) + n * wanted // (len(members) + 1)


@given(names.filter(lambda m: len(m) > 1), partition_counts, backup_counts, st.data())
@settings(deadline=None)
def test_removing_moves_only_what_the_member_held(
    members: list[str], n: int, wanted: int, data: st.DataObject
) -> None:
    gone = data.draw(st.sampled_from(members))
    before = create_table(members, n, wanted)
    after = with_member_removed(before, gone)
    assert_sound(after)
    assert_moved_little(before, after)
    if wanted >= len(members) - 1:
        assert copies_to_make(before, after) == ()
    if wanted > 0:
        assert lost_partitions(before, [gone]) == ()
        assert_promoted(before, after)


histories = st.lists(st.tuples(st.booleans(), st.integers(0, 7)), min_size=1, max_size=6)


def play(history: list[tuple[bool, int]], partitions: int, wanted: int, cast: Cast) -> None:
    """Lets members join and leave, and judges every table on the way."""
    table = cast.create(["m0", "m1", "m2"], partitions, wanted)
    assert_sound(table)
    for joins, number in history:
        member, before = f"m{number}", table
        if joins and member not in table.members:
            table = cast.add(table, member)
        elif not joins and member in table.members and len(table.members) > 1:
            table = cast.remove(table, member)
            assert_promoted(before, table)
        else:
            continue
        assert table.version == before.version + 1
        assert_sound(table)
        assert_moved_little(before, table)


@given(histories, st.integers(1, 20), st.integers(0, 3))
@settings(deadline=None, max_examples=HISTORIES)
def test_any_history_of_joins_and_leaves_is_sound_and_moves_little(
    history: list[tuple[bool, int]], partitions: int, wanted: int
) -> None:
    play(history, partitions, wanted, Cast())


@given(st.permutations([f"m{i}" for i in range(5)]))
def test_the_order_in_which_members_are_named_does_not_matter(members: list[str]) -> None:
    assert create_table(members, 271, 1) == create_table(sorted(members), 271, 1)


def test_partitions_without_a_replica_are_named() -> None:
    table = create_table(["a", "b", "c"], 12, 1)
    both = [p for p, held in enumerate(table.replicas) if set(held) == {"a", "b"}]
    assert both
    assert list(lost_partitions(table, ["a", "b"])) == both


def test_changes_that_make_no_sense_are_refused() -> None:
    table = create_table(["a"], 3, 1)
    with pytest.raises(ConfigurationError, match="already"):
        with_member_added(table, "a")
    with pytest.raises(ConfigurationError, match="not a member"):
        with_member_removed(table, "b")
    with pytest.raises(ConfigurationError, match="last"):
        with_member_removed(table, "a")
    with pytest.raises(ConfigurationError, match="at least one"):
        create_table([], 3, 1)


# --- every process places alike -----------------------------------------------------------------

PLACE = """
from dagster_jet.core import partition
from dagster_jet.store.map import partition_table
{plant}
table = partition_table.create_table([f"m{{n}}" for n in range(7)], 61, 2)
table = partition_table.with_member_removed(partition_table.with_member_added(table, "new"), "m3")
print(table.to_json(), [partition.partition_id(f"key {{n}}", n) for n in range(50)])
"""


def placed_by(hash_seed: str, plant: str = "") -> str:
    return subprocess.run(
        [sys.executable, "-c", PLACE.format(plant=plant)],
        env={
            **os.environ,
            "PYTHONHASHSEED": hash_seed,
            "PYTHONPATH": str(Path(dagster_jet.__file__).parents[1]),
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_another_process_places_alike() -> None:
    assert placed_by("1") == placed_by("2")


# --- mistakes planted on purpose: the checks above must see them --------------------------------


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param("partition.key_hash = lambda *values: hash(values)", id="of keys"),
        pytest.param(
            "partition_table.sorted = lambda names, **_: sorted(names, key=hash)", id="of members"
        ),
    ],
)
def test_placement_by_pythons_hash_is_seen(plant: str) -> None:
    assert placed_by("1", plant) != placed_by("2", plant)


def drops_a_backup(table: PartitionTable, member: str) -> PartitionTable:
    """Mutant: copies that are lost with a member are not made again."""
    after = with_member_removed(table, member)
    kept = [
        tuple(name for name in held if name in before)
        for held, before in zip(after.replicas, table.replicas, strict=True)
    ]
    return replace(after, replicas=tuple(kept))


def doubles_a_replica(table: PartitionTable, member: str) -> PartitionTable:
    """The backup is made again where the primary is."""
    after = with_member_removed(table, member)
    return replace(after, replicas=tuple((h[0], *[h[0]] * (len(h) - 1)) for h in after.replicas))


def promotes_who_has_nothing(table: PartitionTable, member: str) -> PartitionTable:
    """A member that has yet to receive the data is read first."""
    after = with_member_removed(table, member)
    return replace(after, replicas=tuple(held[::-1] for held in after.replicas))


def begins_anew(table: PartitionTable, member: str) -> PartitionTable:
    """A member joins, and everything is placed again from the beginning."""
    members = [*table.members, member]
    anew = create_table(members, table.partition_count, table.backup_count)
    return replace(anew, version=table.version + 1)


def gives_nothing(table: PartitionTable, member: str) -> PartitionTable:
    """A member joins, and receives nothing."""
    members = tuple(sorted((*table.members, member)))
    return replace(table, version=table.version + 1, members=members)


@pytest.mark.parametrize(
    ("mutant", "seen"),
    [
        (Cast(remove=drops_a_backup), "misses a backup"),
        (Cast(remove=doubles_a_replica), "twice on one member"),
        (Cast(remove=promotes_who_has_nothing), "primaries without the data"),
        (Cast(add=begins_anew), "moved"),
        (Cast(add=gives_nothing), "not balanced"),
    ],
    ids=lambda value: (
        (value.add if value.remove is with_member_removed else value.remove).__name__
        if isinstance(value, Cast)
        else ""
    ),
)
def test_a_planted_mistake_is_seen(mutant: Cast, seen: str) -> None:
    with pytest.raises(AssertionError, match=seen):
        play([(False, 1), (True, 5), (True, 1), (False, 0)], 31, 1, mutant)
