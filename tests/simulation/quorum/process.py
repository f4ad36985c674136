"""A process that owns, reads or moves registers on real members until it is killed.

    python process.py owner|reader|mover <folder> <name> <seed>

It writes down what it calls and what it is answered, one line each, into a file of its own: the
lines of a process that is killed stay, as the kernel has them. The clock is the one monotonic clock
of the host, so the lines of all processes can be put in one order.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path

from dagster_jet.errors import (
    FencedError,
    MembersChangedError,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from dagster_jet.store import (
    Configuration,
    Discovered,
    FileMember,
    Member,
    OwnedRegister,
    RegisterClient,
    discover_configuration,
    move_registers,
)

METADATA, REGISTER = "store", "data"
ALL, FIRST = "abcde", "abc"


class Members:
    """The members, one folder each, and how the value of "store" names some of them."""

    def __init__(self, folder: Path) -> None:
        self.all: dict[str, Member] = {m: FileMember(str(folder / m)) for m in ALL}
        for member in self.all.values():
            member.create()

    def of(self, letters: str) -> dict[str, Member]:
        return {letter: self.all[letter] for letter in letters}

    def parse(self, value: bytes) -> Configuration[Member]:
        number, letters, before = json.loads(value)
        previous = None if before is None else Configuration(number - 1, self.of(before))
        return Configuration(number, self.of(letters), previous)

    def discover(self, known: str) -> Discovered:
        found = discover_configuration(METADATA, self.of(known), self.parse)
        assert found is not None
        return found


def value_of(number: int, letters: str, before: str | None) -> bytes:
    return json.dumps([number, letters, before]).encode()


def create(folder: Path) -> None:
    first = Configuration(0, Members(folder).of(FIRST))
    RegisterClient(first, METADATA).claim(1, "creator").write(value_of(0, FIRST, None))


class Diary:
    """Log of the calls of this process and their answers."""

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}-{os.getpid()}.diary"
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._calls = 0

    def begin(self, kind: str, **what: object) -> int:
        self._calls += 1
        self._line(call=self._calls, begin=time.monotonic_ns(), kind=kind, **what)
        return self._calls

    def end(self, call: int, **what: object) -> None:
        self._line(call=call, end=time.monotonic_ns(), **what)

    def _line(self, **what: object) -> None:
        os.write(self._file, json.dumps(what).encode() + b"\n")


def own(members: Members, diary: Diary, name: str, rng: random.Random) -> None:
    """Claim, write a few times, and claim again, until somebody else has."""
    register = RegisterClient(members.discover(rng.choice(FIRST)).configuration, REGISTER)
    while True:
        highest = register.highest_ballot()
        number = 1 if highest is None else highest.number + 1
        owner = f"{name}-{os.getpid()}"
        call = diary.begin("claim", ballot=number)
        owned = register.claim(number, owner)
        diary.end(call, value=_text(owned.value))
        for _ in range(rng.randint(1, 12)):
            write(owned, diary, f"{owner}-{number}-{owned.sequence + 1}")
            time.sleep(rng.uniform(0, 0.004))


def write(owned: OwnedRegister, diary: Diary, value: str) -> None:
    call = diary.begin("write", ballot=owned.ballot.number, value=value)
    try:
        owned.write(value.encode())
    except StoreUnavailableError:
        diary.end(call, never=True)
        raise
    diary.end(call)


def read(members: Members, diary: Diary, name: str, rng: random.Random) -> None:
    register = RegisterClient(members.discover(rng.choice(FIRST)).configuration, REGISTER)
    while True:
        call = diary.begin("read")
        found = register.read()
        diary.end(call, value=None if found is None else found.value.decode())
        time.sleep(rng.uniform(0, 0.006))


def move(members: Members, diary: Diary, name: str, rng: random.Random) -> None:
    """Begin a change of the members, or finish the one that somebody has left behind."""
    known = rng.choice(FIRST)
    while True:
        here = members.discover(known).configuration
        letters = "".join(here.members)
        if not here.is_stable:
            move_registers(here)
        # Whoever claims first decides; the value found under the claim says what is to be done.
        register = RegisterClient(here, METADATA)
        highest = register.highest_ballot()
        assert highest is not None
        owned = register.claim(highest.number + 1, f"{name}-{os.getpid()}")
        assert owned.value is not None
        now = members.parse(owned.value)
        if now.number == here.number and now.is_stable == here.is_stable:
            if here.is_stable:
                new = "".join(rng.sample(ALL, rng.choice([2, 3, 3, 3, 4])))
                owned.write(value_of(here.number + 1, new, letters))
            else:
                owned.write(value_of(here.number, letters, None))
                diary.end(diary.begin("move"), to=letters)
        time.sleep(rng.uniform(0, 0.03))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def main(role: str, folder: Path, name: str, seed: int) -> None:
    members, diary, rng = Members(folder), Diary(folder, name), random.Random(seed)
    work = {"owner": own, "reader": read, "mover": move}[role]
    while True:
        try:
            work(members, diary, name, rng)
        except (
            FencedError,
            MembersChangedError,
            StoreUnavailableError,
            WriteOutcomeUnknownError,
        ):
            time.sleep(rng.uniform(0, 0.01))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
