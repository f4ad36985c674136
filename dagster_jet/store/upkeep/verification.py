"""Reads every copy of every key, compares them, and repairs missing or bad ones.

Runs beside jobs. Suspect copies are read again, because a write under way looks the same for a
short time. Values are read in batches of a few megabytes; the names of the store's keys are kept in
memory, about a hundred bytes per replica.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from dagster_jet.store.connection import View
from dagster_jet.store.map.batching import Batches
from dagster_jet.store.map.copy_repair import Missing, restore
from dagster_jet.store.map.intents import without_intents
from dagster_jet.store.map.reconciliation import reconcile
from dagster_jet.store.map.routing import ReplicaRouting
from dagster_jet.store.map.stored_key import ALL_MAPS, described, partition_of
from dagster_jet.store.members.fan_out import fan_out
from dagster_jet.store.members.member import IncompleteListingError, Member, Replacement
from dagster_jet.store.upkeep.progress import OnProgress, Steps, unwatched
from dagster_jet.store.values.envelope import BadCopyError
from dagster_jet.store.values.sealing import PLAIN, Sealer

_LOOKS = 4
_PAUSE_SECONDS = 0.05


@dataclass(slots=True)
class Verified:
    """Result of a verification.

    Attributes:
        keys: number of keys.
        copies: number of copies read.
        bytes: their size.
        missing: copies that a replica lacks.
        damaged: copies that do not match their checksum.
        differing: intact copies that are not the valid one (``reconciliation.py``).
        repaired: number of missing, damaged and differing copies that were rewritten.
        lost: keys without a good copy on the members that answer.
        undecided: keys whose intact copies differ without a rule to choose one; not changed.
        unreachable: members that did not answer; their copies were not read.
        unreadable: objects on members that cannot be read and were not repaired. Copies listed by
            other replicas are counted above; any others are unknown.
    """

    keys: int = 0
    copies: int = 0
    bytes: int = 0
    missing: int = 0
    damaged: int = 0
    differing: int = 0
    repaired: int = 0
    lost: list[str] = field(default_factory=list)
    undecided: list[str] = field(default_factory=list)
    unreachable: dict[str, str] = field(default_factory=dict)
    unreadable: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether every copy was read, and each is valid, possibly after repair."""
        return self.is_undamaged and not self.undecided

    @property
    def is_undamaged(self) -> bool:
        """Whether every copy was read, and each matches its checksum, possibly after repair."""
        defects = self.missing + self.damaged + self.differing
        silent = self.lost or self.unreachable or self.unreadable
        return not silent and defects == self.repaired


def verify_store(
    view: View, *, repair: bool = False, on_progress: OnProgress = unwatched
) -> Verified:
    """Verify a whole store; if all copies are good, remove the notes of damaged copies.

    Raises:
        MembersChangedError, StoreUnavailableError: as ``verify``.
    """
    noted = view.damage_notes.known(view.members.keys())
    found = verify(
        view.members,
        view.metadata.routing,
        check_table=view.check_routes,
        repair=repair,
        sealer=view.sealer,
        on_progress=on_progress,
    )
    if noted and found.is_undamaged:
        view.damage_notes.forget(noted)
    return found


def verify(
    members: Mapping[str, Member],
    routing: ReplicaRouting,
    *,
    check_table: Callable[[], None],
    repair: bool = False,
    sealer: Sealer = PLAIN,
    on_progress: OnProgress = unwatched,
) -> Verified:
    """Read and compare every copy on the holders of every partition, in all namespaces.

    Args:
        members: all holders.
        routing: the holders of each partition; receivers, still being copied to, are skipped.
        check_table: raises when this routing is not the store's any more. Called before a copy is
            reported or rewritten: under an older table, valid copies look wrong.
        repair: replace missing, damaged or differing copies with the valid copy, if they are
            unchanged since they were read.
        sealer: verifies copies: with keys, unencrypted copies are damaged.
        on_progress: called after every batch.

    Raises:
        MembersChangedError: the members changed meanwhile; verify again.
        StoreUnavailableError: a copy looks wrong, and no majority confirms the table.
    """
    report = Verified()
    steps = Steps("verify", routing.partition_count, on_progress)
    names = _names_by_partition(members, routing, report)
    batches = Batches()
    for partition in range(routing.partition_count):
        asked = [m for m in routing.holders(partition) if m not in report.unreachable]
        for batch in batches.of(names.pop(partition, [])):
            size = _Comparing(members, asked, check_table, repair, sealer, report).compare(batch)
            batches.measured(len(batch) * len(asked), size)
            steps.advance(bytes=size)
        steps.advance(done=1)
    if repair and report.unreadable:
        report.unreadable.clear()
        _names_by_partition(members, routing, report)  # keeps only what is still unreadable
    return report


