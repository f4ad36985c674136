"""The register under everything a network may do, judged by a checker that knows nothing of it.

A seed decides the order of all events: requests and replies are delayed, repeated, reordered and
lost, members fall silent, owners and readers die in the middle. Every operation is recorded with
its begin and end, and the history must be linearizable: there must be one order of the operations,
within their begins and ends, in which a plain variable would have given the same answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from dagster_jet.store.register import (
    NO_BALLOT,
    Accept,
    AcceptorState,
    Ballot,
    Claim,
    Configuration,
    Operation,
    Outcome,
    Promise,
    Read,
    ReadLatest,
    Reply,
    Request,
    Verdict,
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
    assert reply.verdict is Verdict.FENCED
    assert reply.state.promised == TWO
    _, reply = step(state, Accept(ONE, 1, b"late"))
    assert reply.verdict is Verdict.FENCED


def test_a_promise_of_one_number_goes_to_the_first_owner_that_asks() -> None:
    state, _ = step(AcceptorState(), Promise(Ballot(1, "a")))
    for later in (Ballot(1, "b"), Ballot(1, "A")):
        assert step(state, Promise(later))[1].verdict is Verdict.FENCED
    assert step(state, Promise(Ballot(1, "a", attempt=1)))[1].verdict is Verdict.GRANTED


def test_repeating_a_request_changes_nothing() -> None:
    for requests in ([Promise(ONE)], [Promise(ONE), Accept(ONE, 1, b"v")]):
        state, reply = step(AcceptorState(), *requests)
        assert (state, reply) == step(state, requests[-1])


def test_an_overtaken_accept_of_the_same_owner_does_not_go_back() -> None:
    state, _ = step(AcceptorState(), Accept(ONE, 2, b"second"))
    after, reply = step(state, Accept(ONE, 1, b"first"))
    assert reply.verdict is Verdict.FENCED
    assert after == state


def test_reading_promises_nothing() -> None:
    state, reply = step(AcceptorState(), Read())
    assert reply.verdict is Verdict.GRANTED
    assert state == AcceptorState()


@pytest.mark.parametrize(
    "state",
    [
        AcceptorState(),
        AcceptorState(promised=Ballot(3, "ö\n", 2, "ab")),
        AcceptorState(TWO, ONE, 7, b"\nvalue\n\x00"),
        AcceptorState(TWO, ONE, 7, b""),
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
        return self.run(Claim(everyone(self.states), ballot))

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


def test_a_write_on_a_minority_is_unknown_and_a_reader_that_sees_it_settles_it() -> None:
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


# --- the simulation ---------------------------------------------------------------------------


@dataclass
class Recorded:
    """One operation of the history; ``end`` None: it never ended, or its outcome is open."""

    kind: str
    value: bytes | None
    begin: int
    end: int | None = None


@dataclass
class Message:
    operation: Operation
    member: str
    request: Request
    reply: Reply | None = None


@dataclass
class Process:
    """An owner that claims and then writes, or a reader."""

    name: str
    plan: str
    operation: Operation | None = None
    record: Recorded | None = None
    owned: AcceptorState | None = None
    requested: set[tuple[str, Request]] = field(default_factory=set)


class Simulation:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        count = self.random.choice([1, 2, 3, 3, 3, 4, 5])
        self.states = {f"m{i}": AcceptorState() for i in range(count)}
        self.down: set[str] = set()
        self.network: list[Message] = []
        self.processes: list[Process] = []
        self.history: list[Recorded] = []
        self.now = 0
        self.values = 0
        self.claimed: list[tuple[int, Ballot]] = []
        self.written: dict[tuple[Ballot, int], bytes | None] = {}
        self.loss = self.random.choice([0.0, 0.05, 0.2])
        self.repetition = self.random.choice([0.0, 0.1, 0.3])
        self.patience = self.random.choice([0.02, 0.1, 0.3])
        self.unrest = self.random.choice([0.0, 0.1, 0.5])

    def run(self, steps: int = 700) -> None:
        for _ in range(steps):
            self.now += 1
            self.random.choices(
                [self.deliver, self.begin, self.give_up, self.crash, self.switch_member],
                [0.75, 0.14, self.patience, 0.01, 0.02],
            )[0]()

    def begin(self) -> None:
        idle = [process for process in self.processes if process.operation is None]
        if len(self.processes) < 5 and (not idle or self.random.random() < 0.3):
            name = self.random.choice("abc")  # names are shared: that is what attempts are for
            idle = [Process(name, self.random.choice(["own", "own", "read"]))]
            self.processes.extend(idle)
        if not idle or len(self.history) > 60:
            return
        if self.random.random() < self.unrest:
            # The next operation meets another set of members: this is how values end on few.
            silent = self.random.randrange(len(self.states) // 2 + 2)
            self.down = set(self.random.sample(sorted(self.states), min(silent, len(self.states))))
        owners = [process for process in idle if process.owned is not None]
        process = self.random.choice(owners if owners and self.random.random() < 0.6 else idle)
        if process.plan == "read":
            self.start(process, ReadLatest(everyone(self.states)), Recorded("read", None, self.now))
        elif process.owned is None:
            known = max(state.promised for state in self.states.values())
            number = max(1, known.number + self.random.choice([0, 0, 1, 1, 2]))
            same = (known.number, known.owner) == (number, process.name)
            attempt = known.attempt + self.random.choice([0, 1]) if same else 0
            ballot = Ballot(number, process.name, attempt, f"{self.random.random()}")
            self.start(
                process, Claim(everyone(self.states), ballot), Recorded("read", None, self.now)
            )
        else:
            self.values += 1
            value = b"v%d" % self.values
            record = Recorded("write", value, self.now)
            self.start(process, Write(everyone(self.states), process.owned, value), record)

    def start(self, process: Process, operation: Operation, record: Recorded) -> None:
        process.operation, process.record, process.requested = operation, record, set()
        self.history.append(record)
        self.send(process)

    def send(self, process: Process) -> None:
        operation = process.operation
        assert operation is not None
        for member in operation.current.waiting:
            request = operation.current.request
            if (member, request) not in process.requested:
                process.requested.add((member, request))
                self.network.append(Message(operation, member, request))

    def deliver(self) -> None:
        if not self.network:
            return
        at = self.random.randrange(len(self.network))
        message = self.network[at]
        if self.random.random() >= self.repetition:
            del self.network[at]
        if self.random.random() < self.loss:
            return
        if message.reply is None:
            if message.member in self.down:
                return
            state, reply = acceptor_step(self.states[message.member], message.request)
            self.states[message.member] = state
            if state.accepted_ballot is not None:
                told = self.written.setdefault(state.place, state.value)
                assert told == state.value, f"two values under {state.place}"
            answer = Message(message.operation, message.member, message.request, reply)
            self.network.append(answer)
            return
        for process in self.processes:
            if process.operation is message.operation:
                message.operation.receive(message.member, message.reply)
                self.finish(process)

    def give_up(self) -> None:
        waiting = [p for p in self.processes if p.operation and p.operation.current.waiting]
        if not waiting:
            return
        process = self.random.choice(waiting)
        assert process.operation is not None
        members = process.operation.current.waiting
        member = self.random.choice([m for m in members if m in self.down] or members)
        asked = [
            m
            for m in self.network
            if m.operation is process.operation and m.member == member and m.reply is None
        ]
        may_have_applied = True
        if asked and self.repetition == 0 and self.random.random() < 0.5:
            # It is known that the request never left: this is what UNAVAILABLE is about.
            for message in asked:
                self.network.remove(message)
            may_have_applied = False
        process.operation.no_answer(member, may_have_applied=may_have_applied)
        self.finish(process)

    def crash(self) -> None:
        if self.processes:
            self.processes.remove(self.random.choice(self.processes))

    def switch_member(self) -> None:
        member = self.random.choice(list(self.states))
        self.down ^= {member}

    def finish(self, process: Process) -> None:
        operation, record = process.operation, process.record
        assert operation is not None
        assert record is not None
        if operation.outcome is None:
            self.send(process)
            return
        process.operation = None
        succeeded = operation.outcome is Outcome.SUCCEEDED
        if isinstance(operation, Write):
            if succeeded:
                record.end = self.now
                fences = [b for when, b in self.claimed if when < record.begin]
                ballot = operation.state.promised
                assert all(ballot.supersedes(fence) for fence in fences), "a fenced write succeeded"
                process.owned = operation.state
            elif operation.outcome is Outcome.UNAVAILABLE:
                self.history.remove(record)  # it must never be seen
            else:
                self.processes.remove(process)
            return
        if not succeeded:
            self.history.remove(record)
            return
        record.value, record.end = operation.state.value, self.now
        if isinstance(operation, Claim):
            process.owned = operation.state
            self.claimed.append((self.now, operation.ballot))
            winners = {b.owner for _, b in self.claimed if b.number == operation.ballot.number}
            assert len(winners) == 1, "two owners won one number"


def is_linearizable(history: list[Recorded]) -> bool:
    """Search for an order that explains the history (Wing and Gong 1993, with a memo).

    Reads that never ended say nothing. Writes that never ended may come at any time or never.
    """
    operations = [r for r in history if r.kind == "write" or r.end is not None]
    forever = max((r.begin for r in operations), default=0) + 1_000_000
    ends = [forever if r.end is None else r.end for r in operations]
    must = frozenset(i for i, r in enumerate(operations) if r.end is not None)
    seen: set[tuple[frozenset[int], bytes | None]] = set()
    stack: list[tuple[frozenset[int], bytes | None]] = [(frozenset(), None)]
    while stack:
        done, value = stack.pop()
        if must <= done:
            return True
        if (done, value) in seen:
            continue
        seen.add((done, value))
        rest = [i for i in range(len(operations)) if i not in done]
        first_end = min(ends[i] for i in rest)
        for i in rest:
            operation = operations[i]
            if operation.begin > first_end:
                continue
            if operation.kind == "write":
                stack.append((done | {i}, operation.value))
            elif operation.value == value:
                stack.append((done | {i}, value))
    return False


def test_the_checker_rejects_a_value_that_goes_back() -> None:
    write_1, write_2 = Recorded("write", b"1", 0, 1), Recorded("write", b"2", 2, 9)
    new, old = Recorded("read", b"2", 3, 4), Recorded("read", b"1", 5, 6)
    assert is_linearizable([write_1, write_2, new])
    assert is_linearizable([write_1, Recorded("write", b"2", 2), Recorded("read", b"1", 5, 6)])
    assert not is_linearizable([write_1, write_2, new, old])


@pytest.mark.parametrize("block", range(10))
def test_every_schedule_is_linearizable(block: int) -> None:
    reads = writes = 0
    for seed in range(60 * block, 60 * (block + 1)):
        simulation = Simulation(seed)
        simulation.run()
        assert is_linearizable(simulation.history), f"seed {seed}"
        done = [record for record in simulation.history if record.end is not None]
        reads += sum(record.kind == "read" and record.value is not None for record in done)
        writes += sum(record.kind == "write" for record in done)
    assert min(reads, writes) > 50, "the schedules must not be empty"


def test_a_quiet_network_serves_everybody_in_the_end() -> None:
    for seed in range(20):
        simulation = Simulation(seed)
        simulation.run()
        cluster = Cluster(0)
        cluster.states = simulation.states
        number = max(state.promised for state in cluster.states.values()).number + 1
        claimed = cluster.claim(Ballot(number, "last"))
        assert claimed.outcome is Outcome.SUCCEEDED
        assert cluster.write(claimed.state, b"end").outcome is Outcome.SUCCEEDED
        assert cluster.read().state.value == b"end"
        assert claimed.state.promised > NO_BALLOT
