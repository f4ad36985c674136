"""Copies missing data to receivers during concurrent reads and writes.

``routing.py`` contains the rules and the proof. A migration may stop at any point: the next one
compares, and copies the rest. Values are handled in batches of a few megabytes; the names of the
moving keys are kept in memory.

Two concurrent movers do no harm while both are running: each checks that the change is still its
own after reading and before writing a batch. If a mover is suspended between these two steps while
another one finishes the change and the same keys are rewritten, it can spoil one copy of that
batch; ``verify`` detects it and repairs it from the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.store.map.batching import Batches
from dagster_jet.store.map.routing import ReplicaRouting
from dagster_jet.store.map.search import ReplicaFailure, Search, search
from dagster_jet.store.map.stored_key import ALL_MAPS, described, partition_of
from dagster_jet.store.members.fan_out import fan_out
from dagster_jet.store.members.member import IncompleteListingError, Member, Replacement
from dagster_jet.store.upkeep.progress import OnProgress, Steps, unwatched
from dagster_jet.store.values.sealing import PLAIN, Sealer

_LOOKS_MAX = 1_000


@dataclass(slots=True)
class Migrated:
    """Result of a migration.

    Attributes:
        partitions: number of partitions that had receivers.
        keys: number of copies written.
        bytes: their size.
        removed: number of copies removed from receivers, of keys that do not exist (any more).
        damaged: keys without a good copy on any holder: copied as they are, so that reads are
            still refused.
    """

    partitions: int = 0
    keys: int = 0
    bytes: int = 0
    removed: int = 0
    damaged: list[str] = field(default_factory=list)


def migrate(
    members: Mapping[str, Member],
    routing: ReplicaRouting,
    *,
    check_still_ours: Callable[[], None],
    sealer: Sealer = PLAIN,
    on_progress: OnProgress = unwatched,
) -> Migrated:
    """Make every receiver equal to the holders of its partitions.

    Call it after all registers have moved: data of writers of the former configuration is then
    either visible or does not count.

    Args:
        members: all holders and receivers.
        routing: a routing with a target.
        check_still_ours: raises when another mover has taken over, or the change is finished.
        sealer: verifies copies. Good copies are moved unchanged.
        on_progress: called after every batch.

    Raises:
        StoreUnavailableError: a receiver, or every holder that has a value, does not answer.
            Finished copies stay; run it again.
        StoreUnwritableError: a receiver cannot be written.
    """
    partitions = routing.moving_partitions()
    steps = Steps("copy", sum(len(routing.receivers(p)) for p in partitions), on_progress)
    steps.advance()
    names = _names_by_partition(members, routing, partitions)
    done = Migrated(partitions=len(partitions))
    batches = Batches()
    for receiver in sorted({m for p in partitions for m in routing.receivers(p)}):
        received = [p for p in partitions if receiver in routing.receivers(p)]
        # Batches span partitions: each costs the receiver one sync of its disk.
        keys = [key for partition in received for key in names[partition]]
        unfinished = deque(accumulate(len(names[partition]) for partition in received))
        copied = 0
        work = _Copying(members, routing, receiver, check_still_ours, sealer, done)
        for batch in batches.of(keys):
            size = work.equalise(batch)
            batches.measured(len(batch), size)
            copied += len(batch)
            steps.advance(done=_pop_up_to(unfinished, copied), bytes=size)
        steps.advance(done=len(unfinished))
    return done


def _pop_up_to(ends: deque[int], copied: int) -> int:
    """Drop the partitions whose last key has been copied; return their number."""
    dropped = 0
    while ends and ends[0] <= copied:
        ends.popleft()
        dropped += 1
    return dropped


@dataclass(slots=True)
class _Copying:
    """Copies to one receiver."""

    members: Mapping[str, Member]
    routing: ReplicaRouting
    receiver: str
    check_still_ours: Callable[[], None]
    sealer: Sealer
    done: Migrated

    def equalise(self, keys: Sequence[bytes]) -> int:
        """Make the receiver's copies equal to the holders'; compares again until they are.

        Returns:
            Bytes of values that the first read found on the holders.
        """
        member = self.members[self.receiver]
        size: int | None = None
        for _ in range(_LOOKS_MAX):
            # Read the receiver first: it is replaced only if it still has the value read here.
            there = member.get_many(keys)
            here = self._on_holders(keys)
            if size is None:
                size = sum(len(copy) for copy in here if copy is not None)
            differing = [
                (key, old, new)
                for key, old, new in zip(keys, there, here, strict=True)
                if old != new
            ]
            if not differing:
                return size
            self.check_still_ours()
            self._replace(member, differing)
            keys = [key for key, _, _ in differing]
        raise StoreUnavailableError(
            f"{described(keys[0])} could not be copied: another process wrote it {_LOOKS_MAX} "
            "times meanwhile.",
            cure="Run the repair again.",
        )

    def _replace(
        self, member: Member, differing: Sequence[tuple[bytes, bytes | None, bytes | None]]
    ) -> None:
        copies = {key: Replacement(old, new) for key, old, new in differing if new is not None}
        if copies:
            self.done.keys += member.replace_many(copies)
            self.done.bytes += sum(len(new) for _, _, new in differing if new is not None)
        gone = {key: Replacement(old, None) for key, old, new in differing if new is None}
        if gone:
            self.done.removed += member.replace_many(gone)

    def _on_holders(self, keys: Sequence[bytes]) -> list[bytes | None]:
        searches = [Search(key, self.routing.holders(partition_of(key))) for key in keys]
        search(self.members, searches, self._checked)
        return [self._copy_of(one) for one in searches]

    def _checked(self, copy: bytes, stored_key: bytes) -> bytes:
        self.sealer.check(copy, stored_key)
        return copy

    def _copy_of(self, one: Search) -> bytes | None:
        if one.sealed is not None or one.is_absent(every_replica=True):
            return one.sealed
        if ReplicaFailure.UNREACHABLE in one.failures.values():
            away = [
                m for m, failure in one.failures.items() if failure is ReplicaFailure.UNREACHABLE
            ]
            raise StoreUnavailableError(
                f"{described(one.stored_key)} cannot be copied: {', '.join(away)} does not answer.",
                cure="Bring it back and run the repair again.",
            )
        damaged = next(copy for copy in one.seen.values() if copy is not None)
        name = described(one.stored_key)
        if name not in self.done.damaged:
            self.done.damaged.append(name)
        return damaged


def _names_by_partition(
    members: Mapping[str, Member], routing: ReplicaRouting, partitions: Sequence[int]
) -> dict[int, list[bytes]]:
    """Return the stored keys of each partition, on any of its replicas."""

    def listing(member_id: str) -> Callable[[], list[bytes]]:
        return lambda: members[member_id].list_keys(ALL_MAPS)

    asked = {member_id for p in partitions for member_id in routing.replicas(p)}
    listed, failures = fan_out({member_id: listing(member_id) for member_id in sorted(asked)})
    listed.update(
        {
            # A receiver is made equal to the holders, even if its own copies are damaged.
            member_id: list(failure.listed)
            for member_id, failure in failures.items()
            if isinstance(failure, IncompleteListingError)
        }
    )
    for partition in partitions:
        receivers = [m for m in routing.receivers(partition) if m not in listed]
        holders = routing.holders(partition)
        if receivers or all(member_id in failures for member_id in holders):
            raise StoreUnavailableError(
                f"partition {partition} cannot be copied: "
                + "; ".join(f"{m}: {failures[m]}" for m in receivers or holders),
                cure="Bring it back and run the repair again.",
            )
    found: dict[int, set[bytes]] = {partition: set() for partition in partitions}
    for member_id, keys in listed.items():
        for key in keys:
            partition = partition_of(key)
            if partition in found and member_id in routing.replicas(partition):
                found[partition].add(key)
    return {partition: sorted(keys) for partition, keys in found.items()}