def _names_by_partition(
    members: Mapping[str, Member], routing: ReplicaRouting, report: Verified
) -> dict[int, list[bytes]]:
    def listing(member_id: str) -> Callable[[], list[bytes]]:
        return lambda: members[member_id].list_keys(ALL_MAPS)

    holding = sorted({m for held in routing.table.replicas for m in held})
    listed, failures = fan_out({member_id: listing(member_id) for member_id in holding})
    for member_id, failure in failures.items():
        if isinstance(failure, IncompleteListingError):
            # Its other copies are compared with the lists of other members.
            listed[member_id] = list(failure.listed)
            report.unreadable += [f"{name} of {member_id}" for name in failure.damaged]
        else:
            report.unreachable[member_id] = str(failure)
    found: dict[int, set[bytes]] = {}
    for member_id, keys in listed.items():
        for key in keys:
            partition = partition_of(key)
            if member_id in routing.holders(partition):
                found.setdefault(partition, set()).add(key)
    return {partition: sorted(keys) for partition, keys in found.items()}


@dataclass(slots=True)
class _Comparing:
    """Comparison of one partition's replicas."""

    members: Mapping[str, Member]
    asked: Sequence[str]
    check_table: Callable[[], None]
    repair: bool
    sealer: Sealer
    report: Verified

    def compare(self, keys: Sequence[bytes]) -> int:
        """Compare all copies of some keys; return the bytes of the first read."""
        copies = self._read(keys)
        size = sum(len(copy) for held in copies.values() for copy in held.values() if copy)
        suspects = [
            key for key in keys if len(set(copies[key].values())) > 1 or self._bad(key, copies[key])
        ]
        self._count({key: held for key, held in copies.items() if key not in set(suspects)})
        for _ in range(_LOOKS - 1):
            if not suspects:
                return size
            time.sleep(_PAUSE_SECONDS)
            again = self._read(suspects)
            # Only copies that are equal in two reads are not part of a write under way.
            steady = [key for key in suspects if again[key] == copies[key]]
            moved = [key for key in suspects if again[key] != copies[key]]
            self._judge({key: again[key] for key in steady})
            copies, suspects = again, moved
        self._count({key: copies[key] for key in suspects})  # written all the time
        return size

    def _read(self, keys: Sequence[bytes]) -> dict[bytes, dict[str, bytes | None]]:
        """Return the copies of each key on the replicas that answer."""

        def get(member_id: str) -> Callable[[], list[bytes | None]]:
            return lambda: self.members[member_id].get_many(keys)

        answers, failures = fan_out({member_id: get(member_id) for member_id in self.asked})
        self.report.unreachable.update({m: str(failure) for m, failure in failures.items()})
        return {
            key: {m: answers[m][at] for m in self.asked if m in answers}
            for at, key in enumerate(keys)
        }

    def _count(self, copies: Mapping[bytes, Mapping[str, bytes | None]]) -> None:
        for held in copies.values():
            there = [copy for copy in map(without_intents, held.values()) if copy is not None]
            self.report.keys += bool(there)  # else it was deleted after it was listed
            self.report.copies += len(there)
            self.report.bytes += sum(len(copy) for copy in there)

    def _judge(self, copies: Mapping[bytes, Mapping[str, bytes | None]]) -> None:
        if copies:
            self.check_table()
        self._count(copies)
        repairs: dict[str, dict[bytes, Replacement]] = {}
        missing: list[Missing] = []
        for key, stored in copies.items():
            held = {member_id: without_intents(one) for member_id, one in stored.items()}
            whole = [c for c in held.values() if c is not None and not self._is_bad(key, c)]
            if not whole:
                self._judge_without_good_copy(key, held)
                continue
            good = reconcile(key, whole, self.sealer)
            if good is None:
                self.report.undecided.append(described(key))
                continue
            source = next(member_id for member_id, copy in held.items() if copy == good)
            for member_id, copy in held.items():
                seen = stored[member_id]
                if seen == good:
                    continue
                if copy is None:
                    self.report.missing += 1
                    missing.append(Missing(key, member_id, seen, good, source))
                    continue
                if self._is_bad(key, copy):
                    self.report.damaged += 1
                else:
                    self.report.differing += 1
                repairs.setdefault(member_id, {})[key] = Replacement(seen, good)
        if self.repair:
            self._rewrite(repairs)
            self.report.repaired += restore(self.members, missing)

    def _judge_without_good_copy(self, key: bytes, held: Mapping[str, bytes | None]) -> None:
        if any(copy is not None for copy in held.values()):
            self.report.damaged += sum(copy is not None for copy in held.values())
            self.report.missing += sum(copy is None for copy in held.values())
            self.report.lost.append(described(key))

    def _rewrite(self, repairs: Mapping[str, Mapping[bytes, Replacement]]) -> None:
        def replace(member_id: str) -> Callable[[], int]:
            return lambda: self.members[member_id].replace_many(repairs[member_id])

        written, failures = fan_out({member_id: replace(member_id) for member_id in repairs})
        self.report.repaired += sum(written.values())
        self.report.unreachable.update({m: str(failure) for m, failure in failures.items()})

    def _bad(self, key: bytes, held: Mapping[str, bytes | None]) -> bool:
        return any(copy is not None and self._is_bad(key, copy) for copy in set(held.values()))

    def _is_bad(self, key: bytes, copy: bytes) -> bool:
        try:
            self.sealer.check(copy, key)
        except BadCopyError:
            return True
        return False
