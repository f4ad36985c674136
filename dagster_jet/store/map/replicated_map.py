"""A partitioned and replicated map of bytes.

Writes reach all replicas or fail. Reads take the first holder's copy, else another one, and repair
missing or damaged copies. The map is meant for one writer per key at a time (each shard of a vertex
writes its own keys; a map sink assigns each partition to one shard): two processes that put one key
concurrently may leave replicas with different values, each of them intact. ``routing.py`` defines
the members that are read and written, also while partitions move.

A map keeps the table it was made with and may be used by a process that has not read a change of
the members. A missing key or a listing is therefore trusted only after a ``check`` that the table
is still valid, and so is a write if its caller asks for it. A value that *is* found may be older
than values written by clients of the new table: programs that share changing values across a change
of the members refresh their store (``Store.refresh``) and take a new map.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from dagster_jet.core.partition import DEFAULT_PARTITION_COUNT, partition_id
from dagster_jet.errors import (
    ConfigurationError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.store.map.copy_repair import Missing, restore
from dagster_jet.store.map.intents import without_intents
from dagster_jet.store.map.partition_table import PartitionTable
from dagster_jet.store.map.routing import ReplicaRouting
from dagster_jet.store.map.search import ReplicaFailure, Search, search
from dagster_jet.store.map.stored_key import stored_key, version_of
from dagster_jet.store.members.fan_out import Failure, fan_out, seconds_for
from dagster_jet.store.members.member import Member, Replacement
from dagster_jet.store.values.envelope import BadCopyError, Payload
from dagster_jet.store.values.sealing import PLAIN, Sealer

_LOOKS_MAX = 100


@dataclass(frozen=True, slots=True, order=True)
class MapKey:
    """A key and the partition that holds it."""

    partition: int
    name: str

    @staticmethod
    def of(name: str, partition_count: int = DEFAULT_PARTITION_COUNT) -> MapKey:
        """Return the key in the partition its name hashes to."""
        return MapKey(partition_id(name, partition_count=partition_count), name)


@dataclass(slots=True)
class MapStats:
    """Counts of a map's reads that needed more than the primary's copy.

    Attributes:
        repaired: copies that were missing or damaged and were rewritten.
        fallback_reads: keys answered by a backup.
    """

    repaired: int = 0
    fallback_reads: int = 0


class ReplicatedMap:
    """The keys and values under one prefix.

    Args:
        members_by_id: every member in the table and the routing.
        table: the holders of each partition; a ``ReplicaRouting`` while partitions move.
        prefix: separates this map's keys from all others on the members.
        check: raises ``MembersChangedError`` when the table is no longer the store's. None:
            the table never changes.
        check_writes: also check after every write. Without it, written data counts only once a
            value decided in a register names it (as snapshots do).
        sealer: seals and unseals values.
        on_damage: called with the number of damaged copies found, by member; they may be
            repaired by then.
    """

    def __init__(
        self,
        members_by_id: Mapping[str, Member],
        table: PartitionTable | ReplicaRouting,
        prefix: str,
        *,
        check: Callable[[], None] | None = None,
        check_writes: bool = False,
        sealer: Sealer = PLAIN,
        on_damage: Callable[[Mapping[str, int]], None] | None = None,
    ) -> None:
        self.prefix = prefix
        self.routing = table if isinstance(table, ReplicaRouting) else ReplicaRouting(table)
        self.stats = MapStats()
        self._members = members_by_id
        self._sealer = sealer
        self._check = check if check is not None else _never_stale
        self._check_write = self._check if check_writes else _never_stale
        self._on_damage = on_damage
        self._stats_lock = threading.Lock()

    @property
    def table(self) -> PartitionTable:
        """The partition table that this map uses."""
        return self.routing.table

    @property
    def partition_count(self) -> int:
        """Number of partitions."""
        return self.routing.partition_count

    def key(self, name: str) -> MapKey:
        """Return the key of a name, in the partition it hashes to."""
        return MapKey.of(name, self.partition_count)

    def put_all(self, items: Mapping[MapKey, Payload] | Iterable[tuple[MapKey, Payload]]) -> None:
        """Write all items to all their replicas, in one batch per member.

        Pairs are consumed one by one and copied at once, before anything is written: a large batch
        can be produced on the fly, and its memory reused.

        The items are durable on all replicas when it returns. After a failure or a crash inside,
        each key has its old or its new value, possibly differing between replicas: put again, or
        treat the keys as unwritten (snapshot chunks do: nothing names them yet).

        Raises:
            StoreUnavailableError: a member did not write its batch.
            StoreUnwritableError: a member cannot write (full, read-only).
            MembersChangedError: the members have changed; refresh the store and put again.
        """
        keys, sealed = self._sealed(items.items() if isinstance(items, Mapping) else items)

        def put(member_id: str, batch: list[bytes]) -> Callable[[], None]:
            return lambda: self._members[member_id].put_many({key: sealed[key] for key in batch})

        self._in_rounds("written", keys, self.routing.put_rounds, put, sealed)
        if keys:
            self._check_write()

    def put_newer(self, items: Mapping[MapKey, bytes]) -> None:
        """Write each item on every replica that holds an older version of it, or none.

        The first ``VERSION_BYTES`` of a value are its version, big endian. Per replica, test and
        write are atomic: a late or repeated write changes nothing, and all replicas end with the
        newest version whatever the order of the writers. Takes one batch per member, two if
        another process wrote concurrently. After a failure or a crash inside, repeat the call.

        Raises:
            StoreUnavailableError: a member did not write its batch; all others of its round have.
            StoreUnwritableError: a member cannot write.
            MembersChangedError: the members have changed; refresh the store and put again.
        """
        keys, sealed = self._sealed(items.items())
        versions = {self._stored(key): version_of(value) for key, value in items.items()}

        def put(member_id: str, batch: list[bytes]) -> Callable[[], None]:
            def newer() -> None:
                self._put_newer(self._members[member_id], batch, sealed, versions)

            return newer

        self._in_rounds("written", keys, self.routing.put_rounds, put, sealed)
        if keys:
            self._check_write()

    def get(self, key: MapKey, *, every_replica: bool = False) -> bytes | None:
        """Return one value, None if there is none; see ``get_all``."""
        return self.get_all([key], every_replica=every_replica)[0]

    def get_all(self, keys: Sequence[MapKey], *, every_replica: bool = False) -> list[bytes | None]:
        """Return the values in the order of ``keys``; None where a key does not exist.

        A damaged or missing copy is rewritten if another replica has a good one, and counted in
        ``stats.repaired``. None is returned if all replicas that answer lack the key, at least one
        of them is a holder, and the table is still valid: a confirmed write is on every holder.

        Args:
            keys: the keys to read.
            every_replica: return None only if every replica lacks the key. For keys that a
                decision names: a single replica without the key has lost its copy.

        Raises:
            StoreCorruptedError: a value exists but no good copy is left.
            StoreUnavailableError: no replica that answers has the value, and a replica that might
                have it does not answer.
            StoreMismatchError: a value was written by a newer version.
            MembersChangedError: the members have changed, and a key was not found or a copy of
                it was missing or damaged.
        """
        searches = {
            key: Search(
                self._stored(key),
                self.routing.holders(key.partition),
                self.routing.receivers(key.partition),
            )
            for key in dict.fromkeys(keys)
        }
        damaged = search(self._members, searches.values(), self._sealer.unseal)
        elsewhere = sum(s.found_on not in (None, s.holders[0]) for s in searches.values())
        if elsewhere:
            with self._stats_lock:
                self.stats.fallback_reads += elsewhere
        troubled = [s for s in searches.values() if s.found_on in s.holders and s.seen]
        if troubled and self._may_repair():
            self._repair(troubled)
        if damaged and self._on_damage is not None:
            self._on_damage(damaged)
        for key, one in searches.items():
            if one.sealed is None and not one.is_absent(every_replica=every_replica):
                raise self._no_good_copy(key, one)
        if any(one.sealed is None for one in searches.values()):
            self._check()
        return [searches[key].value for key in keys]

    def delete_all(self, keys: Sequence[MapKey]) -> None:
        """Remove the keys from all replicas; ignores unknown keys. Removed keys do not come back.

        After a failure or a crash inside, repeat the call; until then each key reads as before or
        as removed.

        Raises:
            StoreUnavailableError: a member did not delete its batch.
            StoreUnwritableError: a member cannot write.
            MembersChangedError: the members have changed; refresh the store and repeat.
        """

        def delete(member_id: str, batch: list[bytes]) -> Callable[[], None]:
            return lambda: self._members[member_id].delete_many(batch)

        found: set[bytes] = set()

        def look(member_id: str, batch: list[bytes]) -> Callable[[], None]:
            def call() -> None:
                stored = self._members[member_id].get_many(batch)
                found.update(k for k, one in zip(batch, stored, strict=True) if one is not None)

            return call

        def with_backups(partition: int) -> tuple[tuple[str, ...], ...]:
            holders = self.routing.holders(partition)
            return (holders,) if len(holders) > 1 else ()

        doomed: Collection[MapKey] = keys
        for _ in range(_LOOKS_MAX):
            self._in_rounds("deleted", doomed, self.routing.delete_rounds, delete)
            # A copy that was put back concurrently is found here, or is not completed
            # (``copy_repair.py``).
            found.clear()
            self._in_rounds("deleted", doomed, with_backups, look)
            doomed = [key for key in doomed if self._stored(key) in found]
            if not doomed:
                if keys:
                    self._check_write()
                return
        raise StoreUnavailableError(
            f"{len(doomed)} keys of the map {self.prefix!r} could not be deleted: other programs "
            "kept writing them.",
            cure="Stop the writers, or delete the keys from one program at a time.",
        )

    def keys(self, prefix: str = "") -> list[MapKey]:
        """Return all keys whose names start with ``prefix``, sorted by partition and name.

        Raises:
            StoreUnavailableError: no holder of some partition answers.
            MembersChangedError: the members have changed; refresh the store and list again.
        """

        def listing(member_id: str) -> Callable[[], list[bytes]]:
            return lambda: self._members[member_id].list_keys(f"{self.prefix}/".encode())

        # Receivers are not asked: they are the last to delete a key.
        holders = self.table.replicas
        asked = sorted({member_id for held in holders for member_id in held})
        listed, failures = fan_out({member_id: listing(member_id) for member_id in asked})
        blind = sum(all(member in failures for member in held) for held in holders)
        if blind:
            raise StoreUnavailableError(
                f"the keys of {blind} partitions of the map {self.prefix!r} cannot be listed: "
                f"{_causes(failures)}",
                cure="Bring a member back that holds them.",
            )
        found: set[MapKey] = set()
        skipped = len(self.prefix.encode()) + 1
        for member_id, stored_keys in listed.items():
            for stored in stored_keys:
                partition, _, name = stored[skipped:].decode().partition("/")
                # A member may still have copies of partitions that it has handed over.
                if name.startswith(prefix) and member_id in holders[int(partition)]:
                    found.add(MapKey(int(partition), name))
        self._check()
        return sorted(found)

    @property
    def lists_whole_maps(self) -> bool:
        """Whether a holder lists the whole map to find the keys of one partition, as S3 does."""
        return any(one.startswith("s3://") for held in self.table.replicas for one in held)

    def keys_in(self, partition: int) -> list[MapKey]:
        """Return all keys of one partition, sorted by name.

        Raises:
            StoreUnavailableError: no holder of the partition answers.
            MembersChangedError: the members have changed; refresh the store and list again.
        """
        prefix = f"{self.prefix}/{partition:04d}/".encode()

        def listing(member_id: str) -> Callable[[], list[bytes]]:
            return lambda: self._members[member_id].list_keys(prefix)

        holders = self.routing.holders(partition)
        listed, failures = fan_out({member_id: listing(member_id) for member_id in holders})
        if not listed:
            raise StoreUnavailableError(
                f"the keys of partition {partition} of the map {self.prefix!r} cannot be listed: "
                f"{_causes(failures)}",
                cure="Bring a member back that holds it.",
            )
        self._check()
        names = {stored[len(prefix) :].decode() for keys in listed.values() for stored in keys}
        return [MapKey(partition, name) for name in sorted(names)]

    def _sealed(
        self, items: Iterable[tuple[MapKey, Payload]]
    ) -> tuple[list[MapKey], dict[bytes, bytes]]:
        """Return the keys and the stored bytes. Values are sealed once for all replicas, whose
        copies are compared byte by byte."""
        keys: list[MapKey] = []
        sealed: dict[bytes, bytes] = {}
        for key, value in items:
            stored = self._stored(key)
            keys.append(key)
            sealed[stored] = self._sealer.seal(value, stored)
        return keys, sealed

    def _put_newer(
        self,
        member: Member,
        keys: Sequence[bytes],
        sealed: Mapping[bytes, bytes],
        versions: Mapping[bytes, int],
    ) -> None:
        waiting = list(keys)
        while waiting:
            held = dict(zip(waiting, member.get_many(waiting), strict=True))
            older = {
                key: Replacement(seen=copy, value=sealed[key])
                for key, copy in held.items()
                if self._version_of(key, copy) < versions[key]
            }
            if not older or member.replace_many(older) == len(older):
                return
            # Another writer replaced some of them: read again. Versions only grow, so this ends.
            waiting = list(older)

    def _version_of(self, stored_key: bytes, copy: bytes | None) -> int:
        """Return the version of a stored copy; -1 if there is none, or a damaged one."""
        copy = without_intents(copy)
        if copy is None:
            return -1
        try:
            return version_of(self._sealer.unseal(copy, stored_key))
        except BadCopyError:
            return -1

    def _in_rounds(
        self,
        done: str,
        keys: Collection[MapKey],
        rounds_of: Callable[[int], tuple[tuple[str, ...], ...]],
        call: Callable[[str, list[bytes]], Callable[[], None]],
        values: Mapping[bytes, bytes] | None = None,
    ) -> None:
        """Send every key to its members, round by round, in one batch per member and round. The
        caller checks the table afterwards."""
        rounds: list[dict[str, list[bytes]]] = []
        for key in dict.fromkeys(keys):
            stored = self._stored(key)
            for at, member_ids in enumerate(rounds_of(key.partition)):
                if at == len(rounds):
                    rounds.append({})
                for member_id in member_ids:
                    rounds[at].setdefault(member_id, []).append(stored)
        for batches in rounds:
            sizes = [sum(len((values or {}).get(k, b"")) for k in b) for b in batches.values()]
            _, failures = fan_out(
                {m: call(m, batch) for m, batch in batches.items()},
                within_s=seconds_for(max(sizes, default=0)),
            )
            self._raise_failed(done, keys, failures)

    def _stored(self, key: MapKey) -> bytes:
        if not 0 <= key.partition < self.partition_count:
            raise ConfigurationError(
                f"the key {key.name!r} names partition {key.partition}, the store has "
                f"{self.partition_count}."
            )
        return stored_key(self.prefix, key.partition, key.name)

    def _may_repair(self) -> bool:
        """Whether the table is still valid. Under an older table, a missing copy may have been
        deleted since, and the copy found may be on a member that does not hold it any more."""
        try:
            self._check()
        except StoreUnavailableError:
            return False
        return True

    def _repair(self, searches: Sequence[Search]) -> None:
        """Rewrite missing and damaged copies, unless they have changed since they were read.

        A member that does not accept the repair does not fail the read: the next read retries.
        """
        damaged: dict[str, dict[bytes, Replacement]] = {}
        missing: list[Missing] = []
        for one in searches:
            if one.sealed is None or one.found_on is None:
                continue
            for member_id, seen in one.seen.items():
                if one.failures[member_id] is ReplicaFailure.BAD:
                    damaged.setdefault(member_id, {})[one.stored_key] = Replacement(
                        seen, one.sealed
                    )
                else:
                    missing.append(
                        Missing(one.stored_key, member_id, seen, one.sealed, one.found_on)
                    )

        def replace(member_id: str) -> Callable[[], int]:
            return lambda: self._members[member_id].replace_many(damaged[member_id])

        written, _ = fan_out({member_id: replace(member_id) for member_id in damaged})
        repaired = sum(written.values()) + restore(self._members, missing)
        with self._stats_lock:
            self.stats.repaired += repaired

    def _no_good_copy(self, key: MapKey, one: Search) -> StoreError:
        found = ", ".join(f"{failure.value} on {m}" for m, failure in one.failures.items())
        message = (
            f"no good copy of the key {key.name!r} (partition {key.partition}) of the map "
            f"{self.prefix!r}: {found}."
        )
        if ReplicaFailure.UNREACHABLE in one.failures.values():
            return StoreUnavailableError(message, cure="Bring the unreachable member back.")
        return StoreCorruptedError(
            message, cure="Restore a member from a copy, or use an older snapshot."
        )

    def _raise_failed(
        self, done: str, keys: Collection[MapKey], failures: Mapping[str, Failure]
    ) -> None:
        if not failures:
            return
        touched = {
            key.partition
            for key in keys
            if not failures.keys().isdisjoint(self.routing.replicas(key.partition))
        }
        kind: type[StoreError] = StoreUnavailableError
        if any(isinstance(failure, StoreUnwritableError) for failure in failures.values()):
            kind = StoreUnwritableError  # a restart would not help: an operator must act
        raise kind(
            f"{len(touched)} partitions of the map {self.prefix!r} could not be {done} on all "
            f"their replicas: {_causes(failures)}"
        )


def _causes(failures: Mapping[str, Failure]) -> str:
    return "; ".join(f"{member_id}: {failure}" for member_id, failure in sorted(failures.items()))


def _never_stale() -> None:
    """Check of a map whose table never changes, and of writes that are not checked."""
