"""Histories in which copies are removed while others put copies back: what is deleted stays so,
and nothing that counts is taken for left over.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from unittest.mock import patch

from dagster_jet.errors import MembersChangedError, StoreUnavailableError
from dagster_jet.store import MapKey, MemoryMember, PartitionTable, ReplicaRouting, ReplicatedMap
from dagster_jet.store.map.intents import without_intents
from dagster_jet.store.members import fan_out
from dagster_jet.store.upkeep import verification
from dagster_jet.store.upkeep.migration import migrate
from dagster_jet.store.upkeep.orphans import drop_orphans
from dagster_jet.store.upkeep.verification import verify
from dagster_jet.store.values.envelope import seal
from tests.simulation.interleaving import Crash, InOnesOwnThread, Interleaving, SteppedMember
from tests.simulation.rebalancing import KEYS, PREFIX, History, Violation, stored


class DeletingHistory(History):
    """A partition with two backups. One member loses copies of keys again and again; readers and an
    operator put them back, and die in the middle, while a writer deletes.

    A copy is not lost while it is being put: what was there before may then be put back beside it,
    until it is put again.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        ids = tuple(self.places)
        holders = tuple(self.random.sample(ids, 3))
        self.routing = ReplicaRouting(PartitionTable(1, (holders,), ids, 2))
        self.map = ReplicatedMap(self.members, self.routing, PREFIX)
        self.forgetting = self.random.choice(holders)
        self.being_put: set[MapKey] = set()
        self.put_all, self.map.put_all = self.map.put_all, self._put_all

    def _put_all(self, items: dict[MapKey, bytes]) -> None:
        self.being_put |= items.keys()
        self.put_all(items)
        self.being_put -= items.keys()

    def play(self) -> None:
        with patch.object(verification, "_PAUSE_SECONDS", 0):
            super().play()

    def _actors(self) -> dict[str, Callable[[], None]]:
        return {
            "writer": self._write,
            "reader 1": self._read_and_die,
            "reader 2": self._read_and_die,
            "operator": self._verify,
            "disk": self._forget,
        }

    def _read_and_die(self) -> None:
        for _ in range(3):
            try:
                if self.random.random() < 0.5:
                    self.interleaving.crash_in(self.random.randint(0, 8))
                self._read()
            except Crash:
                continue

    def _verify(self) -> None:
        for _ in range(3):
            try:
                if self.random.random() < 0.5:
                    self.interleaving.crash_in(self.random.randint(0, 12))
                verify(self.members, self.routing, check_table=self.interleaving.step, repair=True)
            except Crash:
                continue

    def _forget(self) -> None:
        for _ in range(8):
            self.interleaving.step()
            key = self.random.choice(KEYS)
            if key not in self.being_put:
                self.places[self.forgetting].delete_many([stored(key)])

    def _check_replicas(self) -> None:
        for key, model in self.models.items():
            allowed = {None if value is None else seal(value) for value in model.possible}
            for member_id in self.routing.holders(0):
                (copy,) = self.places[member_id].get_many([stored(key)])
                copy = without_intents(copy)
                is_lost = copy is None and member_id == self.forgetting
                if not (model.unfinished or is_lost or copy in allowed):
                    raise Violation(
                        f"{member_id} has {copy!r} of {key.name}, expected one of {allowed}"
                    )

    def _check_reads(self) -> None:
        for key, model in self.models.items():
            if not model.unfinished and {self.map.get(key)} != model.possible:
                raise Violation(f"{key.name} reads {self.map.get(key)!r}, not {model.possible}")


class LeftoverHistory:
    """A partition moves to and fro; whoever removes orphans goes by the table that it knows."""

    def __init__(self, seed: int) -> None:
        self.interleaving = Interleaving(seed)
        self.random = self.interleaving.random
        places = [MemoryMember(uuid.uuid4().hex) for _ in range(3)]
        self.places = {f"m{at}": place for at, place in enumerate(places)}
        self.members = {
            name: SteppedMember(self.interleaving, place) for name, place in self.places.items()
        }
        self.backups = self.random.choice([0, 0, 1])
        self.version = 0
        self.routing = ReplicaRouting(self._some_table())
        for member_id in self.places:
            if member_id in self.routing.holders(0) or self.random.random() < 0.5:
                self.places[member_id].put_many({stored(key): seal(b"v") for key in KEYS})

    def play(self) -> None:
        """Run the history.

        Raises:
            Violation: a holder lacks a value.
        """
        with patch.object(fan_out, "new_answers", lambda: InOnesOwnThread(self.interleaving)):
            self.interleaving.run({"operator": self._move, "gc 1": self._drop, "gc 2": self._drop})
        for key in KEYS:
            for member_id in self.routing.holders(0):
                (copy,) = self.places[member_id].get_many([stored(key)])
                if without_intents(copy) != seal(b"v"):
                    raise Violation(f"the holder {member_id} has {copy!r} of {key.name}")

    def _some_table(self) -> PartitionTable:
        self.version += 1
        ids = tuple(self.places)
        held = tuple(self.random.sample(ids, self.backups + 1))
        return PartitionTable(self.version, (held,), ids, self.backups)

    def _move(self) -> None:
        for _ in range(self.random.randint(2, 5)):
            self.interleaving.step()
            target = self._some_table()
            self.routing = ReplicaRouting(self.routing.table, target)
            while True:
                try:
                    if self.random.random() < 0.3:
                        self.interleaving.crash_in(self.random.randint(0, 10))
                    migrate(self.members, self.routing, check_still_ours=self.interleaving.step)
                except (Crash, StoreUnavailableError):
                    continue
                break
            self.interleaving.do_not_crash()
            self.interleaving.step()
            self.routing = ReplicaRouting(target)

    def _drop(self) -> None:
        for _ in range(4):
            self.interleaving.do_not_crash()
            self.interleaving.step()
            known = self.routing

            def check(known: ReplicaRouting = known) -> None:
                self.interleaving.step()
                if self.routing is not known:
                    raise MembersChangedError("the table is another one by now.")

            try:
                if self.random.random() < 0.3:
                    self.interleaving.crash_in(self.random.randint(0, 8))
                drop_orphans(self.members, known, check_table=check)
            except (Crash, MembersChangedError):
                continue
