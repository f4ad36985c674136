"""One history of a store whose members come back with old data.

Copies of single members are taken at any time and put back later, one member at a time, in the
place of what the member had: as a folder that is restored, or a replica that takes a server's
place. Nothing else fails. Programs that open the store read what was confirmed last, of maps and
of registers; an operator verifies and repairs.

What a member has told only to the one client that died cannot be known by anybody: so a copy that
is put back lacks at least two batches of the map and a claim of the register.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import Any

from dagster_jet.errors import StoreError
from dagster_jet.maps.user_map import JetMap
from dagster_jet.store import MemoryMember, Store, StoreConfig, Versioned
from tests.simulation.rebalancing import Violation

KEYS = ("a", "b", "c", "d")
LACKING = 2


@dataclass(frozen=True)
class Copy:
    """All that a member had, and how often the map and the register had been changed by then."""

    values: dict[bytes, bytes]
    versioned: dict[bytes, Versioned]
    batches: int
    claims: int


class ReturningHistory:
    """Three or four members with one or two backups."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        count = self.random.choice([3, 3, 4])
        names = [f"{letter}-{uuid.uuid4().hex}" for letter in "abcd"[:count]]
        self.members = [MemoryMember(name) for name in names]
        self.config = StoreConfig(
            tuple(f"memory://{name}" for name in names),
            partition_count=3,
            backup_count=self.random.choice([1, 1, 2]),
            allow_memory=True,
        )
        self.copies: list[tuple[MemoryMember, Copy]] = []
        self.entries: dict[str, int] = {}
        self.decided: bytes | None = None
        self.batches = self.claims = self.written = 0
        self.is_one_older = False
        self.returned = 0

    def play(self, steps: int = 40) -> None:
        """Run the history.

        Raises:
            Violation: a program read something else than what was confirmed last.
        """
        self._open().close()
        for _ in range(steps):
            self.random.choice(
                [
                    self._put,
                    self._put,
                    self._decide,
                    self._copy,
                    self._return,
                    self._read,
                    self._read,
                ]
            )()
            if self.is_one_older and self.random.random() < 0.2:
                self._repair()
        self._repair()
        self._read()

    def _open(self) -> Store:
        return Store.open(self.config)

    def _put(self) -> None:
        """A program writes a few batches to the map."""
        with self._open() as store:
            values = JetMap.open(store, "m")
            for _ in range(self.random.randint(1, 3)):
                key = self.random.choice(KEYS)
                try:
                    if key in self.entries and self.random.random() < 0.3:
                        values.delete(key)
                        del self.entries[key]
                    else:
                        self.written += 1
                        values.put(key, self.written)
                        self.entries[key] = self.written
                except StoreError:
                    # A member was found to be older: the batch may count or not.
                    self._repair()
                    self._take_what_holds()
                    return
                self.batches += 1

    def _take_what_holds(self) -> None:
        with self._open() as store:
            self.entries = dict(JetMap.open(store, "m").items())

    def _decide(self) -> None:
        """An owner claims the register, finds what was decided last, and decides."""
        with self._open() as store:
            register = store.register("record")
            highest = register.highest_ballot()
            owned = register.claim(highest.number + 1 if highest else 1, uuid.uuid4().hex)
            self._check("an owner adopts", owned.value, self.decided)
            for _ in range(self.random.randint(1, 3)):
                self.written += 1
                owned.write(b"%d" % self.written)
                self.decided = b"%d" % self.written
            self.claims += 1

    def _read(self) -> None:
        with self._open() as store:
            found = store.register("record").read()
            self._check("the register has", found.value if found else None, self.decided)
            values = JetMap.open(store, "m")
            self._check("the map has", values.get_all(KEYS), self.entries)
            self._check("the map lists", dict(values.items()), self.entries)

    def _copy(self) -> None:
        member = self.random.choice(self.members)
        room = member._kept
        copy = Copy(dict(room.values), dict(room.versioned), self.batches, self.claims)
        self.copies.append((member, copy))

    def _return(self) -> None:
        old = [
            (member, copy)
            for member, copy in self.copies
            if self.batches >= copy.batches + LACKING and self.claims > copy.claims
        ]
        if self.is_one_older or not old:
            return
        member, copy = self.random.choice(old)
        room = member._kept
        room.values, room.versioned = dict(copy.values), dict(copy.versioned)
        self.is_one_older = True
        self.returned += 1

    def _repair(self) -> None:
        with self._open() as store:
            if self.random.random() < 0.5:
                store.verify(repair=True)
            store.repair()
            self.is_one_older = False
            self.copies = []  # older ones are of members that are new ones now
            verified = store.verify()
            if not (store.is_safe() and verified.is_whole):
                raise Violation(f"not whole after a repair: {verified}")

    @staticmethod
    def _check(what: str, found: Any, expected: Any) -> None:
        if found != expected:
            raise Violation(f"{what} {found!r}, expected {expected!r}")
