"""Status of a store when it was read: members, and partitions that lack replicas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dagster_jet.store.metadata import StoreMetadata


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """Status of one member.

    Attributes:
        member_id: the member.
        reachable: it answers, with the identity that the store lists.
        primaries: number of partitions of which it is the primary.
        backups: number of partitions of which it holds another replica.
        receiving: number of partitions it still has to receive during a change.
        is_leaving: it has left the store, but its copies are still needed.
        error: the reason why it is not reachable; None if it is.
        damaged: damaged copies found on it since the last complete verification.
    """

    member_id: str
    reachable: bool
    primaries: int
    backups: int
    receiving: int = 0
    is_leaving: bool = False
    error: str | None = None
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """A partition with fewer replicas than it should have.

    Attributes:
        partition: its number.
        missing: number of wanted replicas that are not on members that answer.
        away: members that hold a replica and do not answer.
    """

    partition: int
    missing: int
    away: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """Status of the whole store.

    Attributes:
        members: every member.
        under_replicated: the partitions with fewer replicas than they should have.
        lost: the partitions of which no replica answers.
        configuration_number: the number of the members' configuration.
        is_moving: a change of the members is not finished; ``repair`` finishes it.
        strangers: configured members that do not belong to the store (yet, or any more).
    """

    members: tuple[MemberStatus, ...]
    under_replicated: tuple[PartitionStatus, ...] = ()
    lost: tuple[int, ...] = ()
    configuration_number: int = 0
    is_moving: bool = False
    strangers: tuple[str, ...] = ()

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for an operator, as sentences."""
        said = [
            f"{member_id} is not a member of this store. Add it with 'dagster-jet store add', or "
            "remove it from the configuration."
            for member_id in self.strangers
        ]
        if self.is_moving:
            said.append(
                "A change of the members is not finished. Finish it with 'dagster-jet store "
                "repair'."
            )
        if self.damaged:
            said.append(
                "Damaged copies were read from "
                + ", ".join(f"{m.member_id} ({m.damaged})" for m in self.damaged)
                + ", and there may be more. Run 'dagster-jet store verify --repair', which "
                "reads all copies. If a member cannot be read even then, remove it with "
                "'dagster-jet store remove'."
            )
        if self.lost:
            said.append(
                f"No replica of {len(self.lost)} partitions answers: "
                f"{', '.join(map(str, self.lost[:20]))}{', ...' if len(self.lost) > 20 else ''}."
            )
        return tuple(said)

    @property
    def damaged(self) -> tuple[MemberStatus, ...]:
        """The members on which damaged copies were found."""
        return tuple(member for member in self.members if member.damaged)

    @property
    def is_safe(self) -> bool:
        """Whether every partition has all its replicas, all members answer, no change is under way,
        and no damage was found since all copies were verified."""
        everybody = all(member.reachable for member in self.members)
        lacks = self.under_replicated or self.is_moving or self.damaged
        return everybody and not lacks


def status_of(
    metadata: StoreMetadata,
    errors: Mapping[str, str],
    strangers: tuple[str, ...] = (),
    damaged: Mapping[str, int] | None = None,
) -> StoreStatus:
    """Return a store's status. Pure. ``errors`` has the reasons why members do not answer, and
    ``damaged`` the numbers of damaged copies, by member id."""
    routing = metadata.routing
    partitions = range(routing.partition_count)
    leaving = dict(metadata.leaving)
    under_replicated, lost = [], []
    for partition in partitions:
        holders = routing.holders(partition)
        away = tuple(m for m in holders if m in errors)
        missing = routing.missing(partition) + len(away)
        if missing:
            under_replicated.append(PartitionStatus(partition, missing, away))
        if len(away) == len(holders):
            lost.append(partition)
    return StoreStatus(
        members=tuple(
            MemberStatus(
                member_id=member_id,
                reachable=member_id not in errors,
                primaries=sum(routing.holders(p)[:1] == (member_id,) for p in partitions),
                backups=sum(member_id in routing.holders(p)[1:] for p in partitions),
                receiving=sum(member_id in routing.receivers(p) for p in partitions),
                is_leaving=member_id in leaving,
                error=errors.get(member_id),
                damaged=(damaged or {}).get(member_id, 0),
            )
            for member_id in sorted(metadata.identities)
        ),
        under_replicated=tuple(under_replicated),
        lost=tuple(lost),
        configuration_number=metadata.configuration,
        is_moving=metadata.is_moving,
        strangers=strangers,
    )
