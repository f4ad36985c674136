"""Search for members that came back with an older state, over all registers of a store.

Every use of a register compares its members' answers anyway. This search checks all registers at
once, for an operator.
"""

from __future__ import annotations

from collections.abc import Callable

from dagster_jet.store.members.fan_out import fan_out
from dagster_jet.store.members.member import Member
from dagster_jet.store.quorum.acceptor_on_member import list_names
from dagster_jet.store.quorum.rounds import drive
from dagster_jet.store.register import Configuration, Inquire


def disown_rolled_back_members(configuration: Configuration[Member]) -> None:
    """Disown every member that has forgotten changes which it had reported to another member.

    Best effort: a member that does not answer is not judged, and a register that has moved on is
    skipped. Changes nothing else.
    """

    def listing(member: Member) -> Callable[[], set[str]]:
        return lambda: list_names(member)

    names, _ = fan_out({m: listing(member) for m, member in configuration.members.items()})
    for name in sorted(set().union(*names.values())):
        drive(Inquire(configuration), name)
