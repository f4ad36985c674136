"""The partition table: the members that hold each partition, and its changes. Pure.

Rules: primaries are balanced (the numbers of any two members differ by at most 1), backups too; all
replicas of a partition are on different members; a change moves as few replicas as balance allows.
A *move* is a member that must receive data; promoting a backup in place costs nothing.

Algorithm: primaries are placed first, then backups. In both steps members keep the replicas they
hold. Then replicas are handed over along the cheapest path from members with too many (or from
"nobody", for a missing one) to members with too few. The search graph's nodes are the members.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_jet.core.stored_format import check_format
from dagster_jet.errors import ConfigurationError

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class PartitionTable:
    """The replicas of every partition.

    Attributes:
        version: grows by one with every change.
        replicas: the member ids of each partition: the primary, then its backups.
        members: all members, also those that hold nothing yet; sorted.
        backup_count: backups wanted per partition. With too few members there are fewer.
    """

    version: int
    replicas: tuple[tuple[str, ...], ...]
    members: tuple[str, ...]
    backup_count: int

    @property
    def partition_count(self) -> int:
        """Number of partitions."""
        return len(self.replicas)

    def primary(self, partition: int) -> str:
        """Return the member that is read first for a partition."""
        return self.replicas[partition][0]

    def backups(self, partition: int) -> tuple[str, ...]:
        """Return the members that hold the partition's other replicas."""
        return self.replicas[partition][1:]

    def to_json(self) -> str:
        """Return the table as JSON. Members are listed once and referenced by index."""
        index = {member: at for at, member in enumerate(self.members)}
        return json.dumps(
            {
                "format": FORMAT_VERSION,
                "version": self.version,
                "backup_count": self.backup_count,
                "members": self.members,
                "replicas": [[index[member] for member in held] for held in self.replicas],
            },
            separators=(",", ":"),
        )

    @staticmethod
    def from_json(text: str) -> PartitionTable:
        """Parse the JSON of ``to_json``.

        Raises:
            StoreMismatchError: written by a newer version.
        """
        read: dict[str, Any] = json.loads(text)
        check_format("the partition table", read["format"], FORMAT_VERSION)
        members = tuple(read["members"])
        return PartitionTable(
            version=read["version"],
            replicas=tuple(tuple(members[at] for at in held) for held in read["replicas"]),
            members=members,
            backup_count=read["backup_count"],
        )


def create_table(members: Iterable[str], partition_count: int, backup_count: int) -> PartitionTable:
    """Place all partitions of a new store.

    The backups of one member's primaries are spread over all others, so that after its death
    each of the others takes over an equal share.
    """
    names = tuple(sorted(set(members)))
    if not names:
        raise ConfigurationError("a partition table needs at least one member.")
    others = len(names) - 1
    replicas = []
    for partition in range(partition_count):
        row, column = divmod(partition, len(names))
        shifts = [1 + (row + k) % others for k in range(min(backup_count, others))]
        replicas.append((names[column], *(names[(column + s) % len(names)] for s in shifts)))
    # Complete rows are balanced; the last, shorter row may need a few exchanges.
    return PartitionTable(1, _balanced(replicas, names, backup_count), names, backup_count)


def with_member_added(table: PartitionTable, member: str) -> PartitionTable:
    """Give a new member about 1/(n+1) of the replicas, taken evenly from the others."""
    if member in table.members:
        raise ConfigurationError(f"{member} is already a member of the store.")
    members = tuple(sorted((*table.members, member)))
    return PartitionTable(
        version=table.version + 1,
        replicas=_balanced(table.replicas, members, table.backup_count),
        members=members,
        backup_count=table.backup_count,
    )


def with_member_removed(table: PartitionTable, member: str) -> PartitionTable:
    """Remove a member: backups of its primaries are promoted in place, the rest is rebuilt.

    The result lists the members that *should* hold each replica. After a removal the table does not
    distinguish a rebuilt replica from one that is still to be rebuilt.
    """
    if member not in table.members:
        raise ConfigurationError(f"{member} is not a member of the store.")
    members = tuple(name for name in table.members if name != member)
    if not members:
        raise ConfigurationError(f"{member} is the store's last member and cannot be removed.")
    return PartitionTable(
        version=table.version + 1,
        replicas=_balanced(table.replicas, members, table.backup_count),
        members=members,
        backup_count=table.backup_count,
    )


# --- balancing ------------------------------------------------------------------------------

_EXCHANGE = 1  # another role, no data copied
_MOVE = 1_000  # data copied to another member
_NOBODY = ""  # placeholder that holds the missing replicas

_Step = tuple[int, str, str]  # partition, from, to


