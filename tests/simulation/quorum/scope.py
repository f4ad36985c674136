"""Every history of a few processes on a few members: an explorer over the pure module.

Processes follow scripts (claim, write, read, move). A state is what the members hold, where every
process stands, and what an order of the calls may still look like (``Order``). From each state all
that can happen next happens:

- a process begins its next operation;
- a request of the round under way reaches a member, and the answer comes back;
- a reader or mover gives up on a member (others may wait for ever: their call then never ends);
- any request that was ever sent reaches a member, late, or again, and the answer is lost. A scope
  may bound how often (``late_max``), or not.

So messages are lost, delayed, reordered and repeated in every possible way. A reply that is late
adds nothing: it is a later delivery of its request, or a lost reply. States that only differ in the
names of members are one.

Everything is interned and transitions are remembered by number, so a step costs some look-ups.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from typing import Any, Generic, TypeVar

from dagster_jet.store.register import (
    AcceptorState,
    Ballot,
    Configuration,
    Install,
    Move,
    Operation,
    Outcome,
    Promise,
    Read,
    Reply,
    ReplyStatus,
    Request,
    Seal,
)

from .mutants import Cast

K = TypeVar("K", bound=Hashable)


class Interned(Generic[K]):
    """Values by number, numbers by value."""

    def __init__(self) -> None:
        self.values: list[K] = []
        self._numbers: dict[K, int] = {}

    def __call__(self, value: K) -> int:
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


# --- the judge --------------------------------------------------------------------------------

DEAD = "can no longer take effect"
DONE = "has taken effect"
OPEN = "has not taken effect"


@dataclass(frozen=True)
class Begin:
    who: int
    kind: str
    value: bytes | None = None
    ballot: int = 0


@dataclass(frozen=True)
class End:
    who: int
    value: bytes | None = None


@dataclass(frozen=True)
class Pending:
    """An operation without an end; ``result`` of a read that has taken place: what it saw."""

    kind: str
    ballot: int
    value: bytes | None
    state: str = OPEN
    result: bytes | None = None


@dataclass(frozen=True)
class Order:
    """All that a linearization of the history so far may look like.

    Attributes:
        worlds: (value, operations under way by process); several, since an operation may have
            taken effect already or not.
        claimed: the highest ballot number whose claim has ended.
    """

    worlds: frozenset[tuple[bytes | None, frozenset[tuple[int, Pending]]]]
    claimed: int = 0

    def after(self, event: Begin | End) -> Order | None:
        """Return the order after a call or an answer; None: no linearization explains it."""
        return self._begun(event) if isinstance(event, Begin) else self._ended(event)

    def _begun(self, event: Begin) -> Order:
        fenced = event.kind == "write" and event.ballot < self.claimed
        pending = Pending(event.kind, event.ballot, event.value, DEAD if fenced else OPEN)
        worlds = {
            (
                value,
                frozenset(
                    {*((w, p) for w, p in under_way if w != event.who), (event.who, pending)}
                ),
            )
            for value, under_way in self.worlds
        }
        return Order(_closure(worlds), self.claimed)

    def _ended(self, event: End) -> Order | None:
        worlds = set()
        claimed = self.claimed
        for value, under_way in self.worlds:
            mine = dict(under_way)[event.who]
            if mine.state != DONE or (mine.kind != "write" and mine.result != event.value):
                continue
            rest = {(who, p) for who, p in under_way if who != event.who}
            if mine.kind == "claim":
                claimed = max(claimed, mine.ballot)
            worlds.add((value, frozenset(rest)))
        return Order(frozenset(worlds), claimed) if worlds else None


def _shut_out(pending: Pending, ballot: int) -> Pending:
    if pending.kind != "write" or pending.state != OPEN or pending.ballot > ballot:
        return pending
    return Pending(pending.kind, pending.ballot, pending.value, DEAD)


def _closure(worlds: set[Any]) -> frozenset[Any]:
    stack = list(worlds)
    while stack:
        value, under_way = stack.pop()
        for who, p in under_way:
            if p.state != OPEN:
                continue
            after = p.value if p.kind == "write" else value
            done = Pending(p.kind, p.ballot, p.value, DONE, None if p.kind == "write" else value)
            others = under_way - {(who, p)}
            if p.kind == "claim":
                others = frozenset((w, _shut_out(other, p.ballot)) for w, other in others)
            world = (after, others | {(who, done)})
            if world not in worlds:
                worlds.add(world)
                stack.append(world)
    return frozenset(worlds)


# --- processes --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """One operation of a script.

    Attributes:
        kind: claim, write, read or move.
        ballot: of a claim or a move; a write uses that of the claim before.
        value: of a write.
        configuration: whose members.
        has_looked: a mover that saw no new member installed before anything else happened. That
            is when movers can get into one another's way.
        owned: of a write at the beginning of a script: what was claimed before the history begins.
    """

    kind: str
    configuration: Configuration[None]
    ballot: Ballot | None = None
    value: bytes | None = None
    owned: AcceptorState | None = None
    has_looked: bool = False


@dataclass(frozen=True)
class Process:
    """State of a process: all of it in ``key``; ``operation`` is never changed."""

    key: tuple[Any, ...]
    script: int
    at: int
    owned: AcceptorState | None = field(compare=False)
    operation: Operation | None = field(compare=False)
    sent: frozenset[tuple[Request, tuple[int, ...]]] = field(compare=False)


class Violation(AssertionError):
    """A history that must not be, as a story."""


class Scope:
    """A small world, to be explored completely.

    Args:
        members: by number.
        scripts: what each process does.
        cast: the real ones, or a mutant.
        states: what the members hold at first.
        alike: members that can be exchanged for one another.
        late_max: how many requests may arrive with their answer lost, late, or again; None: any.
        begun: the processes whose first operation was called before anything else.
    """

    def __init__(
        self,
        members: Sequence[int],
        scripts: Sequence[Sequence[Step]],
        cast: Cast | None = None,
        states: Sequence[AcceptorState] | None = None,
        alike: Sequence[Sequence[int]] = (),
        late_max: int | None = None,
        begun: Sequence[int] = (),
    ) -> None:
        self.members, self.scripts, self.cast = tuple(members), scripts, cast or Cast()
        self.late_max = late_max
        self.states: Interned[AcceptorState] = Interned()
        self.requests: Interned[Request] = Interned()
        self.replies: Interned[Reply] = Interned()
        self.processes: Interned[Process] = Interned()
        self.orders: Interned[Order] = Interned()
        self._stepped: dict[tuple[int, int], tuple[int, int]] = {}
        self._moved: dict[Any, tuple[int, tuple[Begin | End, ...]]] = {}
        self._ordered: dict[Any, int] = {}
        self._renamed: dict[tuple[int, tuple[int, ...]], int] = {}
        self._waiting: dict[int, tuple[int, tuple[int, ...], bool] | None] = {}
        self._installs: set[int] = set()
        self._sent: dict[int, tuple[tuple[int, tuple[int, ...]], ...]] = {}
        self._agreeing: dict[tuple[int, int], bool] = {}
        self._renamings = _renamings(self.members, alike)
        first = states or [AcceptorState()] * len(self.members)
        self.start = (
            tuple(self.states(state) for state in first),
            tuple(
                self.processes(_idle(script, 0, None, frozenset()))
                for script in range(len(scripts))
            ),
            self.orders(Order(frozenset({(None, frozenset())}))),
            0,
        )
        for at in begun:
            self.start = self._advanced(self.start, at, (self.start[1][at], "begins"), self._begun)
        self.transitions = 0

    def explore(self, states_max: int | None = None) -> int:
        """Visit every state once, deepest first; return how many there are.

        Args:
            states_max: stop there; for scopes that are explored completely elsewhere.

        Raises:
            Violation: with what led to it.
        """
        start = self._canonical(self.start)
        visited = {start}
        path: list[tuple[str, Iterator[tuple[Any, Any]]]] = [("", self._next(start))]
        try:
            while path:
                found = next(path[-1][1], None)
                if found is None:
                    path.pop()
                    continue
                event, state = found
                state = self._canonical(state)
                self.transitions += 1
                if state in visited:
                    continue
                visited.add(state)
                if states_max is not None and len(visited) >= states_max:
                    break
                path.append((event, self._next(state)))
        except Violation as violation:
            story = [self._told(event) for event, _ in path[1:]]
            raise Violation("\n".join([str(violation), *story])) from None
        return len(visited)

    def _next(self, state: Any) -> Iterator[tuple[Any, Any]]:
        acceptors, processes, _order, late = state
        requests: set[tuple[int, int]] = set()
        for at, process in enumerate(processes):
            round_ = self._round(process)
            if round_ is None:
                if self._has_more(process):
                    event = (process, "begins")
                    yield event, self._advanced(state, at, event, self._begun)
            else:
                request, waiting, may_give_up = round_
                for member in waiting:
                    new, reply = self._step(acceptors[member], request)
                    if may_give_up and self.replies.values[reply].status is not ReplyStatus.GRANTED:
                        continue  # it does not help to hear this: as if there were no answer
                    there = self._with_acceptor(state, member, new)
                    event = (process, "hears", member, reply)
                    yield event, self._advanced(there, at, event, self._heard)
                    if may_give_up:
                        event = (process, "gives up", member)
                        yield event, self._advanced(state, at, event, self._given_up)
            for sent, asked in self._requests_of(process):
                requests.update((sent, member) for member in asked)
        for request, member in sorted(requests):
            counts = int(self.late_max is not None and request not in self._installs)
            if counts and late == self.late_max:
                continue
            new, _ = self._step(acceptors[member], request)
            if new != acceptors[member]:
                a, p, o, _ = self._with_acceptor(state, member, new)
                yield ("late", request, member), (a, p, o, late + counts)

    # --- members ------------------------------------------------------------------------------

    def _step(self, acceptor: int, request: int) -> tuple[int, int]:
        known = self._stepped.get((acceptor, request))
        if known is None:
            new, reply = self.cast.step(
                self.states.values[acceptor], self.requests.values[request], 0, ""
            )
            # Nobody comes back older here; histories that differ in counts only are one.
            new = replace(new, changes=0, known_changes=())
            reply = replace(reply, state=replace(reply.state, changes=0, known_changes=()))
            known = self._stepped[acceptor, request] = (self.states(new), self.replies(reply))
        return known

    def _with_acceptor(self, state: Any, member: int, new: int) -> Any:
        acceptors, processes, order, late = state
        if acceptors[member] == new:
            return state
        for other in acceptors:
            if not self._agree(new, other):
                raise Violation(f"two values under {self.states.values[new].place}")
        return ((*acceptors[:member], new, *acceptors[member + 1 :]), processes, order, late)

    def _agree(self, one: int, other: int) -> bool:
        known = self._agreeing.get((one, other))
        if known is None:
            a, b = self.states.values[one], self.states.values[other]
            known = self._agreeing[one, other] = a.place != b.place or a.value == b.value
        return known

    # --- processes ----------------------------------------------------------------------------

    def _advanced(self, state: Any, at: int, event: Any, move: Callable[..., Any]) -> Any:
        acceptors, processes, order, late = state
        known = self._moved.get(event)
        if known is None:
            process = self.processes.values[event[0]]
            new, calls = move(process, *event[2:])
            known = self._moved[event] = (self.processes(new), calls)
        moved, calls = known
        for call in calls:
            order = self._order_after(order, call)
        return (acceptors, (*processes[:at], moved, *processes[at + 1 :]), order, late)

    def _order_after(self, order: int, call: Begin | End) -> int:
        known = self._ordered.get((order, call))
        if known is None:
            after = self.orders.values[order].after(call)
            if after is None:
                raise Violation(f"not linearizable: {call}")
            known = self._ordered[order, call] = self.orders(after)
        return known

    def _begun(self, process: Process) -> tuple[Process, tuple[Begin | End, ...]]:
        step = self.scripts[process.script][process.at]
        operation: Operation
        ballot = 0
        if step.kind == "claim":
            assert step.ballot is not None
            operation, ballot = self.cast.claim(step.configuration, step.ballot), step.ballot.number
        elif step.kind == "write":
            owned = step.owned or process.owned
            assert owned is not None
            assert step.value is not None
            ballot = owned.promised.number
            operation = self.cast.write(step.configuration, owned, step.value)
        elif step.kind == "read":
            operation = self.cast.read(step.configuration)
        else:
            assert step.ballot is not None
            operation = self.cast.move(step.configuration, step.ballot)
            for member in step.configuration.members if step.has_looked else ():
                request = operation.current.request
                operation.receive(member, Reply(request, ReplyStatus.UNINSTALLED, AcceptorState()))
        call = Begin(process.script, step.kind, step.value, ballot)
        calls = () if step.kind == "move" else (call,)
        return _running(process, operation), calls

    def _heard(
        self, process: Process, member: int, reply: int
    ) -> tuple[Process, tuple[Begin | End, ...]]:
        operation = _copied(process.operation)
        operation.receive(member, self.replies.values[reply])
        return self._after(process, operation)

    def _given_up(self, process: Process, member: int) -> tuple[Process, tuple[Begin | End, ...]]:
        operation = _copied(process.operation)
        operation.no_answer(member, may_have_applied=True)
        return self._after(process, operation)

    def _after(
        self, process: Process, operation: Operation
    ) -> tuple[Process, tuple[Begin | End, ...]]:
        if isinstance(operation.current.request, Install):
            # Nobody waits for the end of a move: what it has sent may arrive or not.
            sent = process.sent | {(operation.current.request, operation.current.members)}
            return _idle(process.script, process.at + 1, process.owned, sent), ()
        if operation.outcome is None:
            return _running(process, operation), ()
        step = self.scripts[process.script][process.at]
        if operation.outcome is not Outcome.SUCCEEDED:
            over = len(self.scripts[process.script])
            return _idle(process.script, over, None, process.sent), ()
        owned = operation.state if step.kind in ("claim", "write") else process.owned
        after = _idle(process.script, process.at + 1, owned, process.sent)
        if step.kind == "move":
            return after, ()
        return after, (
            End(process.script, None if step.kind == "write" else operation.state.value),
        )

    def _has_more(self, process: int) -> bool:
        standing = self.processes.values[process]
        return standing.at < len(self.scripts[standing.script])

    def _round(self, process: int) -> tuple[int, tuple[int, ...], bool] | None:
        if process not in self._waiting:
            operation = self.processes.values[process].operation
            self._waiting[process] = None
            if operation is not None:
                now = operation.current
                self._waiting[process] = (
                    self.requests(now.request),
                    tuple(now.waiting),
                    isinstance(now.request, Read),
                )
        return self._waiting[process]

    def _requests_of(self, process: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        if process not in self._sent:
            sent = self.processes.values[process].sent
            self._installs.update(self.requests(r) for r, _ in sent if isinstance(r, Install))
            self._sent[process] = tuple(
                (self.requests(request), asked)
                for request, asked in sent
                if not isinstance(request, Read)
            )
        return self._sent[process]

    # --- names --------------------------------------------------------------------------------

    def _canonical(self, state: Any) -> Any:
        """Return the state under the names that make its number the smallest."""
        if len(self._renamings) == 1:
            return state
        acceptors, processes, order, late = state
        least = min(tuple(acceptors[m] for m in names) for names in self._renamings)
        best = None
        for names in self._renamings:
            if tuple(acceptors[m] for m in names) == least:
                renamed = tuple(self._rename(process, names) for process in processes)
                if best is None or renamed < best:
                    best = renamed
        return (least, best, order, late)

    def _rename(self, process: int, names: tuple[int, ...]) -> int:
        """``names[new]`` is the old name."""
        known = self._renamed.get((process, names))
        if known is None:
            standing = self.processes.values[process]
            if standing.operation is None:
                known = process
            else:
                operation = _copied(standing.operation)
                now = operation.current
                new_of = {old: new for new, old in enumerate(names)}
                for told in (now.answers, now.states, now.silent):
                    renamed = {new_of[old]: what for old, what in told.items()}
                    told.clear()
                    told.update(renamed)
                known = self.processes(_running(standing, operation))
            self._renamed[process, names] = known
        return known

    def _told(self, event: Any) -> str:
        if event[0] == "late":
            return f"member {event[2]} receives {self.requests.values[event[1]]}, unanswered"
        process = self.processes.values[event[0]]
        text = f"process {process.script}, step {process.at}, {event[1]}"
        if event[1] == "hears":
            reply = self.replies.values[event[3]]
            text += f" from {event[2]}: {reply.status.value}, {reply.request} -> {reply.state}"
        elif event[1] == "gives up":
            text += f" on {event[2]}"
        return text


def _renamings(
    members: tuple[int, ...], alike: Sequence[Sequence[int]]
) -> tuple[tuple[int, ...], ...]:
    found = []
    for orders in product(*(permutations(group) for group in alike)):
        names = list(members)
        for group, order in zip(alike, orders, strict=True):
            for new, old in zip(group, order, strict=True):
                names[new] = old
        found.append(tuple(names))
    return tuple(found)


def _idle(script: int, at: int, owned: AcceptorState | None, sent: frozenset[Any]) -> Process:
    return Process((script, at, owned, sent), script, at, owned, None, sent)


def _running(process: Process, operation: Operation) -> Process:
    now = operation.current
    sent = process.sent | {(now.request, now.members)}
    key = (
        process.script,
        process.at,
        process.owned,
        sent,
        type(now).__name__,
        now.request,
        frozenset(now.silent),
        *_what_matters(operation),
    )
    return Process(key, process.script, process.at, process.owned, operation, sent)


def _what_matters(operation: Operation) -> tuple[Any, ...]:
    """Return what can still make a difference of what has been heard: fewer states to visit."""
    now = operation.current
    heard = frozenset(now.answers.items())
    if isinstance(now.request, Seal) and isinstance(operation, Move):
        return heard, operation._last_state() if now.granted else None
    if isinstance(now.request, Promise | Read):
        newest = max(((s.place, s.promised) for s in now.granted.values()), default=None)
        first = {s.place for s in now.granted.values() if newest and s.place == newest[0]}
        state = {s.value for s in now.granted.values() if s.place in first}
        holders = frozenset(m for m, s in now.granted.items() if s.place in first)
        promised = newest if isinstance(operation, Move) else None
        return heard, frozenset(first), frozenset(state), holders, promised
    return heard, operation.state


def _copied(operation: Operation | None) -> Operation:
    assert operation is not None
    copied = copy.copy(operation)
    now = copied.current = copy.copy(operation.current)
    now.answers, now.states, now.silent = dict(now.answers), dict(now.states), dict(now.silent)
    return copied
