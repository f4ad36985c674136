"""Notes of damaged copies, kept in the store itself.

Reads repair damaged copies silently, so a failing disk would stay unnoticed. Every process that
finds a damaged copy, executor or driver, notes the member it was on. The status of the store shows
the notes. A verification that has read every copy of every member removes them.
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
"""Largest count per member, so that an unreadable member is not noted for ever."""

_PREFIX = map_prefix("", DAMAGE)  # no namespace: members serve all of them


@dataclass(frozen=True)
class DamageNotes:
    """The notes of one store, under one table.

    Attributes:
        members: every member that the routing names.
        routing: the members that keep the notes, as for all values.
        check: raises when that is no longer the store's routing.
        sealer: seals and unseals values.
    """

    members: Mapping[str, Member]
    routing: ReplicaRouting
    check: Callable[[], None]
    sealer: Sealer

    def add(self, copies: Mapping[str, int]) -> None:
        """Add the numbers of damaged copies seen, by member.

        Best effort: a read that has found a good copy does not fail because of a note.
        """
        notes = self._map()
        with suppress(JetError):
            keys = {member_id: self._key(member_id) for member_id in copies}
            noted = dict(zip(keys, notes.get_all([*keys.values()]), strict=True))
            sums = {m: _count(noted[m]) + copies[m] for m in keys if _count(noted[m]) < NOTED_MAX}
            # Two concurrent writers may count one too few; the number is informative only.
            notes.put_newer({keys[m]: _note(min(n, NOTED_MAX)) for m, n in sums.items()})

    def known(self, answering: Collection[str]) -> dict[str, int]:
        """Return the number of damaged copies noted, by member; members without are left out.

        Only members that answer are asked, with a short timeout, so that a status stays quick.
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
        """Remove notes whose counts have not grown; best effort, retried by later verifications."""
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
            return 1  # the note itself is damaged, which counts as one damaged copy


def _note(count: int) -> bytes:
    return count.to_bytes(VERSION_BYTES, "big")


def _count(note: bytes | None) -> int:
    return 0 if note is None else version_of(note)
