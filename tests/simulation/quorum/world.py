"""One seed, one history: what owners, readers and movers see of a register in a bad network.

The seed decides the order of all events: requests and replies are delayed, repeated, reordered and
lost; members fall silent, come back, come back older (as at a moment before something that all
others know of them), or lose their disk and come back in a later configuration as somebody else;
owners, readers and movers die in the middle. Meanwhile the members change again and again. Who the
members are is known to everybody who asks (``Authority``); many do not ask for long.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from dagster_jet.store.register import (
    AcceptorState,
    Ballot,
    ChangeCounts,
    ClaimBallot,
    Configuration,
    Inquire,
    Operation,
    Outcome,
    Request,
    Write,
)

from .acceptors import Acceptor, Call
from .history import Recorded, is_linearizable, told
from .mutants import Cast

RECORDS_MAX = 45


class Violation(AssertionError):
    """The register did what it must not."""


@dataclass
class Process:
    """Process that works with the members as they were when it opened the store.

    Attributes:
        again: begins the operation again, once the register has been moved.
        wrote: an earlier attempt of this write may have written.
        heard: what it knows of the members' changes.
    """

    name: str
    plan: str
    configuration: Configuration[None]
    operation: Operation | None = None
    record: Recorded | None = None
    owned: AcceptorState | None = None
    again: Callable[[], Operation] | None = None
    wrote: bool = False
    asked: set[tuple[str, Request]] = field(default_factory=set)
    heard: dict[int, ChangeCounts] = field(default_factory=dict)


@dataclass
class Sweep:
    """Process that moves all registers (there is one) and then makes the configuration stable."""

    configuration: Configuration[None]
    raised: set[str] = field(default_factory=set)
    lists: dict[str, bool] = field(default_factory=dict)
    mover: Process | None = None


class World:
    """All of it. ``seen`` counts what has happened."""

    def __init__(self, seed: int, cast: Cast) -> None:
        self.random = random.Random(seed)
        self.cast = cast
        self.seen: Counter[str] = Counter()
        pick = self.random.choice
        self.acceptors = {letter: Acceptor() for letter in "abcdefg"}
        size = pick([1, 2, 3, 3, 3, 4, 5])
        self.now = 0
        self.members: Configuration[None] = _of(0, self.random.sample("abcdefg", size))
        self.calls: list[Call] = []
        self.processes: list[Process] = []
        self.sweeps: list[Sweep] = []
        self.history: list[Recorded] = []
        self.claimed: list[tuple[int, Ballot]] = []
        self.written: dict[tuple[Ballot, int], bytes | None] = {}
        self.values = 0
        self.is_calm = False
        self.loss = pick([0.0, 0.05, 0.2])
        self.repetition = pick([0.0, 0.1, 0.3])
        self.patience = pick([0.01, 0.03, 0.1])
        self.unrest = pick([0.0, 0.1, 0.5])
        self.haste = pick([0.3, 0.8, 1.0])  # how often a member does all its steps at once
        self.change = pick([0.0, 0.004, 0.02, 0.05])
        self.late = pick([0.0, 0.3, 0.9])  # how often a process goes on with old members
        self.older = pick([0.0, 0.02, 0.1])

    # --- the run ------------------------------------------------------------------------------

    def run(self, steps: int = 700) -> None:
        events: list[Callable[[], object]] = [
            self.deliver,
            self.begin,
            self.give_up,
            self.crash,
            self.switch_member,
            self.change_members,
            self.sweep,
            self.return_older,
        ]
        weights = [0.75, 0.14, self.patience, 0.01, 0.02, self.change, 8 * self.change, self.older]
        for event in self.random.choices(events, weights, k=steps):
            self.now += 1
            event()

    def judge(self) -> None:
        if not is_linearizable(self.history):
            raise Violation("not linearizable:\n" + told(self.history))

    def calm_down(self) -> None:
        """Everybody is gone, all members answer: the next one must be served."""
        self.calls, self.processes, self.sweeps = [], [], []
        self.is_calm, self.loss, self.repetition, self.haste = True, 0.0, 0.0, 1.0
        for acceptor in self.acceptors.values():
            acceptor.is_up = True
        if self.members.previous is not None:
            self.sweep()
            for _ in range(400):
                if not self.sweeps:
                    break
                self.sweep_on(self.sweeps[0])
                self.run_dry()
            if not self.members.is_stable:
                raise Violation("a change of the members cannot be finished")
        self.processes = [last] = [Process("last", "own", self.members)]
        for _ in range(2):
            self.now += 1
            self.claim_or_write(last)
            self.run_dry()
            if last.operation is not None or last.owned is None or self.processes != [last]:
                raise Violation("a quiet register does not serve")

    def run_dry(self) -> None:
        """Deliver all there is; who is silent then has lost its disk, and is given up."""
        while True:
            while self.calls:
                self.now += 1
                self.deliver()
            if not self.give_up():
                return

    # --- operations ---------------------------------------------------------------------------

    def begin(self) -> None:
        idle = [process for process in self.processes if process.operation is None]
        if len(self.processes) < 6 and (not idle or self.random.random() < 0.3):
            name = self.random.choice("abc")  # names are shared: that is what attempts are for
            plan = self.random.choice(["own", "own", "read"])
            idle = [Process(name, plan, self.members)]
            self.processes.extend(idle)
        if not idle or len(self.history) > RECORDS_MAX:
            return
        if self.random.random() < self.unrest:
            # The next operation meets another set of members: this is how values end on few.
            letters = list(self.members.members)
            few = (len(letters) - 1) // 2 + (self.random.random() < 0.1)
            silent = self.random.sample(letters, self.random.randint(0, few))
            for letter, acceptor in self.acceptors.items():
                acceptor.is_up = letter not in silent
        owners = [process for process in idle if process.owned is not None]
        process = self.random.choice(owners if owners and self.random.random() < 0.6 else idle)
        if process.plan == "read":
            record = Recorded("read", None, self.now, who=process.name)
            self.start(
                process, lambda: self.cast.read(process.configuration, process.heard), record
            )
        else:
            self.claim_or_write(process)

    def claim_or_write(self, process: Process) -> None:
        if process.owned is None:
            record = Recorded("claim", None, self.now, who=process.name)
            self.start(process, lambda: self.new_claim(process), record)
            return
        self.values += 1
        value, owned = b"v%d" % self.values, process.owned
        record = Recorded("write", value, self.now, ballot=owned.promised, who=process.name)
        self.start(
            process,
            lambda: self.cast.write(process.configuration, owned, value, process.heard),
            record,
        )

    def new_claim(self, process: Process) -> ClaimBallot:
        known = max(acceptor.state.promised for acceptor in self.acceptors.values())
        step = 1 if self.is_calm else self.random.choice([0, 0, 1, 1, 2])
        number = max(1, known.number + step)
        same = (known.number, known.owner) == (number, process.name)
        attempt = known.attempt + self.random.choice([0, 1]) if same else 0
        nonce = f"{self.random.random()}"
        ballot = Ballot(number, process.name, attempt, nonce)
        found = self.look(process, process.configuration)
        return self.cast.claim(process.configuration, ballot, process.heard, found)

    def look(self, process: Process, where: Configuration[None]) -> list[AcceptorState]:
        """Ask some of those that answer, at one moment, as whoever claims or moves does first."""
        operation = Inquire(where, process.heard)
        up = [m for m in where.members if self.is_there(self.acceptors[m], where.number)]
        few = min(len(up), len(where.members) // 2 + 1)
        for member in self.random.sample(up, self.random.randint(few, len(up))):
            acceptor = self.acceptors[member]
            request = operation.current.request
            _, reply = self.cast.step(acceptor.state, request, acceptor.floor, member)
            operation.receive(member, reply)
        process.heard = operation.heard
        return list(operation.current.granted.values())

    @staticmethod
    def is_there(acceptor: Acceptor, configuration: int) -> bool:
        return acceptor.is_up and configuration >= acceptor.known_from

    def start(self, process: Process, again: Callable[[], Operation], record: Recorded) -> None:
        process.again, process.record, process.wrote = again, record, False
        self.history.append(record)
        self.put(process, again())

    def put(self, process: Process, operation: Operation) -> None:
        process.operation, process.asked = operation, set()
        self.send(process)

    def send(self, process: Process) -> None:
        operation = process.operation
        assert operation is not None
        request = operation.current.request
        for member in operation.current.waiting:
            if (member, request) not in process.asked:
                process.asked.add((member, request))
                self.calls.append(Call(operation, member, request))

    def move(self, process: Process, above: Ballot | None = None) -> None:
        number = self.random.choice([1, 1, 2]) if above is None else above.number + 1
        mover = Ballot(number, f"{self.random.random()}")
        assert process.configuration.previous is not None
        self.look(process, process.configuration.previous)
        self.put(process, self.cast.move(process.configuration, mover, process.heard))

    # --- the network --------------------------------------------------------------------------

    def deliver(self) -> None:
        if not self.calls:
            return
        at = self.random.randrange(len(self.calls))
        call = self.calls[at]
        if self.random.random() < self.repetition:
            call = replace(call)
        else:
            self.calls[at] = self.calls[-1]
            self.calls.pop()
        if self.random.random() < self.loss:
            return
        if call.reply is None:
            self.deliver_request(call)
            return
        for process in (*self.processes, *(s.mover for s in self.sweeps if s.mover is not None)):
            if process.operation is call.operation:
                call.operation.receive(call.member, call.reply)
                self.finish(process)

    def deliver_request(self, call: Call) -> None:
        acceptor = self.acceptors[call.member]
        while self.is_there(acceptor, call.request.configuration):
            before = acceptor.state
            call.reply = acceptor.step(call, self.cast)
            if acceptor.state is not before and acceptor.state.accepted_ballot is not None:
                state = acceptor.state
                if self.written.setdefault(state.place, state.value) != state.value:
                    raise Violation(f"two values under {state.place}")
            if call.reply is not None or self.random.random() >= self.haste:
                self.calls.append(call)
                return

    def give_up(self) -> bool:
        movers = [sweep.mover for sweep in self.sweeps if sweep.mover is not None]
        waiting = [
            p for p in (*self.processes, *movers) if p.operation and p.operation.current.waiting
        ]
        if not waiting:
            return False
        process = self.random.choice(waiting)
        operation = process.operation
        assert operation is not None
        members = operation.current.waiting
        down = [m for m in members if not self.acceptors[m].is_up]
        member = self.random.choice(down or members)
        asked = [
            c
            for c in self.calls
            if c.operation is operation and c.member == member and c.reply is None
        ]
        may_have_applied = True
        if asked and self.repetition == 0 and self.random.random() < 0.5:
            # It is known that the request never left: this is what UNAVAILABLE is about.
            self.calls = [call for call in self.calls if call not in asked]
            may_have_applied = any(call.seen is not None for call in asked)
        operation.no_answer(member, may_have_applied=may_have_applied)
        self.finish(process)
        return True

    # --- what goes wrong ----------------------------------------------------------------------

    def crash(self) -> None:
        if self.processes and self.random.random() < 0.7:
            self.end(self.random.choice(self.processes))
        elif self.sweeps:
            self.sweeps.remove(self.random.choice(self.sweeps))
        else:
            self.lose_disk()

    def end(self, process: Process) -> None:
        self.processes.remove(process)
        self.leave_open(process)

    def leave_open(self, process: Process) -> None:
        record = process.record
        if record is not None and record.kind != "write":
            self.history = [r for r in self.history if r is not record]
        process.record = process.operation = None

    def switch_member(self) -> None:
        acceptor = self.acceptors[self.random.choice(list(self.acceptors))]
        acceptor.is_up = not acceptor.is_up

    def lose_disk(self) -> None:
        """One at most in every configuration that still counts, of at least three members."""
        letter = self.random.choice(list(self.acceptors))
        for configuration in (self.members, self.members.previous):
            if configuration is not None and not self.may_fail(letter, configuration):
                return
        self.acceptors[letter].wipe(self.members.number)
        self.seen["a disk was lost"] += 1
        if letter in self.members.members:
            self.seen["a member's disk was lost"] += 1

    def may_fail(self, letter: str, configuration: Configuration[None]) -> bool:
        """Whether no other member of it has lost or forgotten anything yet."""
        if letter not in configuration.members:
            return True
        return len(configuration.members) >= 3 and not any(
            self.acceptors[m].known_from > configuration.number
            or self.acceptors[m].older_in >= configuration.number
            for m in configuration.members
        )

    def return_older(self) -> None:
        """A member is restored from a copy, or a replica takes its place. Whoever talked to it is
        cut off. All others know of something that it forgets: else nobody could tell."""
        if not self.members.is_stable:
            return
        letter = self.random.choice(list(self.members.members))
        acceptor, number = self.acceptors[letter], self.members.number
        others = [self.acceptors[m].state for m in self.members.members if m != letter]
        if not self.may_fail(letter, self.members) or any(
            other.configuration != number for other in others
        ):
            return
        known = min(dict(other.known_changes).get(letter, 0) for other in others)
        older = [at for at, (state, *_) in enumerate(acceptor.past) if state.changes < known]
        if older:
            acceptor.come_back_older(self.random.choice(older), number)
            self.calls = [c for c in self.calls if c.member != letter or c.reply is not None]
            self.seen["a member came back older"] += 1

    # --- changes of the members ---------------------------------------------------------------

    def change_members(self) -> None:
        if not self.members.is_stable or self.members.number > 12:
            return
        old = list(self.members.members)
        others = [letter for letter in self.acceptors if letter not in old]
        kind = self.random.choice(["join", "leave", "replace", "replace", "any"])
        new = list(old)
        if kind in ("leave", "replace") and len(new) > (kind == "leave"):
            new.remove(self.random.choice(new))
        if kind in ("join", "replace") and others:
            new.append(self.random.choice(others))
        if kind == "any":
            new = self.random.sample(list(self.acceptors), self.random.randint(1, 5))
        if not new:
            return
        number = self.members.number + 1
        for letter in new:
            # From now on it is known again, by the identity it has now.
            assert self.acceptors[letter].known_from <= number
        self.members = _of(number, new, self.members)
        self.seen[f"members: {kind}"] += 1

    def sweep(self) -> None:
        if self.members.previous is not None and (not self.sweeps or self.random.random() < 0.05):
            self.sweeps.append(Sweep(self.members))
        if self.sweeps:
            self.sweep_on(self.random.choice(self.sweeps))

    def sweep_on(self, sweep: Sweep) -> None:
        """One step: raise a floor, list a member's registers, or move what was listed."""
        previous = sweep.configuration.previous
        assert previous is not None
        majority = len(previous.members) // 2 + 1
        if sweep.mover is not None:
            if sweep.mover.operation is None:
                self.move(sweep.mover)
        elif len(sweep.lists) >= majority and self.random.random() < 0.5:
            if any(sweep.lists.values()):
                sweep.mover = Process("sweep", "move", sweep.configuration)
                self.move(sweep.mover)
            else:
                self.seen["there was nothing to move"] += 1
                self.make_stable(sweep)
        else:
            letter = self.random.choice(list(previous.members))
            acceptor = self.acceptors[letter]
            if not acceptor.is_up or acceptor.known_from > previous.number:
                return
            first, second = self.cast.listing(
                lambda: self.raise_floor(sweep, letter), lambda: self.list_on(sweep, letter)
            )
            if letter not in sweep.raised:
                sweep.raised.add(letter)
                first()
            else:
                sweep.lists.setdefault(letter, False)
                second()

    def raise_floor(self, sweep: Sweep, letter: str) -> None:
        acceptor = self.acceptors[letter]
        acceptor.floor = max(acceptor.floor, sweep.configuration.number)

    def list_on(self, sweep: Sweep, letter: str) -> None:
        sweep.lists[letter] = self.acceptors[letter].listed

    def make_stable(self, sweep: Sweep) -> None:
        if self.members.number == sweep.configuration.number:
            self.members = replace(self.members, previous=None)
            self.seen["a change was finished"] += 1
        self.sweeps.remove(sweep)

    # --- what an operation comes to -----------------------------------------------------------

    def finish(self, process: Process) -> None:
        operation = process.operation
        assert operation is not None
        if operation.outcome is None:
            self.send(process)
            return
        process.operation, process.heard = None, operation.heard
        self.seen[f"{type(operation).__name__}: {operation.outcome.value}"] += 1
        if isinstance(operation, self.cast.move):
            self.moved(process, operation)
        elif operation.outcome is Outcome.UNINSTALLED:
            process.wrote = process.wrote or operation.current.may_have_written
            self.move(process)
        elif operation.outcome is Outcome.DOUBTED:
            process.wrote = process.wrote or operation.current.may_have_written
            assert process.again is not None
            self.put(process, process.again())
        elif isinstance(operation, Write):
            self.wrote(process, operation)
        else:
            self.answered(process, operation)
        if operation.outcome is Outcome.STALE and self.random.random() >= self.late:
            process.configuration, process.owned = self.members, None

    def moved(self, process: Process, operation: Operation) -> None:
        sweep = next((s for s in self.sweeps if s.mover is process), None)
        if operation.outcome is Outcome.DOUBTED:
            self.move(process)
        elif operation.outcome is Outcome.FENCED:
            self.move(process, operation.fenced_by)
        elif sweep is not None:
            if operation.outcome is Outcome.SUCCEEDED:
                self.make_stable(sweep)
            elif operation.outcome is Outcome.STALE:
                self.sweeps.remove(sweep)
        elif operation.outcome is Outcome.SUCCEEDED:
            assert process.again is not None
            self.put(process, process.again())
        elif process.record is None or process.record.kind != "write":
            self.leave_open(process)
        elif process.wrote:
            self.end(process)
        else:
            self.forget(process)

    def forget(self, process: Process) -> None:
        """Removes an operation that certainly did not happen: nobody may ever see it."""
        self.history = [r for r in self.history if r is not process.record]
        process.record = None

    def wrote(self, process: Process, operation: Write) -> None:
        record = process.record
        assert record is not None
        assert process.owned is not None
        if operation.outcome is Outcome.SUCCEEDED:
            ballot = process.owned.promised
            for when, claim in self.claimed:
                if when < record.begin and not ballot.supersedes(claim):
                    raise Violation(f"a fenced write succeeded: {ballot} after {claim}")
            record.end, process.record = self.now, None
            process.owned = operation.state
        elif operation.outcome is Outcome.UNAVAILABLE and not process.wrote:
            self.forget(process)
        elif operation.outcome is Outcome.STALE and self.random.random() < 0.5:
            self.leave_open(process)  # not dead: it opens the store again, or tries once more
            process.owned = None
        else:
            self.end(process)

    def answered(self, process: Process, operation: Operation) -> None:
        record = process.record
        assert record is not None
        if operation.outcome is not Outcome.SUCCEEDED:
            self.leave_open(process)
            return
        record.value, record.end, process.record = operation.state.value, self.now, None
        if isinstance(operation, ClaimBallot):
            process.owned, record.ballot = operation.state, operation.ballot
            self.claimed.append((self.now, operation.ballot))
            winners = {b.owner for _, b in self.claimed if b.number == operation.ballot.number}
            if len(winners) > 1:
                raise Violation(f"two owners won number {operation.ballot.number}")


def _of(
    number: int, letters: list[str], previous: Configuration[None] | None = None
) -> Configuration[None]:
    return Configuration(number, dict.fromkeys(letters), previous)


def play(seed: int, cast: Cast | None = None, **odds: float) -> World:
    """Run one history and judge it.

    Args:
        seed: of everything that is drawn.
        cast: the real ones, or a mutant in the place of one.
        odds: attributes of ``World`` that are given instead of drawn: where to look more closely.

    Raises:
        Violation: what went wrong, and the history.
    """
    world = World(seed, cast or Cast())
    vars(world).update(odds)
    world.run()
    for process in list(world.processes):
        world.leave_open(process)
    world.judge()
    world.calm_down()
    world.judge()
    return world
