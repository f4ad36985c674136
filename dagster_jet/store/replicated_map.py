"""A map of bytes, partitioned and replicated by the partition table.

Writes reach all replicas or fail; reads take the primary's copy, else a backup's, and repair what
they find missing or damaged. Meant for one writer per key at a time (each shard of a vertex writes
its own keys; a map sink gives each partition to one shard): two processes that put one key at one
moment may leave replicas with different values, each of them whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from dagster_jet.errors import (
    ConfigurationError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.store.envelope import BadCopyError, seal, unseal
from dagster_jet.store.members.fan_out import Failure, fan_out
from dagster_jet.store.members.member import MAX_KEY_BYTES, Member, Replacement
from dagster_jet.store.partition import DEFAULT_PARTITION_COUNT, partition_id
from dagster_jet.store.placement import PartitionTable

VERSION_BYTES = 8
"""Length of the version that values of `ReplicatedMap.put_newer` begin with."""


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


class _Trouble(Enum):
    """Why a replica did not give a value."""

    ABSENT = "missing"
    BAD = "damaged"
    UNREACHABLE = "unreachable"


@dataclass(slots=True)
class _Search:
    """How far the search for one key has come."""

    stored_key: bytes
    replicas: tuple[str, ...]
    troubles: dict[str, _Trouble]
    seen: dict[str, bytes | None]
    sealed: bytes | None = None
    value: bytes | None = None


class ReplicatedMap:
    """A map under one prefix.

    Args:
        members_by_id: every member the table names.
        table: who holds which partition.
        prefix: separates this map's keys from all others on the members.
    """

    def __init__(
        self, members_by_id: Mapping[str, Member], table: PartitionTable, prefix: str
    ) -> None:
        self.prefix = prefix
        self.table = table
        self.stats = MapStats()
        self._members = members_by_id
        self._stats_lock = threading.Lock()

    @property
    def partition_count(self) -> int:
        """How many partitions the keys are spread over."""
        return self.table.partition_count

    def key(self, name: str) -> MapKey:
        """Return the key of a name, in the partition it hashes to."""
        return MapKey.of(name, self.partition_count)

    def put_all(self, items: Mapping[MapKey, bytes]) -> None:
        """Write all items to all their replicas, in one batch per member.

        Durable on all replicas when it returns. After a failure or a crash inside, each key has its
        old value or its new one, possibly differing between replicas: put again, or treat the keys
        as unwritten (snapshot chunks do: nothing names them yet).

        Raises:
            StoreUnavailableError: a member did not take its batch.
            StoreUnwritableError: a member cannot write (full, read-only).
        """
        batches: dict[str, dict[bytes, bytes]] = {}
        for key, value in items.items():
            stored_key, sealed = self._stored(key), seal(value)
            for member_id in self.table.replicas[key.partition]:
                batches.setdefault(member_id, {})[stored_key] = sealed

        def put(member_id: str) -> Callable[[], None]:
            return lambda: self._members[member_id].put_many(batches[member_id])

        _, failures = fan_out({member_id: put(member_id) for member_id in batches})
        self._raise_failed("written", items, failures)

    def put_newer(self, items: Mapping[MapKey, bytes]) -> None:
        """Write each item on every replica that holds an older version of it, or none.

        A value's first ``VERSION_BYTES`` are its version, big endian. Per replica, test and write
        are one step: whoever comes late, or a second time, changes nothing, and all replicas end
        with the newest version whatever the order of the writers. One batch per member, two if
        somebody else wrote meanwhile. After a failure or a crash inside, repeat the call.

        Raises:
            StoreUnavailableError: a member did not take its batch; all others have.
            StoreUnwritableError: a member cannot write.
        """
        batches: dict[str, dict[bytes, bytes]] = {}
        for key, value in items.items():
            stored_key = self._stored(key)
            for member_id in self.table.replicas[key.partition]:
                batches.setdefault(member_id, {})[stored_key] = value

        def put(member_id: str) -> Callable[[], None]:
            return lambda: _put_newer(self._members[member_id], batches[member_id])

        _, failures = fan_out({member_id: put(member_id) for member_id in batches})
        self._raise_failed("written", items, failures)

    def get(self, key: MapKey) -> bytes | None:
        """Return one value, None if there is none; see ``get_all``."""
        return self.get_all([key])[0]

    def get_all(self, keys: Sequence[MapKey]) -> list[bytes | None]:
        """Return the values in the order of ``keys``; None where a key does not exist.

        A copy that is damaged or missing while another replica has a good one is rewritten and
        counted in ``stats.repaired``. None is returned only when every replica says so.

        Raises:
            StoreCorruptedError: a value exists but no good copy of it is left.
            StoreUnavailableError: no replica that answers has the value, and one that might
                does not answer.
            StoreMismatchError: a value was written by a newer version.
        """
        searches = {
            key: _Search(self._stored(key), self.table.replicas[key.partition], {}, {})
            for key in dict.fromkeys(keys)
        }
        unsettled: Collection[_Search] = searches.values()
        rank = 0
        while unsettled:
            self._ask(unsettled, rank)
            rank += 1
            unsettled = [s for s in unsettled if s.sealed is None and len(s.replicas) > rank]
        self._repair([s for s in searches.values() if s.sealed is not None and s.seen])
        for key, search in searches.items():
            if search.sealed is None:
                self._raise_unless_absent(key, search)
        return [searches[key].value for key in keys]

    def delete_all(self, keys: Sequence[MapKey]) -> None:
        """Remove the keys from all replicas; unknown keys are no error.

        Backups first, then primaries: a reader that finds the primary's copy gone must not find a
        backup's and put it back. After a failure or a crash inside, repeat the call; until then
        each key reads as it was or as removed.

        Raises:
            StoreUnavailableError: a member did not take its batch.
            StoreUnwritableError: a member cannot write.
        """
        for replicas_of in (self.table.backups, lambda p: (self.table.primary(p),)):
            batches: dict[str, list[bytes]] = {}
            for key in dict.fromkeys(keys):
                for member_id in replicas_of(key.partition):
                    batches.setdefault(member_id, []).append(self._stored(key))

            def delete(member_id: str, batch: list[bytes]) -> Callable[[], None]:
                return lambda: self._members[member_id].delete_many(batch)

            _, failures = fan_out({m: delete(m, batch) for m, batch in batches.items()})
            self._raise_failed("deleted", keys, failures)

    def keys(self, prefix: str = "") -> list[MapKey]:
        """Return all keys whose names start with ``prefix``, by partition and name.

        Raises:
            StoreUnavailableError: of some partition no replica answers.
        """

        def listing(member_id: str) -> Callable[[], list[bytes]]:
            return lambda: self._members[member_id].list_keys(f"{self.prefix}/".encode())

        asked = sorted({member_id for held in self.table.replicas for member_id in held})
        listed, failures = fan_out({member_id: listing(member_id) for member_id in asked})
        blind = sum(all(member in failures for member in held) for held in self.table.replicas)
        if blind:
            raise StoreUnavailableError(
                f"the keys of {blind} partitions of the map {self.prefix!r} cannot be listed: "
                f"{_causes(failures)}",
                cure="Bring a member back that holds them.",
            )
        found: set[MapKey] = set()
        skipped = len(self.prefix.encode()) + 1
        for member_id, stored_keys in listed.items():
            for stored_key in stored_keys:
                partition, _, name = stored_key[skipped:].decode().partition("/")
                # A member may still hold copies of partitions it has handed over.
                held = self.table.replicas[int(partition)]
                if name.startswith(prefix) and member_id in held:
                    found.add(MapKey(int(partition), name))
        return sorted(found)

    def keys_in(self, partition: int) -> list[MapKey]:
        """Return all keys of one partition, by name: what ``keys`` does, a partition at a time.

        Raises:
            StoreUnavailableError: no replica of the partition answers.
        """
        prefix = f"{self.prefix}/{partition:04d}/".encode()

        def listing(member_id: str) -> Callable[[], list[bytes]]:
            return lambda: self._members[member_id].list_keys(prefix)

        held = self.table.replicas[partition]
        listed, failures = fan_out({member_id: listing(member_id) for member_id in held})
        if not listed:
            raise StoreUnavailableError(
                f"the keys of partition {partition} of the map {self.prefix!r} cannot be listed: "
                f"{_causes(failures)}",
                cure="Bring a member back that holds it.",
            )
        names = {stored[len(prefix) :].decode() for keys in listed.values() for stored in keys}
        return [MapKey(partition, name) for name in sorted(names)]

    def _stored(self, key: MapKey) -> bytes:
        if not 0 <= key.partition < self.partition_count:
            raise ConfigurationError(
                f"the key {key.name!r} names partition {key.partition}, the store has "
                f"{self.partition_count}."
            )
        stored = f"{self.prefix}/{key.partition:04d}/{key.name}".encode()
        if len(stored) > MAX_KEY_BYTES:
            raise ConfigurationError(
                f"the key {key.name[:40]!r}... has {len(stored)} bytes with the map's name, more "
                f"than the {MAX_KEY_BYTES} a member can hold.",
                cure="Use shorter keys, or a hash of them.",
            )
        return stored

    def _ask(self, searches: Collection[_Search], rank: int) -> None:
        """Ask every searched key's replica of this rank, in one batch per member."""
        batches: dict[str, list[_Search]] = {}
        for search in searches:
            batches.setdefault(search.replicas[rank], []).append(search)

        def get(member_id: str) -> Callable[[], list[bytes | None]]:
            stored_keys = [search.stored_key for search in batches[member_id]]
            return lambda: self._members[member_id].get_many(stored_keys)

        copies, failures = fan_out({member_id: get(member_id) for member_id in batches})
        for member_id in failures:
            for search in batches[member_id]:
                search.troubles[member_id] = _Trouble.UNREACHABLE
        answered = 0
        for member_id, of_member in copies.items():
            for search, copy in zip(batches[member_id], of_member, strict=True):
                try:
                    if copy is not None:
                        search.value, search.sealed = unseal(copy), copy
                        answered += 1
                        continue
                    search.troubles[member_id] = _Trouble.ABSENT
                except BadCopyError:
                    search.troubles[member_id] = _Trouble.BAD
                search.seen[member_id] = copy
        if rank > 0 and answered:
            with self._stats_lock:
                self.stats.fallback_reads += answered

    def _repair(self, searches: Sequence[_Search]) -> None:
        """Rewrite missing and damaged copies, if they are still what was seen.

        A member that cannot take the repair does not fail the read: the next one tries again.
        """
        batches: dict[str, dict[bytes, Replacement]] = {}
        for search in searches:
            for member_id, copy in search.seen.items():
                if search.sealed is not None:
                    replacement = Replacement(seen=copy, value=search.sealed)
                    batches.setdefault(member_id, {})[search.stored_key] = replacement

        def replace(member_id: str) -> Callable[[], int]:
            return lambda: self._members[member_id].replace_many(batches[member_id])

        if batches:
            written, _ = fan_out({member_id: replace(member_id) for member_id in batches})
            with self._stats_lock:
                self.stats.repaired += sum(written.values())

    def _raise_unless_absent(self, key: MapKey, search: _Search) -> None:
        if all(trouble is _Trouble.ABSENT for trouble in search.troubles.values()):
            return
        found = ", ".join(f"{trouble.value} on {m}" for m, trouble in search.troubles.items())
        message = (
            f"no good copy of the key {key.name!r} (partition {key.partition}) of the map "
            f"{self.prefix!r}: {found}."
        )
        if _Trouble.UNREACHABLE in search.troubles.values():
            raise StoreUnavailableError(message, cure="Bring the unreachable member back.")
        raise StoreCorruptedError(
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
            if not failures.keys().isdisjoint(self.table.replicas[key.partition])
        }
        kind: type[StoreError] = StoreUnavailableError
        if any(isinstance(failure, StoreUnwritableError) for failure in failures.values()):
            kind = StoreUnwritableError  # a restart would not help: a person must act
        raise kind(
            f"{len(touched)} partitions of the map {self.prefix!r} could not be {done} on all "
            f"their replicas: {_causes(failures)}"
        )


def _put_newer(member: Member, items: Mapping[bytes, bytes]) -> None:
    waiting = dict(items)
    while waiting:
        older: dict[bytes, Replacement] = {}
        for key, copy in zip(waiting, member.get_many(list(waiting)), strict=True):
            if _version(copy) < int.from_bytes(waiting[key][:VERSION_BYTES], "big"):
                older[key] = Replacement(seen=copy, value=seal(waiting[key]))
        if not older or member.replace_many(older) == len(older):
            return
        # Another writer was faster with some of them: look again what is there now. Versions only
        # grow, so that this ends.
        waiting = {key: waiting[key] for key in older}


def _version(copy: bytes | None) -> int:
    """The version of a stored copy; less than any where there is none, or a damaged one."""
    if copy is None:
        return -1
    try:
        return int.from_bytes(unseal(copy)[:VERSION_BYTES], "big")
    except BadCopyError:
        return -1


def _causes(failures: Mapping[str, Failure]) -> str:
    return "; ".join(f"{member_id}: {failure}" for member_id, failure in sorted(failures.items()))
