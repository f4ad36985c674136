"""Notes, in the store itself, of damaged copies that were seen.

A read repairs them and goes on, and nobody would know that a disk has begun to forget.

Whoever meets one, an executor as well as the driver, notes on which member it was; whoever asks for
the store's status reads the notes. A verification that has read every copy of every member takes
them back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from dagster_jet.errors import JetError
from dagster_jet.store.map.intents import without_intents
from dagster_jet.store.map.replicated_map import MapKey, ReplicatedMap
from dagster_jet.store.map.routing import ReplicaRouting
from dagster_jet.store.map.stored_key import (
    DAMAGE,
    VERSION_BYTES,
    map_prefix,
    stored_key,
    version_of,
)
from dagster_jet.store.members.fan_out import BRIEF_SECONDS_MAX, fan_out
from dagster_jet.store.members.member import Member
from dagster_jet.store.values.envelope import BadCopyError
from dagster_jet.store.values.sealing import Sealer

NOTED_MAX = 1_000
"""Of one member: more say nothing new, and a member that cannot be read would be noted for ever."""

_PREFIX = map_prefix("", DAMAGE)  # of no namespace: members belong to all of them


@dataclass(frozen=True)
class DamageNotes:
    """The notes of one store, as of one table.

    Attributes:
        members: every member that the routing names.
        routing: where notes are kept, like all values.
        check: raises when that is no longer the store's routing.
        sealer: how values are stored.
    """

    members: Mapping[str, Member]
    routing: ReplicaRouting
    check: Callable[[], None]
    sealer: Sealer

    def add(self, copies: Mapping[str, int]) -> None:
        """Note that so many more damaged copies were seen on these members.

        Best effort, because a read that has found a good copy does not fail for want of a note.
        """
        notes = self._map()
        with suppress(JetError):
            keys = {member_id: self._key(member_id) for member_id in copies}
            noted = dict(zip(keys, notes.get_all([*keys.values()]), strict=True))
            sums = {m: _count(noted[m]) + copies[m] for m in keys if _count(noted[m]) < NOTED_MAX}
            # Two that count at one moment count one too few; nothing turns on the number.
            notes.put_newer({keys[m]: _note(min(n, NOTED_MAX)) for m, n in sums.items()})

    def known(self, answering: Collection[str]) -> dict[str, int]:
        """Return how many damaged copies are noted, by member; those without are not in it.

        Only members that answer are asked, and briefly: the status of a store has no time for more.
        """
        keys = {m: self._stored(m) for m in self.routing.table.members}
        asked = {
            holder: [m for m in keys if holder in self.routing.holders(self._key(m).partition)]
            for holder in answering
        }

        def get(holder: str) -> Callable[[], list[bytes | None]]:
            return lambda: self.members[holder].get_many([keys[m] for m in asked[holder]])

        found, _ = fan_out(
            {holder: get(holder) for holder, of in asked.items() if of}, within_s=BRIEF_SECONDS_MAX
        )
        counts: dict[str, int] = {}
        for holder, copies in found.items():
            for member_id, copy in zip(asked[holder], copies, strict=True):
                count = self._read(keys[member_id], copy)
                if count > counts.get(member_id, 0):
                    counts[member_id] = count
        return counts

    def forget(self, noted: Mapping[str, int]) -> None:
        """Take notes back, unless more were made since; best effort, the next verification tries
        again."""
        with suppress(JetError):
            now = self.known(self.members.keys())
            self._map().delete_all([self._key(m) for m in noted if now.get(m) == noted[m]])

    def _map(self) -> ReplicatedMap:
        return ReplicatedMap(
            self.members, self.routing, _PREFIX, check=self.check, sealer=self.sealer
        )

    def _key(self, member_id: str) -> MapKey:
        return MapKey.of(member_id, self.routing.partition_count)

    def _stored(self, member_id: str) -> bytes:
        return stored_key(_PREFIX, self._key(member_id).partition, member_id)

    def _read(self, key: bytes, stored: bytes | None) -> int:
        copy = without_intents(stored)
        if copy is None:
            return 0
        try:
            return version_of(self.sealer.unseal(copy, key))
        except BadCopyError:
            return 1  # the note itself is damaged: somebody's copies are


def _note(count: int) -> bytes:
    return count.to_bytes(VERSION_BYTES, "big")


def _count(note: bytes | None) -> int:
    return 0 if note is None else version_of(note)
