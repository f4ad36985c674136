"""Registers on members that join, leave and are replaced."""

from __future__ import annotations

import json
import threading
import uuid

import pytest

from dagster_jet.errors import (
    ConfigurationError,
    FencedError,
    MembersChangedError,
    StoreMismatchError,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from dagster_jet.store import (
    Configuration,
    Member,
    MemoryMember,
    RegisterClient,
    discover_configuration,
    list_registers,
    move_register,
    move_registers,
)
from dagster_jet.store.identity import VerifiedMember, identify
from dagster_jet.store.quorum import movement


class World:
    """Members by a letter, and configurations written as their letters."""

    def __init__(self) -> None:
        self._place = uuid.uuid4().hex
        self.members: dict[str, MemoryMember] = {}

    def __getitem__(self, letter: str) -> MemoryMember:
        if letter not in self.members:
            self.members[letter] = MemoryMember(f"{self._place}-{letter}")
        return self.members[letter]

    def of(self, letters: str) -> dict[str, Member]:
        return {letter: self[letter] for letter in letters}

    def first(self, letters: str) -> Configuration[Member]:
        return Configuration(0, self.of(letters))

    def change(self, before: Configuration[Member], letters: str) -> Configuration[Member]:
        stable = Configuration(before.number, before.members)
        return Configuration(before.number + 1, self.of(letters), stable)

    def down(self, letters: str) -> None:
        for letter, member in self.members.items():
            member.reachable = letter not in letters

    # The metadata register, as a store would use it.

    def value_of(self, configuration: Configuration[Member], note: str = "") -> bytes:
        previous = configuration.previous
        return json.dumps(
            [
                configuration.number,
                "".join(configuration.members),
                None if previous is None else "".join(previous.members),
                note,
            ]
        ).encode()

    def parse(self, value: bytes) -> Configuration[Member]:
        number, letters, before, _ = json.loads(value)
        previous = None if before is None else Configuration(number - 1, self.of(before))
        return Configuration(number, self.of(letters), previous)


def stable(configuration: Configuration[Member]) -> Configuration[Member]:
    return Configuration(configuration.number, configuration.members)


def claim(configuration: Configuration[Member], name: str = "job", owner: str = "a"):
    register = RegisterClient(configuration, name)
    highest = register.highest_ballot()
    return register.claim(1 if highest is None else highest.number + 1, owner)


def value(configuration: Configuration[Member], name: str = "job") -> bytes | None:
    found = RegisterClient(configuration, name).read()
    return None if found is None else found.value


@pytest.fixture
def world() -> World:
    return World()


# --- one register -----------------------------------------------------------------------------


@pytest.mark.parametrize("after", ["abcd", "ab", "abd", "def", "a", "d"])
def test_value_and_promise_move_to_any_other_members(world: World, after: str) -> None:
    old = world.first("abc")
    owned = claim(old)
    owned.write(b"v1")
    new = world.change(old, after)
    move_register(new, "job")
    assert value(new) == value(stable(new)) == b"v1"
    with pytest.raises(FencedError):
        RegisterClient(new, "job").claim(owned.ballot.number, "b")
    claim(new).write(b"v2")
    assert value(stable(new)) == b"v2"


def test_a_client_of_the_members_before_is_told_so(world: World) -> None:
    old = world.first("abc")
    owned = claim(old)
    owned.write(b"v1")
    move_register(world.change(old, "abd"), "job")
    register = RegisterClient(old, "job")
    for call in (register.read, register.highest_ballot, lambda: register.claim(9, "b")):
        with pytest.raises(MembersChangedError, match=r"configuration 0.*Open the store again"):
            call()
    for _ in range(2):
        with pytest.raises(MembersChangedError):
            owned.write(b"v2")


def test_the_first_client_of_the_new_members_moves_the_register(world: World) -> None:
    old = world.first("abc")
    claim(old).write(b"v1")
    assert value(world.change(old, "bcd")) == b"v1"
    with pytest.raises(MembersChangedError):
        value(old)


def test_a_member_that_was_away_is_installed_when_it_is_needed(world: World) -> None:
    old = world.first("abc")
    claim(old).write(b"v1")
    new = world.change(old, "ade")
    world.down("e")
    owned = claim(new)
    owned.write(b"v2")
    world.down("d")
    owned.write(b"v3")
    assert value(new) == b"v3"


def test_a_write_of_which_one_member_took_part_is_unknown_when_the_others_cannot_be_installed(
    world: World,
) -> None:
    old = world.first("abc")
    new = world.change(old, "ade")
    world.down("e")
    owned = claim(new)
    world.down("d")
    world["e"].reachable = False
    with pytest.raises(WriteOutcomeUnknownError):
        owned.write(b"v1")


def test_a_move_does_not_begin_without_a_majority_of_the_new_members(world: World) -> None:
    old = world.first("abc")
    claim(old).write(b"v1")
    new = world.change(old, "ade")
    world.of("de")
    world.down("de")
    with pytest.raises(StoreUnavailableError):
        move_register(new, "job")
    assert value(old) == b"v1"


def test_a_member_that_has_left_and_comes_back_is_a_new_one(world: World) -> None:
    zero = world.first("abc")
    claim(zero).write(b"old")
    one = world.change(zero, "bcd")
    move_register(one, "job")
    claim(stable(one)).write(b"new")
    two = world.change(one, "abd")
    assert value(two) == b"new"
    world.down("bd")
    with pytest.raises(StoreUnavailableError):
        value(stable(two))


def test_a_member_that_lost_its_data_does_not_speak_for_its_former_self(world: World) -> None:
    identities = {m: identify(world[m]) for m in "abc"}
    world.down("c")
    claim(world.first("abc")).write(b"v1")  # on a and b
    world.down("b")
    world["a"].forget()
    old = Configuration(0, {m: VerifiedMember(world[m], identities[m]) for m in "abc"})
    again = {m: VerifiedMember(world[m], identify(world[m])) for m in "ac"}
    new = Configuration(1, {**again, "d": world["d"]}, old)
    with pytest.raises(StoreUnavailableError, match="is not the one"):
        move_register(new, "job")
    world.down("")
    assert value(new) == b"v1"


def test_an_older_change_is_stale_for_its_mover_too(world: World) -> None:
    zero = world.first("abc")
    claim(zero).write(b"v")
    one = world.change(zero, "bcd")
    two = world.change(one, "cde")
    for change in (one, two):
        move_registers(change)
    with pytest.raises(MembersChangedError):
        move_register(one, "job")


def test_configurations_that_make_no_sense_are_refused(world: World) -> None:
    zero = world.first("a")
    with pytest.raises(ConfigurationError, match="no member"):
        Configuration(0, {})
    with pytest.raises(ConfigurationError, match="must follow"):
        Configuration(2, zero.members, zero)
    with pytest.raises(ConfigurationError, match="must follow"):
        Configuration(2, zero.members, world.change(zero, "b"))
    with pytest.raises(ConfigurationError, match="nothing to move"):
        move_register(zero, "job")
    assert (
        repr(world.change(zero, "b")) == "Configuration(1, ['b'], previous=Configuration(0, ['a']))"
    )


# --- all registers ----------------------------------------------------------------------------


def test_all_registers_move_and_then_the_old_members_are_not_needed(world: World) -> None:
    old = world.first("abc")
    names = [f"jobs/{n}/ä" for n in range(20)]
    for name in names:
        claim(old, name).write(name.encode())
    new = world.change(old, "def")
    told: list[str] = []
    assert move_registers(new, told.append) == 20
    assert told == sorted(names)
    world.down("abc")
    for name in names:
        assert value(stable(new), name) == name.encode()
    assert value(stable(new), "never written") is None
    claim(stable(new), "begun later").write(b"v")


def test_registers_move_beside_each_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the one behind it: one after the other, the first would wait for ever."""
    old = world.first("abc")
    for n in range(4):
        claim(old, f"jobs/{n}").write(b"v")
    met = threading.Barrier(4)

    def moved(configuration: Configuration[Member], name: str) -> None:
        met.wait(timeout=20)
        move_register(configuration, name)

    monkeypatch.setattr(movement, "move_register", moved)
    assert move_registers(world.change(old, "bcd")) == 4


def test_a_register_of_any_majority_is_listed(world: World) -> None:
    old = world.first("abcde")
    for away, name in (("ab", "one"), ("cd", "two"), ("ae", "three")):
        world.down(away)
        claim(old, name).write(b"v")
    world.down("bd")
    assert list_registers(world.change(old, "a")) == {"one", "two", "three"}
    world.down("abd")
    with pytest.raises(StoreUnavailableError, match="listing the registers needs 3 of the 5"):
        list_registers(world.change(old, "a"))


def test_after_the_list_no_register_begins_on_the_old_members(world: World) -> None:
    old = world.first("abc")
    new = world.change(old, "bcd")
    assert move_registers(new) == 0
    register = RegisterClient(old, "late")
    for _ in range(2):  # the name is on the members now; it must not help
        for call in (register.read, lambda: register.claim(1, "a")):
            with pytest.raises(MembersChangedError):
                call()
    claim(stable(new), "late").write(b"v")
    assert value(stable(new), "late") == b"v"


# --- the members of a store -------------------------------------------------------------------


def discovered(world: World, letters: str) -> tuple[Configuration[Member], bytes] | None:
    found = discover_configuration("store", world.of(letters), world.parse)
    return None if found is None else (found.configuration, found.value.value)


def created(world: World, letters: str) -> Configuration[Member]:
    first = world.first(letters)
    claim(first, "store").write(world.value_of(first))
    return first


def announce(world: World, before: Configuration[Member], letters: str) -> Configuration[Member]:
    new = world.change(before, letters)
    claim(stable(before), "store").write(world.value_of(new))
    return new


def finish(world: World, new: Configuration[Member]) -> Configuration[Member]:
    move_registers(new)
    claim(new, "store").write(world.value_of(stable(new)))
    return stable(new)


def test_members_without_a_store_have_none(world: World) -> None:
    assert discovered(world, "abc") is None


@pytest.mark.parametrize("known", ["abc", "c", "cde", "f", "axy"])
def test_the_newest_configuration_is_found_from_any_list(world: World, known: str) -> None:
    zero = created(world, "abc")
    one = finish(world, announce(world, zero, "bcd"))
    two = finish(world, announce(world, one, "def"))
    assert discovered(world, known) == (two, world.value_of(two))


@pytest.mark.parametrize("known", ["a", "abc", "cd", "abcd"])
def test_an_announced_change_is_followed_and_its_register_moved(world: World, known: str) -> None:
    one = announce(world, created(world, "abc"), "bcd")
    assert discovered(world, known) == (one, world.value_of(one))
    with pytest.raises(MembersChangedError):
        value(world.first("abc"), "store")
    world.down("a")
    assert value(stable(one), "store") == world.value_of(one)


def test_a_change_that_was_not_confirmed_is_not_followed(world: World) -> None:
    zero = created(world, "abc")
    owner = claim(zero, "store")
    world.down("ab")
    with pytest.raises(WriteOutcomeUnknownError):
        owner.write(world.value_of(world.change(zero, "xyz")))
    world.down("c")
    claim(zero, "store")
    world.down("")
    assert discovered(world, "c") == (zero, world.value_of(zero))


def test_a_register_that_is_sealed_and_not_installed_is_found(world: World) -> None:
    one = announce(world, created(world, "abc"), "xyz")
    world.of("xyz")
    world.down("x")

    class Dies(Exception):
        pass

    class Dying(MemoryMember):
        def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
            raise Dies

    half = Configuration(1, {m: Dying(f"{world._place}-{m}") for m in "xyz"}, one.previous)
    with pytest.raises(Dies):
        move_register(half, "store")
    with pytest.raises(MembersChangedError):
        value(world.first("abc"), "store")
    assert value(stable(one), "store") is None  # which is why only a finished change is stable
    world.down("")
    assert discovered(world, "a") == (one, world.value_of(one))


def test_too_few_members_to_follow_are_an_error_and_not_another_store(world: World) -> None:
    finish(world, announce(world, created(world, "abc"), "def"))
    world.down("de")
    for known in ("abc", "f"):
        with pytest.raises(StoreUnavailableError):
            discovered(world, known)


def test_a_value_that_names_another_configuration_is_refused(world: World) -> None:
    zero = world.first("abc")
    claim(zero, "store").write(world.value_of(Configuration(4, world.of("abc"))))
    with pytest.raises(StoreMismatchError, match="names Configuration"):
        discovered(world, "abc")


def test_members_are_followed_through_many_changes_by_several_at_once(world: World) -> None:
    configuration = created(world, "abc")
    failures: list[BaseException] = []
    found: list[int] = []
    done = threading.Event()

    def follow() -> None:
        try:
            while not done.is_set():
                got = discovered(world, "abc")
                assert got is not None
                found.append(got[0].number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=follow) for _ in range(3)]
    for thread in threads:
        thread.start()
    for letters in ("bcd", "cde", "de", "efa", "abc"):
        configuration = finish(world, announce(world, configuration, letters))
    done.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert found
    assert discovered(world, "c") == (configuration, world.value_of(configuration))
