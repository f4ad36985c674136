"""The register's rules one by one: what members answer, what owners, readers, movers make of it.

What it all comes to when a network loses and repeats: ``tests/simulation/quorum``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from dagster_jet.store.register import (
    Accept,
    AcceptorState,
    Ballot,
    Choose,
    ClaimBallot,
    Close,
    Configuration,
    Install,
    Move,
    Operation,
    Outcome,
    Promise,
    Read,
    ReadLatest,
    Reply,
    ReplyStatus,
    Request,
    Seal,
    Write,
    acceptor_step,
)

# --- the acceptor, line by line ---------------------------------------------------------------

ONE, TWO = Ballot(1, "a"), Ballot(2, "b")


def step(state: AcceptorState, *requests: Request) -> tuple[AcceptorState, Reply]:
    for request in requests:
        state, reply = acceptor_step(state, request)
    return state, reply


def test_a_promise_shuts_out_lower_ballots() -> None:
    state, reply = step(AcceptorState(), Promise(TWO), Promise(ONE))
    assert reply.status is ReplyStatus.FENCED
    assert reply.state.promised == TWO
    _, reply = step(state, Accept(ONE, 1, b"late"))
    assert reply.status is ReplyStatus.FENCED


def test_a_promise_of_one_number_goes_to_the_first_owner_that_asks() -> None:
    state, _ = step(AcceptorState(), Promise(Ballot(1, "a")))
    for later in (Ballot(1, "b"), Ballot(1, "A")):
        assert step(state, Promise(later))[1].status is ReplyStatus.FENCED
    assert step(state, Promise(Ballot(1, "a", attempt=1)))[1].status is ReplyStatus.GRANTED


def test_repeating_a_request_changes_nothing() -> None:
    for requests in ([Promise(ONE)], [Promise(ONE), Accept(ONE, 1, b"v")]):
        state, reply = step(AcceptorState(), *requests)
        assert (state, reply) == step(state, requests[-1])


def test_an_overtaken_accept_of_the_same_owner_does_not_go_back() -> None:
    state, _ = step(AcceptorState(), Accept(ONE, 2, b"second"))
    after, reply = step(state, Accept(ONE, 1, b"first"))
    assert reply.status is ReplyStatus.FENCED
    assert after == state


def test_reading_promises_nothing() -> None:
    state, reply = step(AcceptorState(), Read())
    assert reply.status is ReplyStatus.GRANTED
    assert state == AcceptorState()


@pytest.mark.parametrize(
    "state",
    [
        AcceptorState(),
        AcceptorState(promised=Ballot(3, "ö\n", 2, "ab")),
        AcceptorState(TWO, ONE, 7, b"\nvalue\n\x00"),
        AcceptorState(TWO, ONE, 7, b""),
        AcceptorState(TWO, ONE, 7, b"v", 3, Ballot(2, "mover"), Ballot(1, "mover")),
    ],
)
def test_a_state_survives_storage(state: AcceptorState) -> None:
    assert AcceptorState.from_bytes(state.to_bytes()) == state


# --- operations against members that answer at once -------------------------------------------


def everyone(members: Iterable[str]) -> Configuration[None]:
    return Configuration(0, dict.fromkeys(members))


class Cluster:
    """Members that answer at once, except those that are down."""

    def __init__(self, count: int) -> None:
        self.states = {f"m{i}": AcceptorState() for i in range(count)}
        self.down: set[str] = set()
        self.dies_after: set[str] = set()  # carries the request out, but the reply is lost

    def run(self, operation: Operation) -> Operation:
        while operation.outcome is None:
            member = operation.current.waiting[0]
            if member in self.down:
                operation.no_answer(member, may_have_applied=False)
                continue
            self.states[member], reply = acceptor_step(
                self.states[member], operation.current.request
            )
            if member in self.dies_after:
                operation.no_answer(member, may_have_applied=True)
            else:
                operation.receive(member, reply)
        return operation

    def claim(self, ballot: Ballot) -> Operation:
        return self.run(ClaimBallot(everyone(self.states), ballot))

    def write(self, owned: AcceptorState, value: bytes) -> Operation:
        return self.run(Write(everyone(self.states), owned, value))

    def read(self) -> Operation:
        return self.run(ReadLatest(everyone(self.states)))


def test_one_member_is_a_compare_and_set() -> None:
    cluster = Cluster(1)
    first = cluster.claim(ONE)
    assert cluster.write(first.state, b"v1").outcome is Outcome.SUCCEEDED
    second = cluster.claim(TWO)
    assert second.state.value == b"v1"
    assert cluster.write(first.state, b"zombie").outcome is Outcome.FENCED
    assert cluster.read().state.value == b"v1"


def test_a_minority_may_be_down() -> None:
    cluster = Cluster(5)
    cluster.down = {"m0", "m3"}
    owned = cluster.claim(ONE).state
    assert cluster.write(owned, b"v1").outcome is Outcome.SUCCEEDED
    cluster.down = {"m1", "m2"}
    assert cluster.read().state.value == b"v1"


def test_without_a_majority_nothing_is_promised_or_written() -> None:
    cluster = Cluster(3)
    owned = cluster.claim(ONE).state
    cluster.down = {"m0", "m1", "m2"}
    assert cluster.write(owned, b"v1").outcome is Outcome.UNAVAILABLE
    assert cluster.read().outcome is Outcome.UNAVAILABLE
    assert cluster.claim(TWO).outcome is Outcome.UNAVAILABLE


def test_a_write_on_a_minority_is_unknown_and_a_reader_that_sees_it_writes_it_back() -> None:
    cluster = Cluster(3)
    owned = cluster.claim(ONE).state
    cluster.down = {"m1", "m2"}
    assert cluster.write(owned, b"half").outcome is Outcome.UNKNOWN
    cluster.down = {"m2"}
    assert cluster.read().state.value == b"half"
    cluster.down = {"m0"}  # the only one that had it at first
    assert cluster.read().state.value == b"half"


def test_a_write_whose_replies_are_lost_is_unknown() -> None:
    cluster = Cluster(3)
    owned = cluster.claim(ONE).state
    cluster.dies_after = {"m0", "m1", "m2"}
    assert cluster.write(owned, b"v1").outcome is Outcome.UNKNOWN


def test_a_reader_does_not_return_what_a_claim_under_way_may_drop() -> None:
    cluster = Cluster(3)
    owned = cluster.claim(ONE).state
    cluster.down = {"m1", "m2"}
    cluster.write(owned, b"half")  # on m0 only
    cluster.down = set()
    for member in ("m1", "m2"):  # a claim that has its promises, and has not seen m0
        cluster.states[member], _ = acceptor_step(cluster.states[member], Promise(TWO))
    assert cluster.read().outcome is Outcome.FENCED


def test_a_value_on_a_majority_is_returned_even_while_a_claim_is_under_way() -> None:
    cluster = Cluster(3)
    cluster.write(cluster.claim(ONE).state, b"v1")
    for member in ("m1", "m2"):
        cluster.states[member], _ = acceptor_step(cluster.states[member], Promise(TWO))
    assert cluster.read().state.value == b"v1"


def test_of_two_values_with_one_number_the_higher_ballots_is_the_newer() -> None:
    cluster = Cluster(3)
    owned = cluster.write(cluster.claim(ONE).state, b"v1").state
    cluster.down = {"m1", "m2"}
    cluster.write(owned, b"lost")  # number 2, on m0 only
    cluster.down = {"m0"}
    owned = cluster.claim(TWO).state
    assert cluster.write(owned, b"v2").outcome is Outcome.SUCCEEDED  # number 2 as well
    cluster.down = {"m2"}
    assert cluster.read().state.value == b"v2"
    assert cluster.claim(Ballot(3, "c")).state.value == b"v2"


def test_a_claim_adopts_the_newest_value_and_not_the_most_frequent() -> None:
    cluster = Cluster(3)
    owned = cluster.claim(ONE).state
    owned = cluster.write(owned, b"v1").state
    cluster.down = {"m1", "m2"}
    cluster.write(owned, b"v2")
    cluster.down = {"m2"}
    claimed = cluster.claim(TWO)
    assert (claimed.state.value, claimed.state.sequence) == (b"v2", 2)
    assert claimed.state.promised == TWO


# --- from one configuration to the next -------------------------------------------------------

OLD = Configuration(0, dict.fromkeys(["m0", "m1", "m2"]))
NEW = Configuration(1, dict.fromkeys(["m1", "m2", "m3"]), OLD)
MOVER, LATER_MOVER = Ballot(1, "mover"), Ballot(2, "another mover")


def status(state: AcceptorState, request: Request, floor: int = 0) -> ReplyStatus:
    return acceptor_step(state, request, floor)[1].status


def test_a_member_without_data_counts_only_where_no_change_is_under_way() -> None:
    for number in (0, 1, 7):
        stable = Promise(ONE, configuration=number)
        assert status(AcceptorState(), stable) is ReplyStatus.GRANTED
        changing = Promise(ONE, configuration=number, stable=False)
        assert status(AcceptorState(), changing) is ReplyStatus.UNINSTALLED


def test_a_sealed_member_serves_nobody_but_movers() -> None:
    state, _ = step(AcceptorState(), Accept(ONE, 1, b"v"), Seal(MOVER))
    for request in (Read(), Promise(TWO), Accept(ONE, 2, b"w"), Install(AcceptorState())):
        assert step(state, request) == (state, Reply(request, ReplyStatus.STALE, state))
    assert status(state, Read(configuration=1, stable=False)) is ReplyStatus.UNINSTALLED
    later, reply = step(state, Seal(LATER_MOVER))
    assert (reply.status, later.value) == (ReplyStatus.GRANTED, b"v")
    assert status(later, Seal(MOVER)) is ReplyStatus.FENCED
    assert status(later, Choose(MOVER, state)) is ReplyStatus.FENCED


def test_a_state_is_installed_once_and_in_place_of_what_was_there() -> None:
    own, _ = step(AcceptorState(), Accept(TWO, 5, b"own"), Seal(MOVER))
    decided = AcceptorState(TWO, ONE, 1, b"decided", configuration=0)
    state, reply = step(own, Install(decided, configuration=1))
    assert reply.status is ReplyStatus.GRANTED
    assert state == replace(decided, configuration=1, changes=3)
    further, _ = step(state, Accept(TWO, 2, b"further", configuration=1))
    again, reply = step(further, Install(decided, configuration=1))
    assert (again, reply.status) == (further, ReplyStatus.GRANTED)


def test_below_its_floor_a_member_begins_nothing_and_goes_on_with_what_it_has() -> None:
    for request in (Read(), Promise(ONE), Install(AcceptorState())):
        assert status(AcceptorState(), request, floor=1) is ReplyStatus.STALE
        assert status(AcceptorState(), request, floor=0) is ReplyStatus.GRANTED
    begun, _ = step(AcceptorState(), Promise(ONE))
    assert status(begun, Promise(TWO), floor=1) is ReplyStatus.GRANTED
    assert status(AcceptorState(), Seal(MOVER), floor=1) is ReplyStatus.GRANTED


def test_a_second_mover_takes_over_what_the_first_has_chosen() -> None:
    cluster = Cluster(4)
    del cluster.states["m3"]
    owned = cluster.claim(ONE).state
    cluster.down = {"m1", "m2"}
    cluster.write(owned, b"on one member")
    cluster.states["m3"] = AcceptorState()
    cluster.down = {"m2"}
    first = cluster.run(Close(OLD, MOVER))
    assert (first.outcome, first.state.value) == (Outcome.SUCCEEDED, b"on one member")
    cluster.down = {"m0"}  # the only one that had it at first
    moved = cluster.run(Move(NEW, LATER_MOVER))
    assert (moved.outcome, moved.state.value) == (Outcome.SUCCEEDED, b"on one member")
    assert cluster.run(ReadLatest(NEW)).state.value == b"on one member"


def test_a_mover_that_is_behind_is_told_so() -> None:
    cluster = Cluster(4)
    assert cluster.run(Close(OLD, LATER_MOVER)).outcome is Outcome.SUCCEEDED
    behind = cluster.run(Close(OLD, MOVER))
    assert (behind.outcome, behind.fenced_by) == (Outcome.FENCED, LATER_MOVER)
    assert cluster.run(Move(NEW, Ballot(3, "c"))).outcome is Outcome.SUCCEEDED
    after = Configuration(2, dict.fromkeys(["m2", "m3"]), Configuration(1, NEW.members))
    assert cluster.run(Move(after, MOVER)).outcome is Outcome.SUCCEEDED
    assert cluster.run(Move(NEW, MOVER)).outcome is Outcome.STALE
    assert cluster.run(ReadLatest(NEW)).outcome is Outcome.STALE
