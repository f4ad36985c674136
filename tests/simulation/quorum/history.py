"""Calls and answers of a history, and its judge, which knows nothing of how a register works.

A history is *linearizable* (Herlihy and Wing 1990) when there is one order of the operations, each
at a moment between its begin and its end, in which a plain variable would have answered the same.

Two things are asked for beyond that. A claim shuts out all lower ballots: in the order, no write of
a lower ballot may follow it, not even one whose end nobody knows and which otherwise may take
effect late, or never. And what certainly was not written is not in the history at all, so nobody
may read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.store.register import NO_BALLOT, Ballot

FOREVER = 1 << 62


@dataclass
class Recorded:
    """One operation.

    Attributes:
        kind: "write", "read" or "claim", which reads.
        value: written, or read.
        begin: when it was called.
        end: when it was answered; None: never, or without telling.
        ballot: of a write or a claim.
        who: for the reader of a failed test.
    """

    kind: str
    value: bytes | None
    begin: int
    end: int | None = None
    ballot: Ballot = NO_BALLOT
    who: str = ""


def is_linearizable(history: list[Recorded]) -> bool:
    """Search for an order that explains the history (Wing and Gong 1993, with a memo).

    Reads without an end say nothing. Writes without an end may come late or never.
    """
    read = {r.value for r in history if r.kind != "write" and r.end is not None}
    # A write without an end that nobody has read need not have happened.
    operations = [
        r for r in history if r.end is not None or (r.kind == "write" and r.value in read)
    ]
    operations.sort(key=lambda r: r.begin)
    count = len(operations)
    must = sum(1 << i for i in range(count) if operations[i].end is not None)
    seen: set[tuple[int, bytes | None]] = set()
    stack: list[tuple[int, Ballot, bytes | None]] = [(0, NO_BALLOT, None)]  # done, claimed, value
    while stack:
        done, claimed, value = stack.pop()
        if done & must == must:
            return True
        if (done, value) in seen:
            continue
        seen.add((done, value))
        # The next one is among those that begin before any other has ended.
        first_end = FOREVER
        may_be_next = []
        for i in range((~done & (done + 1)).bit_length() - 1, count):
            operation = operations[i]
            if operation.begin > first_end:
                break
            if not done >> i & 1:
                may_be_next.append(i)
                first_end = min(first_end, FOREVER if operation.end is None else operation.end)
        for i in reversed(may_be_next):
            operation = operations[i]
            if operation.kind == "write":
                if operation.ballot >= claimed:
                    stack.append((done | 1 << i, claimed, operation.value))
            elif operation.value == value:
                stack.append((done | 1 << i, max(claimed, operation.ballot), value))
    return False


def told(history: list[Recorded]) -> str:
    """Return the history as a story, for the reader of a failed test."""
    return "\n".join(
        f"{r.begin:>6} to {'?' if r.end is None else r.end:>6} {r.kind:5} {r.value!r:8} "
        f"{r.ballot.number or ''} {r.who}"
        for r in sorted(history, key=lambda r: r.begin)
    )
