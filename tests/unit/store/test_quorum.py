"""The register on real members: ownership, fencing, and members that are away."""

import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from dagster_jet.errors import (
    ConfigurationError,
    FencedError,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from dagster_jet.store import Configuration, Member, MemoryMember, RegisterClient
from dagster_jet.store.members.member import Versioned
from dagster_jet.store.register import AcceptorState, Ballot
from dagster_jet.store.values.envelope import seal, unseal


class MuteMember(MemoryMember):
    """A member with faults, each while its flag is set."""

    mute = False
    """A compare-and-set is carried out, and its answer is lost."""
    refuses = False
    """A compare-and-set is refused: certainly nothing was done."""
    breaks = False
    """A compare-and-set is carried out, and raises what no member foresees."""
    twice = False
    """A proxy sends a compare-and-set again, which then loses to itself, and goes away."""

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        if self.refuses:
            error = StoreUnavailableError(f"{self.member_id} refuses.")
            error.was_not_applied = True
            raise error
        if self.twice:
            super().compare_and_set(key, expected_version, value)
            again = super().compare_and_set(key, expected_version, value)
            self.reachable = False
            return again
        done = super().compare_and_set(key, expected_version, value)
        if self.breaks:
            raise MemoryError("no room")
        if self.mute:
            raise StoreUnavailableError(f"{self.member_id} was cut off.")
        return done


class OwnView:
    """A process's own object for a member that remembers what it wrote last, as S3's does: a set at
    that version fails unless exactly these bytes are there."""

    def __init__(self, member: MuteMember) -> None:
        self._member = member
        self._last: dict[bytes, Versioned] = {}
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._member, name)

    def get_versioned(self, key: bytes) -> Versioned | None:
        self.reads += 1
        return self._member.get_versioned(key)

    def written_last(self, key: bytes) -> Versioned | None:
        return self._last.get(key)

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        last = self._last.pop(key, None)
        is_last = last is not None and last.version == expected_version
        if is_last and self._member.get_versioned(key) != last:
            return False
        done = self._member.compare_and_set(key, expected_version, value)
        if done:
            self._last[key] = Versioned(expected_version + 1, value)
        return done


def client(members: Sequence[Member], name: str) -> RegisterClient:
    return RegisterClient(Configuration(0, {m.member_id: m for m in members}), name)


@pytest.fixture
def members() -> list[MuteMember]:
    return [MuteMember(uuid.uuid4().hex) for _ in range(3)]


@pytest.fixture(params=[False, True], ids=["reads", "remembers"])
def register(members: list[MuteMember], request: pytest.FixtureRequest) -> RegisterClient:
    return client([OwnView(one) for one in members] if request.param else members, "job")


def test_an_owner_begins_with_what_it_wrote_last(members: list[MuteMember]) -> None:
    views = [OwnView(member) for member in members]
    owned = client(views, "job").claim(1, "a")
    owned.write(b"v1")
    before = [view.reads for view in views]
    owned.write(b"v2")
    assert [view.reads for view in views] == before
    found = client(members, "job").read()
    assert found is not None and found.value == b"v2"


def test_an_owner_that_was_overtaken_is_fenced_by_what_is_there(
    members: list[MuteMember],
) -> None:
    views = [OwnView(member) for member in members]
    former = client(views, "job")
    older = former.claim(1, "a")
    older.write(b"v1")
    newer = client(members, "job").claim(2, "b")
    newer.write(b"v2")
    # The former owner hears counts of changes that it has not written: no member forgot them.
    assert former.read() is not None
    with pytest.raises(FencedError, match="ballot 2 of 'b'"):
        older.write(b"zombie")
    newer.write(b"v3")
    found = former.read()
    assert found is not None and found.value == b"v3"


def test_a_member_with_the_same_version_and_other_bytes_is_not_overwritten(
    members: list[MuteMember],
) -> None:
    views = [OwnView(member) for member in members]
    owned = client(views, "job").claim(1, "a")
    owned.write(b"v1")
    key = b"register/job"
    theirs: dict[str, bytes] = {}
    for member in members:
        stored = member.get_versioned(key)
        assert stored is not None
        other = AcceptorState.from_bytes(unseal(stored.value))
        promised = replace(other, promised=Ballot(2, "b", 0, "n"))
        theirs[member.member_id] = seal(promised.to_bytes())
        member._room().versioned[key] = Versioned(stored.version, theirs[member.member_id])
    with pytest.raises(FencedError):
        owned.write(b"v2")
    for member in members:
        stored = member.get_versioned(key)
        assert stored is not None and stored.value == theirs[member.member_id]


def test_a_new_register_is_empty(register: RegisterClient) -> None:
    assert register.read() is None
    assert register.highest_ballot() is None
    assert register.claim(1, "a").value is None


def test_what_the_owner_writes_everybody_reads(register: RegisterClient) -> None:
    owned = register.claim(3, "a")
    for number in range(1, 4):
        owned.write(b"v%d" % number)
        found = register.read()
        assert found is not None
        assert (found.value, found.sequence) == (b"v%d" % number, number)
        assert (found.ballot.number, found.ballot.owner) == (3, "a")
    assert register.highest_ballot() == owned.ballot


