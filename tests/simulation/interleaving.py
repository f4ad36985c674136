"""Actors whose steps interleave as a seed says: one runs at a time, and changes at every call.

Every call of a member is a step. Several calls that the store makes at once (``fan_out``) come in
a random order, each of them a step of its own.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence

from dagster_jet.store import MemoryMember, Replacement
from dagster_jet.store.members.fan_out import Answer


class Crash(BaseException):
    """The actor's process is gone; nothing in the library may catch it."""


class Interleaving:
    """Passes the turn among threads."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._turns: dict[str, threading.Event] = {}
        self._crash_in: dict[str, int] = {}
        self._me = threading.local()
        self._failures: list[BaseException] = []

    def run(self, actors: Mapping[str, Callable[[], None]]) -> None:
        """Run all actors to their ends."""
        threads = [
            threading.Thread(target=self._act, args=(name, act), daemon=True)
            for name, act in actors.items()
        ]
        self._turns = {name: threading.Event() for name in actors}
        for thread in threads:
            thread.start()
        self._pass_on()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        if self._failures:
            raise self._failures[0]

    def crash_in(self, steps: int) -> None:
        """Let the running actor crash after so many steps."""
        self._crash_in[self._me.name] = steps

    def do_not_crash(self) -> None:
        """Take ``crash_in`` of the running actor back."""
        self._crash_in.pop(self._me.name, None)

    def step(self) -> None:
        """Perhaps let others run; a crash happens here. Nothing outside of ``run``."""
        name = getattr(self._me, "name", None)
        if name is None:
            return
        if name in self._crash_in:
            self._crash_in[name] -= 1
            if self._crash_in[name] < 0:
                del self._crash_in[name]
                raise Crash(name)
        turn = self._turns[name]
        turn.clear()
        self._pass_on()
        assert turn.wait(60)

    def _pass_on(self) -> None:
        if self._turns:
            self._turns[self.random.choice(sorted(self._turns))].set()

    def _act(self, name: str, act: Callable[[], None]) -> None:
        self._me.name = name
        self._turns[name].wait(60)
        try:
            act()
        except BaseException as error:
            self._failures.append(error)
        finally:
            del self._turns[name]
            self._pass_on()


class InOnesOwnThread:
    """Answers of members (``fan_out``) that are asked in the caller's thread, in a random order."""

    def __init__(self, interleaving: Interleaving) -> None:
        self._random = interleaving.random
        self._calls: dict[str, Callable[[], object]] = {}
        self._order: list[str] = []

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(self._calls)

    def ask(self, member_id: str, call: Callable[[], object], within_s: float) -> None:
        self._calls[member_id] = call

    def next(self, within_s: float | None = None) -> Answer[object]:
        if not self._order:
            self._order = list(self._calls)
            self._random.shuffle(self._order)
        member_id = self._order.pop()
        call = self._calls.pop(member_id)
        try:
            return Answer(member_id, call(), None)
        except Crash:
            raise
        except BaseException as error:
            return Answer(member_id, None, error)

    def has_overdue_calls(self, member_id: str) -> bool:
        return False

    def abandon(self) -> None:
        self._calls.clear()
        self._order.clear()


class SteppedMember:
    """A member each of whose calls is a step."""

    def __init__(self, interleaving: Interleaving, member: MemoryMember) -> None:
        self._interleaving, self._member = interleaving, member
        self.member_id = member.member_id

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._interleaving.step()
        return self._member.get_many(keys)

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        self._interleaving.step()
        self._member.put_many(items)

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        self._interleaving.step()
        return self._member.replace_many(items)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        self._interleaving.step()
        self._member.delete_many(keys)

    def list_keys(self, prefix: bytes) -> list[bytes]:
        self._interleaving.step()
        return self._member.list_keys(prefix)
