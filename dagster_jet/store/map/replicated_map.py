"""A map of bytes, partitioned and replicated.

Writes reach all replicas or fail; reads take the first holder's copy, else another's, and repair
what they find missing or damaged. Meant for one writer per key at a time (each shard of a vertex
writes its own keys; a map sink gives each partition to one shard): two processes that put one key
at one moment may leave replicas with different values, each of them whole. ``routing.py`` says who
is read and written, also while partitions move.

A map keeps the table it was made with, and may be used by a process that has not heard of a change
of the members. Two things keep that from being silent: a key that is found nowhere, or a listing,
is only believed after a ``check`` that the table still holds, and so is a write where its caller
asks for it. A value that *is* found may be older than what clients of the new table have written
since: programs that share changing values across a change of the members refresh their store
(``Store.refresh``) and take a new map.
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
from dagster_jet.store.map.search import Search, Trouble, search
from dagster_jet.store.map.stored_key import stored_key, version_of
from dagster_jet.store.members.fan_out import Failure, fan_out, seconds_for
from dagster_jet.store.members.member import Member, Replacement
from dagster_jet.store.values.envelope import BadCopyError, Payload
from dagster_jet.store.values.sealing import PLAIN, Sealer

_LOOKS_MAX = 100


@dataclass(frozen=True, slots=True, order=True)
class MapKey:
    """A key and the partition it is kept in."""

    partition: int
    name: str

    @staticmethod
    def of(name: str, partition_count: int = DEFAULT_PARTITION_COUNT) -> MapKey:
        """Return the key in the partition its name hashes to."""
        return MapKey(partition_id(name, partition_count=partition_count), name)


@dataclass(slots=True)
class MapStats:
    """What reads of this object had to do beyond reading the primary's copy.

    Attributes:
        repaired: copies that were missing or damaged and have been written anew.
        fallback_reads: keys answered by a backup.
    """

    repaired: int = 0
    fallback_reads: int = 0


class ReplicatedMap:
    """A map under one prefix.

    Args:
        members_by_id: every member that the table and the routing name.
        table: who holds which partition; a ``ReplicaRouting`` while partitions move.
        prefix: separates this map's keys from all others on the members.
        check: raises ``StaleConfigurationError`` when the table is no longer the store's. None:
            the table is never changed.
        check_writes: also check after every write. Without it, what was written counts only once
            something else, decided in a register, names it (as snapshots do).
        sealer: how values are stored.
        on_damage: told of damaged copies that were met, how many on which member; they may be
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
        """The partition table this map reads by."""
        return self.routing.table

    @property
    def partition_count(self) -> int:
        """How many partitions the keys are spread over."""
        return self.routing.partition_count

    def key(self, name: str) -> MapKey:
        """Return the key of a name, in the partition it hashes to."""
        return MapKey.of(name, self.partition_count)

    def put_all(self, items: Mapping[MapKey, Payload] | Iterable[tuple[MapKey, Payload]]) -> None:
        """Write all items to all their replicas, in one batch per member.

        Pairs are taken one by one and copied at once, before anything is written: a large batch
        can be made on the way, and its memory used again.

        Durable on all replicas when it returns. After a failure or a crash inside, each key has its
        old value or its new one, possibly differing between replicas: put again, or treat the keys
        as unwritten (snapshot chunks do: nothing names them yet).

        Raises:
            StoreUnavailableError: a member did not take its batch.
            StoreUnwritableError: a member cannot write (full, read-only).
            StaleConfigurationError: the members have changed; refresh the store and put again.
        """
        keys, sealed = self._sealed(items.items() if isinstance(items, Mapping) else items)

        def put(member_id: str, batch: list[bytes]) -> Callable[[], None]:
            return lambda: self._members[member_id].put_many({key: sealed[key] for key in batch})

        self._in_rounds("written", keys, self.routing.put_rounds, put, sealed)
        if keys:
            self._check_write()

    def put_newer(self, items: Mapping[MapKey, bytes]) -> None:
        """Write each item on every replica that holds an older version of it, or none.

        A value's first ``VERSION_BYTES`` are its version, big endian. Per replica, test and write
        are one step: whoever comes late, or a second time, changes nothing, and all replicas end
        with the newest version whatever the order of the writers. One batch per member, two if
        somebody else wrote meanwhile. After a failure or a crash inside, repeat the call.

        Raises:
            StoreUnavailableError: a member did not take its batch; all others of its round have.
            StoreUnwritableError: a member cannot write.
            StaleConfigurationError: the members have changed; refresh the store and put again.
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

        A copy that is damaged or missing while another replica has a good one is rewritten and
        counted in ``stats.repaired``. None is returned when all replicas that answer say so, at
        least one of them a holder, and the table still holds: a write that was confirmed is on
        every holder.

        Args:
            keys: which.
            every_replica: return None only when every replica says so: for keys that something
                decided names, where one replica that knows nothing has lost its copy.

        Raises:
            StoreCorruptedError: a value exists but no good copy of it is left.
            StoreUnavailableError: no replica that answers has the value, and one that might
                does not answer.
            StoreMismatchError: a value was written by a newer version.
            StaleConfigurationError: a key was not found, or a copy of it was missing or damaged,
                and the members have changed.
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
        """Remove the keys from all replicas; unknown keys are no error. They do not come back.

        After a failure or a crash inside, repeat the call; until then each key reads as it was or
        as removed.

        Raises:
            StoreUnavailableError: a member did not take its batch.
            StoreUnwritableError: a member cannot write.
            StaleConfigurationError: the members have changed; refresh the store and repeat.
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
            # Who put a copy back meanwhile is met here, or does not finish (``copy_repair.py``).
            found.clear()
            self._in_rounds("deleted", doomed, with_backups, look)
            doomed = [key for key in doomed if self._stored(key) in found]
            if not doomed:
                if keys:
                    self._check_write()
                return
        raise StoreUnavailableError(
            f"{len(doomed)} keys of the map {self.prefix!r} were written or put back all the time "
            "while they were being deleted.",
            cure="Delete them again, by one program at a time.",
        )

    def keys(self, prefix: str = "") -> list[MapKey]:
        """Return all keys whose names start with ``prefix``, by partition and name.

        Raises:
            StoreUnavailableError: of some partition no holder answers.
            StaleConfigurationError: the members have changed; refresh the store and list again.
        """

        def listing(member_id: str) -> Callable[[], list[bytes]]:
            return lambda: self._members[member_id].list_keys(f"{self.prefix}/".encode())

        # Receivers are not asked: of a key that is being deleted they may be the last to know.
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
                # A member may still have copies of partitions it has handed over.
                if name.startswith(prefix) and member_id in holders[int(partition)]:
                    found.add(MapKey(int(partition), name))
        self._check()
        return sorted(found)

    def keys_in(self, partition: int) -> list[MapKey]:
        """Return all keys of one partition, by name: what ``keys`` does, a partition at a time.

        Raises:
            StoreUnavailableError: no holder of the partition answers.
            StaleConfigurationError: the members have changed; refresh the store and list again.
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
        """The keys, and what is stored; sealed once for all replicas: their copies are compared
        byte by byte."""
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
            # Another writer was faster with some of them: look again what is there now. Versions
            # only grow, so that this ends.
            waiting = list(older)

    def _version_of(self, stored_key: bytes, copy: bytes | None) -> int:
        """The version of a stored copy; less than any where there is none, or a damaged one."""
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
        """Send every key to its members, round by round, in one batch per member and round; the
        caller checks the table behind it."""
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
        """By an older table, a copy that is missing may be one that was deleted since, and the one
        that was found a copy that nobody holds any more."""
        try:
            self._check()
        except StoreUnavailableError:
            return False
        return True

    def _repair(self, searches: Sequence[Search]) -> None:
        """Rewrite missing and damaged copies, if they are still what was seen.

        A member that cannot take the repair does not fail the read: the next one tries again.
        """
        damaged: dict[str, dict[bytes, Replacement]] = {}
        missing: list[Missing] = []
        for one in searches:
            if one.sealed is None or one.found_on is None:
                continue
            for member_id, seen in one.seen.items():
                if one.troubles[member_id] is Trouble.BAD:
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
        found = ", ".join(f"{trouble.value} on {m}" for m, trouble in one.troubles.items())
        message = (
            f"no good copy of the key {key.name!r} (partition {key.partition}) of the map "
            f"{self.prefix!r}: {found}."
        )
        if Trouble.UNREACHABLE in one.troubles.values():
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
            kind = StoreUnwritableError  # a restart would not help: a person must act
        raise kind(
            f"{len(touched)} partitions of the map {self.prefix!r} could not be {done} on all "
            f"their replicas: {_causes(failures)}"
        )


def _causes(failures: Mapping[str, Failure]) -> str:
    return "; ".join(f"{member_id}: {failure}" for member_id, failure in sorted(failures.items()))


def _never_stale() -> None:
    """The check of a map whose table is never changed, and of writes that nobody checks."""
