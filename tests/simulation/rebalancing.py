"""One history of a partition that moves while it is written, read and copied.

The writer is one process at a time; it may die in the middle of a write, and another goes on. The
mover may die as well, and another begins anew. Readers check each answer against what a reader may
see; in the end every replica of the new table has what the last finished write of each key says.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from dagster_jet.store import MapKey, MemoryMember, PartitionTable, ReplicaRouting, ReplicatedMap
from dagster_jet.store.members import fan_out
from dagster_jet.store.upkeep.migration import migrate
from dagster_jet.store.values.envelope import seal, unseal
from tests.simulation.interleaving import Crash, InOnesOwnThread, Interleaving, SteppedMember

KEYS = tuple(MapKey(0, name) for name in "abc")
PREFIX = "map/sim/m"


class Violation(AssertionError):
    """The store broke a promise; the message says which."""


@dataclass
class Model:
    """Values that one key may have.

    Attributes:
        possible: what a reader that begins now may see, besides what is written while it reads.
        unfinished: a writer died in the middle of its last write.
    """

    possible: set[bytes | None] = field(default_factory=lambda: {None})
    unfinished: bool = False


class History:
    """Four members; the partition moves from two or three of them to others."""

    def __init__(self, seed: int) -> None:
        self.interleaving = Interleaving(seed)
        self.random = self.interleaving.random
        places = [MemoryMember(uuid.uuid4().hex) for _ in range(4)]
        self.places = {f"m{at}": place for at, place in enumerate(places)}
        self.members = {
            name: SteppedMember(self.interleaving, place) for name, place in self.places.items()
        }
        ids = tuple(self.places)
        holders = tuple(self.random.sample(ids, self.random.choice([1, 2, 2, 3])))
        target = tuple(self.random.sample(ids, self.random.choice([1, 2, 2, 3])))
        if set(target) <= set(holders):
            target = (*target[1:], next(m for m in ids if m not in holders))
        self.routing = ReplicaRouting(
            PartitionTable(1, (holders,), ids, len(holders) - 1),
            PartitionTable(2, (target,), ids, len(target) - 1),
        )
        self.map = ReplicatedMap(self.members, self.routing, PREFIX)
        self.models = {key: Model() for key in KEYS}
        self.written = 0

    def play(self) -> None:
        """Run the history.

        Raises:
            Violation: names what was promised and what was found.
        """
        fan_out.new_answers = lambda: InOnesOwnThread(self.interleaving)
        try:
            self._begin()
            self.interleaving.run(self._actors())
            self._check_replicas()
            self._check_reads()
        finally:
            fan_out.new_answers = fan_out.Answers

    def _actors(self) -> dict[str, Callable[[], None]]:
        return {"writer": self._write, "mover": self._move, "reader": self._read}

    def _begin(self) -> None:
        """Puts some keys; receivers may have copies from an earlier life."""
        for key in KEYS:
            if self.random.random() < 0.7:
                value = self._new_value()
                for member_id in self.routing.holders(0):
                    self._place(member_id, key, value)
                self.models[key].possible = {value}
            for member_id in self.routing.receivers(0):
                if self.random.random() < 0.3:
                    self._place(member_id, key, b"from an earlier life")

    def _place(self, member_id: str, key: MapKey, value: bytes) -> None:
        self.places[member_id].put_many({stored(key): seal(value)})

    def _new_value(self) -> bytes:
        self.written += 1
        return b"%d" % self.written

    def _write(self) -> None:
        for _ in range(self.random.randint(3, 8)):
            key = self.random.choice(KEYS)
            model = self.models[key]
            value = None if self.random.random() < 0.4 else self._new_value()
            model.possible.add(value)
            try:
                if self.random.random() < 0.15:
                    self.interleaving.crash_in(self.random.randint(0, 4))
                if value is None:
                    self.map.delete_all([key])
                else:
                    self.map.put_all({key: value})
            except Crash:
                model.unfinished = True
                continue
            model.possible, model.unfinished = {value}, False

    def _move(self) -> None:
        while True:
            try:
                if self.random.random() < 0.5:
                    self.interleaving.crash_in(self.random.randint(0, 12))
                migrate(self.members, self.routing, check_still_ours=self.interleaving.step)
            except Crash:
                continue
            return

    def _read(self) -> None:
        for _ in range(self.random.randint(3, 8)):
            key = self.random.choice(KEYS)
            model = self.models[key]
            before = set(model.possible)
            found = self.map.get(key)
            if found not in before | model.possible and not self._passed_by(before, found):
                raise Violation(f"a read found {found!r}, expected one of {model.possible}")

    def _passed_by(self, before: set[bytes | None], found: bytes | None) -> bool:
        """Whether a value was written and replaced again during the read."""
        numbers = [int(value) for value in before if value is not None]
        return found is None or int(found) > max(numbers, default=0)

    def _check_replicas(self) -> None:
        target = self.routing.target
        assert target is not None
        for key, model in self.models.items():
            allowed = {None if value is None else seal(value) for value in model.possible}
            for member_id in target.replicas[0]:
                (copy,) = self.places[member_id].get_many([stored(key)])
                if copy not in allowed:
                    raise Violation(
                        f"{member_id} has {copy!r} of {key.name}, expected one of {allowed}"
                    )

    def _check_reads(self) -> None:
        assert self.routing.target is not None
        after = ReplicatedMap(self.members, self.routing.target, PREFIX)
        for key, model in self.models.items():
            if not model.unfinished and {after.get(key)} != model.possible:
                raise Violation(f"{key.name} reads {after.get(key)!r}, not {model.possible}")


class VersionedHistory(History):
    """Several writers at once, whose values have versions (``put_newer``)."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.finished = dict.fromkeys(KEYS, 0)
        self.begun = dict.fromkeys(KEYS, 0)

    def _actors(self) -> dict[str, Callable[[], None]]:
        writers = {f"writer {number}": self._write for number in range(3)}
        return {**writers, "mover": self._move, "reader": self._read}

    def _begin(self) -> None:
        for key in KEYS:
            for member_id in self.places:
                if self.random.random() < 0.3 and member_id not in self.routing.holders(0):
                    self._place(member_id, key, versioned(10**6))  # from an earlier life

    def _write(self) -> None:
        for _ in range(self.random.randint(2, 4)):
            key = self.random.choice(KEYS)
            self.written += 1
            version = self.written
            self.begun[key] = max(self.begun[key], version)
            try:
                if self.random.random() < 0.15:
                    self.interleaving.crash_in(self.random.randint(0, 4))
                self.map.put_newer({key: versioned(version)})
            except Crash:
                continue
            self.finished[key] = max(self.finished[key], version)

    def _read(self) -> None:
        for _ in range(self.random.randint(3, 8)):
            key = self.random.choice(KEYS)
            low = self.finished[key]
            found = version_of(self.map.get(key))
            if not low <= found <= self.begun[key]:
                raise Violation(f"a read found version {found}, after {low} was finished")

    def _check_replicas(self) -> None:
        target = self.routing.target
        assert target is not None
        for key, low in self.finished.items():
            for member_id in target.replicas[0]:
                (copy,) = self.places[member_id].get_many([stored(key)])
                version = 0 if copy is None else version_of(unseal(copy))
                if not low <= version <= self.begun[key]:
                    raise Violation(f"{member_id} has version {version}, {low} was finished")

    def _check_reads(self) -> None:
        """Replicas have been checked one by one."""


def versioned(version: int) -> bytes:
    """A value as ``put_newer`` wants it."""
    return version.to_bytes(8, "big")


def version_of(value: bytes | None) -> int:
    """The version of a value, 0 for none."""
    return 0 if value is None else int.from_bytes(value, "big")


def stored(key: MapKey) -> bytes:
    """A key as members know it, by code of the test's own."""
    return f"{PREFIX}/{key.partition:04d}/{key.name}".encode()
