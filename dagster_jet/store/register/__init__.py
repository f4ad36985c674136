"""The quorum register: one linearizable value on all members, with an owner. Pure.

No I/O, no clock, no randomness: requests go out, replies come in. ``store/quorum`` carries them to
real members, ``tests/simulation/register`` to simulated ones that lose and repeat them.

    ballot.py           who may write
    configuration.py    which members there are, and were before
    acceptor.py         what one member keeps and answers
    operations.py       what owners and readers do: claim, write, read
    reconfiguration.py  how a register moves to other members

It is single-decree Paxos (Lamport, *Paxos Made Simple*, 2001) with two changes: the owner of a
ballot may replace the value again and again, counting ``sequence``, as a Multi-Paxos leader fills
slots of which only the last matters; and readers finish what they find, as in the ABD register
(Attiya, Bar-Noy, Dolev 1995).

What makes it safe, with M = any majority of the members:

1. A ballot number belongs to at most one owner. A member promises a number to the first that asks;
   owning it takes M; two M's share a member. So accepts of one number come from one owner.
2. One *attempt* of an owner uses a ballot once. An owner that died and came back under the same
   name claims with a higher ``attempt``; otherwise it would number its writes from a value it has
   not seen and two values could share (ballot, sequence).
3. A value on M under one (ballot, sequence) is *chosen*: any later owner's promises include one
   of those members, so it adopts that value or a newer one before it writes anything else.
4. A claim writes back what it adopts, also that there is no value yet. So when it succeeds, no
   value of a lower ballot that lies on a few members can come to light any more.
5. A reader returns only chosen values. What it finds on fewer members it first writes back,
   **under the ballot it was written with**, as if the owner's delayed message arrived: a member
   that has promised a higher ballot refuses. Then the value may or may not be adopted by the claim
   under way, so the reader must not return it: it reads again or reports that it cannot know.
6. Members change by moving the register from one configuration to the next: sealed members of the
   old one serve nobody, and the state that leaves it is decided once (``reconfiguration.py``). An
   operation belongs to one configuration; an owner claims again after a change.
7. A member that came back older is not counted. Every operation passes on how often each member
   has changed its state, as far as it knows; a member that hears of more than it remembers says so
   (``acceptor.py``), and what others know of a member is compared with its own answer (``Round``).
   So it is found out as soon as one member that answers, or the client itself, has heard of
   something that it forgot. It comes back as a new one, by a change of the members.

With one member all of this shrinks to a compare-and-set.
"""

from dagster_jet.store.register.acceptor import (
    NEVER_INSTALLED,
    Accept,
    AcceptorState,
    Choose,
    Install,
    Promise,
    Read,
    Reply,
    ReplyStatus,
    Request,
    Seal,
    Witness,
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
    "Witness",
    "Write",
    "acceptor_step",
    "merged",
]
