"""The quorum register: one linearizable value on all members, with an owner. Pure.

No I/O, no clock, no randomness: requests go out, replies come in. ``store/quorum`` sends them to
real members, ``tests/simulation/register`` to simulated ones with lost and repeated messages.

    ballot.py           ballots: the right to write
    configuration.py    the members, now and before
    acceptor.py         the state and the answers of one member
    operations.py       operations of owners and readers: claim, write, read
    reconfiguration.py  the move of a register to other members

It is single-decree Paxos (Lamport, *Paxos Made Simple*, 2001) with two changes. The owner of a
ballot may replace the value repeatedly, counting ``sequence``, like a Multi-Paxos leader that fills
slots of which only the last matters. And readers complete the writes that they find, as in the ABD
register (Attiya, Bar-Noy, Dolev 1995).

Safety rules, with M = any majority of the members:

1. A ballot number belongs to at most one owner. A member promises a number to the first claimant;
   owning it takes M; two M's share a member. So accepts of one number come from one owner.
2. One *attempt* of an owner uses a ballot once. An owner that died and came back under the same
   name claims with a higher ``attempt``; otherwise it would number its writes from a value it has
   not seen and two values could share (ballot, sequence).
3. A value on M under one (ballot, sequence) is *chosen*: any later owner's promises include one
   of those members, so it adopts that value or a newer one before it writes anything else.
4. A claim writes back the adopted value, also if it is empty. So after it succeeds, no value of a
   lower ballot on a few members can reappear.
5. A reader returns only chosen values. A value on fewer members is first written back **under the
   ballot it was written with**, like a delayed message of its owner: a member that has promised a
   higher ballot refuses. Then the claim under way may or may not adopt the value, so the reader
   must not return it: it reads again or reports that the value is undecided.
6. Members change by moving the register from one configuration to the next: sealed members of the
   old one serve nobody, and the state that leaves it is decided once (``reconfiguration.py``). An
   operation belongs to one configuration; an owner claims again after a change.
7. A member that came back older does not count. Every operation passes on the known number of
   state changes of each member. A member that hears of more changes than it remembers says so
   (``acceptor.py``), and counts from other members are compared with its own answer (``Round``).
   So it is detected as soon as a member that answers, or the client itself, has heard of a
   forgotten change. It returns as a new member, by a change of the members.

With one member all of this reduces to a compare-and-set.
"""

from dagster_jet.store.register.acceptor import (
    NEVER_INSTALLED,
    Accept,
    AcceptorState,
    ChangeCounts,
    Choose,
    Install,
    Promise,
    Read,
    Reply,
    ReplyStatus,
    Request,
    Seal,
    acceptor_step,
    merged,
)
from dagster_jet.store.register.ballot import NO_BALLOT, Ballot
from dagster_jet.store.register.configuration import Configuration
from dagster_jet.store.register.operations import (
    ClaimBallot,
    Inquire,
    Operation,
    Outcome,
    ReadLatest,
    Round,
    Write,
)
from dagster_jet.store.register.reconfiguration import Close, Move

__all__ = [
    "NEVER_INSTALLED",
    "NO_BALLOT",
    "Accept",
    "AcceptorState",
    "Ballot",
    "ChangeCounts",
    "Choose",
    "ClaimBallot",
    "Close",
    "Configuration",
    "Inquire",
    "Install",
    "Move",
    "Operation",
    "Outcome",
    "Promise",
    "Read",
    "ReadLatest",
    "Reply",
    "ReplyStatus",
    "Request",
    "Round",
    "Seal",
    "Write",
    "acceptor_step",
    "merged",
]
