"""Who holds what: balanced, replicas apart, and as few moves as balance allows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dagster_jet.errors import ConfigurationError
from dagster_jet.store.placement import (
    PartitionTable,
    copies_to_make,
    create_table,
    lost_partitions,
    with_member_added,
    with_member_removed,
)


def primaries(table: PartitionTable) -> dict[str, int]:
    held = [table.primary(p) for p in range(table.partition_count)]
    return {member: held.count(member) for member in table.members}


def backups(table: PartitionTable) -> dict[str, int]:
    held = [member for p in range(table.partition_count) for member in table.backups(p)]
    return {member: held.count(member) for member in table.members}


def assert_sound(table: PartitionTable) -> None:
    for count in (primaries(table), backups(table)):
        assert max(count.values()) - min(count.values()) <= 1
    copies = 1 + min(table.backup_count, len(table.members) - 1)
    for held in table.replicas:
        assert len(held) == len(set(held)) == copies
        assert set(held) <= set(table.members)


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
    moved = copies_to_make(before, after)
    held = sum(gone in replicas for replicas in before.replicas)
    assert len(moved) == (held if wanted < len(members) - 1 else 0)
    if wanted > 0:
        assert lost_partitions(before, [gone]) == ()
        for partition, replicas in enumerate(before.replicas):
            assert after.primary(partition) in replicas, "a primary must have the data"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=25), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_any_history_leaves_a_sound_table(history: list[tuple[bool, int]], wanted: int) -> None:
    table = create_table(["m0", "m1", "m2"], 31, wanted)
    for add, number in history:
        member = f"m{number}"
        if add and member not in table.members:
            table = with_member_added(table, member)
        elif not add and member in table.members and len(table.members) > 1:
            before, table = table, with_member_removed(table, member)
            if len(before.replicas[0]) > 1:
                for partition, replicas in enumerate(before.replicas):
                    assert set(table.replicas[partition]) & set(replicas) - {member}
        assert_sound(table)


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