def test_a_newer_owner_takes_over_value_and_right(register: RegisterClient) -> None:
    older = register.claim(1, "a")
    older.write(b"v1")
    newer = register.claim(2, "b")
    assert newer.value == b"v1"
    for _ in range(2):
        with pytest.raises(FencedError, match="ballot 2 of 'b'"):
            older.write(b"zombie")
    newer.write(b"v2")
    found = register.read()
    assert found is not None
    assert found.value == b"v2"


@pytest.mark.parametrize("number", [1, 2])
def test_a_number_that_is_not_higher_is_fenced(register: RegisterClient, number: int) -> None:
    register.claim(2, "b")
    with pytest.raises(FencedError):
        register.claim(number, "a")


def test_an_owner_that_claims_its_number_again_fences_its_former_self(
    register: RegisterClient,
) -> None:
    former = register.claim(1, "a")
    former.write(b"v1")
    again = register.claim(1, "a")
    assert again.value == b"v1"
    with pytest.raises(FencedError):
        former.write(b"v2")


def test_ballots_begin_with_one(register: RegisterClient) -> None:
    with pytest.raises(ConfigurationError):
        register.claim(0, "a")


def test_one_of_three_members_may_be_away(
    register: RegisterClient, members: list[MuteMember]
) -> None:
    members[0].reachable = False
    owned = register.claim(1, "a")
    owned.write(b"v1")
    members[0].reachable, members[1].reachable = True, False
    found = register.read()
    assert found is not None
    assert found.value == b"v1"
    owned.write(b"v2")


def test_two_of_three_members_away_is_too_many_and_they_are_named(
    register: RegisterClient, members: list[MuteMember]
) -> None:
    owned = register.claim(1, "a")
    members[0].reachable = members[1].reachable = False
    for call in (register.read, register.highest_ballot, lambda: register.claim(2, "b")):
        with pytest.raises(StoreUnavailableError, match=members[1].member_id):
            call()
    with pytest.raises(WriteOutcomeUnknownError, match=members[0].member_id):
        owned.write(b"v1")  # the third has taken it


def test_a_write_that_reached_nobody_may_be_repeated(members: list[MuteMember]) -> None:
    owned = client(members, "job").claim(1, "a")
    for member in members:
        member.reachable = False
    with pytest.raises(StoreUnavailableError):
        owned.write(b"v1")
    for member in members:
        member.reachable = True
    owned.write(b"another v1")
    assert owned.sequence == 1


def test_a_write_that_was_refused_may_be_repeated(members: list[MuteMember]) -> None:
    views = [OwnView(member) for member in members]
    owned = client(views, "job").claim(1, "a")
    owned.write(b"v1")
    for member in members:
        member.refuses = True
    with pytest.raises(StoreUnavailableError):
        owned.write(b"v2")
    for member in members:
        member.refuses = False
    owned.write(b"another v2")
    assert owned.sequence == 2


def test_a_set_that_was_sent_twice_and_then_cannot_be_read_is_in_doubt(
    members: list[MuteMember],
) -> None:
    owned = client(members, "job").claim(1, "a")
    for member in members:
        member.twice = True
    with pytest.raises(WriteOutcomeUnknownError):
        owned.write(b"v1")
    for member in members:
        member.twice, member.reachable = False, True
    assert client(members, "job").claim(2, "b").value == b"v1"


def test_after_an_unknown_write_the_owner_must_claim_again(
    register: RegisterClient, members: list[MuteMember]
) -> None:
    owned = register.claim(1, "a")
    for member in members:
        member.mute = True
    with pytest.raises(WriteOutcomeUnknownError):
        owned.write(b"v1")
    for member in members:
        member.mute = False
    with pytest.raises(WriteOutcomeUnknownError):
        owned.write(b"v2")
    assert register.claim(1, "a").value == b"v1"  # it had been written after all


def test_after_an_unforeseen_error_the_owner_must_claim_again(members: list[MuteMember]) -> None:
    """One member has the value; another one under its number would be a second decision."""
    owned = client(members, "job").claim(1, "a")
    members[0].breaks = True
    with pytest.raises(MemoryError):
        owned.write(b"v1")
    members[0].breaks = False
    with pytest.raises(WriteOutcomeUnknownError, match="'job' raised MemoryError"):
        owned.write(b"v2")
    assert client(members, "job").claim(2, "b").value == b"v1"


def test_a_damaged_member_is_not_an_empty_one(
    register: RegisterClient, members: list[MuteMember]
) -> None:
    register.claim(1, "a").write(b"v1")
    for member in members[:2]:
        stored = member.get_versioned(b"register/job")
        assert stored is not None
        member.compare_and_set(b"register/job", stored.version, stored.value[:-1])
    with pytest.raises(StoreUnavailableError, match="damaged copy"):
        register.read()


def test_of_many_claims_at_one_moment_one_wins(members: list[MuteMember]) -> None:
    won: list[str] = []

    def claim(owner: str) -> None:
        try:
            client(members, "race").claim(1, owner).write(owner.encode())
            won.append(owner)
        except FencedError:
            pass

    threads = [threading.Thread(target=claim, args=(f"owner-{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = client(members, "race").read()
    assert found is not None
    assert [found.value.decode()] == won


def test_registers_of_different_names_are_different(members: list[MuteMember]) -> None:
    client(members, "one").claim(5, "a").write(b"v")
    assert client(members, "two").read() is None