def _balanced(
    replicas: Sequence[Sequence[str]], members: tuple[str, ...], backup_count: int
) -> tuple[tuple[str, ...], ...]:
    """Return balanced replicas on ``members`` that keep as much of ``replicas`` as possible."""
    alive = set(members)
    kept = [[member for member in held if member in alive] for held in replicas]

    def primary_cost(partition: int, member: str) -> int:
        if member not in kept[partition]:
            return _MOVE
        # Without the former primary, any backup can be promoted at no cost.
        former = replicas[partition][0]
        return 0 if former == member or former not in alive else _EXCHANGE

    primaries = _Role(members, 1, primary_cost, peers=[held[1:] for held in kept])
    primaries.balance([held[:1] for held in kept])
    primary_of = [holders[0] for holders in primaries.held]

    def backup_cost(partition: int, member: str) -> int | None:
        if member == primary_of[partition]:
            return None
        if member in replicas[partition][1:]:
            return 0
        return _EXCHANGE if member in kept[partition] else _MOVE

    wanted = min(backup_count, len(members) - 1)
    start = []
    for partition, held in enumerate(kept):
        others = [member for member in held if member != primary_of[partition]]
        if others and others[0] == replicas[partition][0]:
            others.append(others.pop(0))  # a former primary stays only if there is room
        start.append(others[:wanted])
    backups = _Role(members, wanted, backup_cost, peers=[[member] for member in primary_of])
    backups.balance(start)
    return tuple((primary_of[p], *holders) for p, holders in enumerate(backups.held))


class _Role:
    """The holders of one role (primary or backup) while they are balanced.

    Uses successive cheapest paths, as in min-cost flow. An edge from u to v is the cheapest
    partition that u could hand over to v. Among equals, it is the one whose other holders have
    least in common with v, so that the load of a dead member spreads over many.

    Args:
        members: all possible holders.
        wanted: holders per partition.
        cost: cost of a member holding a partition; None where it must not.
        peers: the holders of the other role, by partition.
    """

    def __init__(
        self,
        members: tuple[str, ...],
        wanted: int,
        cost: Callable[[int, str], int | None],
        peers: Sequence[Sequence[str]],
    ) -> None:
        self.members = members
        self.wanted = wanted
        self.cost = cost
        self.peers = peers
        self.held: list[list[str]] = []

    def balance(self, start: Sequence[Sequence[str]]) -> None:
        """Give every partition its holders, with counts that differ by at most 1.

        ``start`` must be each partition's cheapest choice: then no cheaper exchange exists than
        those made here.
        """
        self.held = [list(holders) for holders in start]
        low, rest = divmod(self.wanted * len(self.held), len(self.members))
        high = low + (1 if rest else 0)
        while True:
            count = Counter(member for holders in self.held for member in holders)
            below = {member for member in self.members if count[member] < low}
            room = below or {member for member in self.members if count[member] < high}
            above = {member for member in self.members if count[member] > high}
            if any(len(holders) < self.wanted for holders in self.held):
                path = self._path({_NOBODY}, room)
            elif above:
                path = self._path(above, room)
            elif below:
                path = self._path({m for m in self.members if count[m] > low}, below)
            else:
                return
            for partition, giver, taker in path:
                holders = self.held[partition]
                if giver == _NOBODY:
                    holders.append(taker)
                else:
                    holders[holders.index(giver)] = taker

    def _path(self, sources: set[str], targets: set[str]) -> list[_Step]:
        """Return the cheapest hand-overs from a source to a target (Bellman-Ford)."""
        edges = self._edges()
        distance = dict.fromkeys(sorted(sources), 0)
        arrived: dict[str, _Step] = {}
        changed = True
        while changed:
            changed = False
            for (giver, taker), (weight, _, partition) in edges.items():
                if giver not in distance or taker in sources:
                    continue
                if taker not in distance or distance[giver] + weight < distance[taker]:
                    distance[taker] = distance[giver] + weight
                    arrived[taker] = (partition, giver, taker)
                    changed = True
        at = min(
            (m for m in self.members if m in targets and m in arrived), key=distance.__getitem__
        )
        steps = []
        while at in arrived:
            steps.append(arrived[at])
            at = arrived[at][1]
        return steps[::-1]

    def _edges(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        """Return per (giver, taker): the weight, the number of shared peers, the partition."""
        shared = Counter(
            (holder, peer)
            for holders, peers in zip(self.held, self.peers, strict=True)
            for holder in holders
            for peer in peers
        )
        edges: dict[tuple[str, str], tuple[int, int, int]] = {}
        for partition, holders in enumerate(self.held):
            givers = [(member, self.cost(partition, member) or 0) for member in holders]
            if len(holders) < self.wanted:
                givers.append((_NOBODY, 0))
            for taker in self.members:
                cost = self.cost(partition, taker)
                if cost is None or taker in holders:
                    continue
                common = sum(shared[taker, peer] for peer in self.peers[partition])
                for giver, saved in givers:
                    edge = (cost - saved, common, partition)
                    edges[giver, taker] = min(edge, edges.get((giver, taker), edge))
        return edges
