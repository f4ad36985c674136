"""One history of a job that takes snapshots while an operator changes the members of its store.

The job writes chunks through a handle, as executors do, and then decides in its record which of
them count, as the driver does; it drops older ones. Told that the members have changed, or dying,
it starts anew: it looks up the record and must find every chunk that it names. The operator adds
and removes members, loses one, dies in the middle, and goes on as another process.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from dagster_jet.errors import (
    FencedError,
    MembersChangedError,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)
from dagster_jet.store import MapKey, MemoryMember, OwnedRegister, Store, StoreConfig
from dagster_jet.store.members import fan_out
from dagster_jet.store.upkeep import administration
from dagster_jet.store.values.envelope import seal
from tests.simulation.interleaving import Crash, InOnesOwnThread, Interleaving
from tests.simulation.rebalancing import Violation

PARTITIONS = 3
RETAINED = 2
CALLS = (
    *("get_many", "put_many", "replace_many", "delete_many", "list_keys"),
    *("get_versioned", "compare_and_set", "list_versioned", "ping"),
)
TOLD_TO_START_ANEW = (
    MembersChangedError,
    FencedError,
    StoreUnavailableError,
    WriteOutcomeUnknownError,
)


class ChangeHistory:
    """Members a to f, of which a, b and c are there at first."""

    BACKUPS = 1
    CHANGES = ("add", "remove", "lose")

    def __init__(self, seed: int) -> None:
        self.interleaving = Interleaving(seed)
        self.random = self.interleaving.random
        suffix = uuid.uuid4().hex
        self.urls = {name: f"memory://{name}-{suffix}" for name in "abcdef"}
        self.gone: set[str] = set()
        self.decided: set[bytes | None] = {None}
        """Values that the record may have: the last confirmed decision, and those begun since."""
        self.executions = 0
        self.changes = 0

    def play(self) -> None:
        """Run the history.

        Raises:
            Violation: a chunk that the record names is missing.
        """
        with self._stepped_members():
            Store.open(self._config("abc")).close()
            self.interleaving.run({"job": self._job, "operator": self._operator})
            with self._open() as store:
                store.repair()
                self._check_every_copy(store)

    def _config(self, names: str) -> StoreConfig:
        urls = tuple(self.urls[name] for name in names)
        return StoreConfig(
            urls, partition_count=PARTITIONS, backup_count=self.BACKUPS, allow_memory=True
        )

    def _open(self) -> Store:
        return Store.open(self._config("abcdef"))

    @contextmanager
    def _stepped_members(self) -> Iterator[None]:
        def stepped(call: Callable[..., Any]) -> Callable[..., Any]:
            def step_first(member: MemoryMember, *arguments: Any) -> Any:
                self.interleaving.step()
                if member.member_id in self.gone:
                    raise StoreUnavailableError(f"{member.member_id} does not answer.")
                return call(member, *arguments)

            return step_first

        with ExitStack() as patched:
            for name in CALLS:
                call = stepped(getattr(MemoryMember, name))
                patched.enter_context(patch.object(MemoryMember, name, call))
            patched.enter_context(patch.object(administration, "_PAUSE_SECONDS", 0))
            fan_out.new_answers = lambda: InOnesOwnThread(self.interleaving)
            try:
                yield
            finally:
                fan_out.new_answers = fan_out.Answers

    # --- the job --------------------------------------------------------------------------------

    def _job(self) -> None:
        snapshots = self.random.randint(4, 10)
        store = self._open()
        while snapshots > 0:
            try:
                if self.random.random() < 0.2:
                    self.interleaving.crash_in(self.random.randint(0, 150))
                store.refresh()
                owned = self._restore(store)
                while snapshots > 0:
                    snapshots -= 1
                    self._snapshot(store, owned)
            except TOLD_TO_START_ANEW:
                continue
            except Crash:
                store = self._open_again()
        store.close()

    def _open_again(self) -> Store:
        self.interleaving.do_not_crash()
        while True:
            try:
                return self._open()
            except TOLD_TO_START_ANEW:
                continue

    def _restore(self, store: Store) -> OwnedRegister:
        self.executions += 1
        register = store.register("record")
        highest = register.highest_ballot()
        owned = register.claim(highest.number + 1 if highest else 1, f"job {self.executions}")
        if owned.value not in self.decided:
            raise Violation(f"the record says {owned.value!r}, expected one of {self.decided}")
        self.decided = {owned.value}
        named = [name for names in json.loads(owned.value or b"[]") for name in names]
        keys = [MapKey(partition, name) for name in named for partition in range(PARTITIONS)]
        for key, found in zip(keys, store.handle().map("state").get_all(keys), strict=True):
            if found != content(key):
                raise Violation(f"the record names {key}, and the store has {found!r}")
        return owned

    def _snapshot(self, store: Store, owned: OwnedRegister) -> None:
        handle = store.handle()
        retained = json.loads(owned.value or b"[]")
        name = f"{owned.ballot.number}-{owned.sequence}"
        chunks = [MapKey(partition, name) for partition in range(PARTITIONS)]
        self.dawdle()
        handle.map("state").put_all({chunk: content(chunk) for chunk in chunks})
        decision = json.dumps([[name], *retained][:RETAINED]).encode()
        self.decided.add(decision)
        owned.write(decision)
        self.decided = {decision}
        dropped = [old for names in [[name], *retained][RETAINED:] for old in names]
        store.map("state").delete_all(
            [MapKey(partition, old) for old in dropped for partition in range(PARTITIONS)]
        )

    def dawdle(self) -> None:
        """Executors take their time: the members may change before they write."""
        if self.random.random() < 0.5:
            for _ in range(self.random.randint(0, 400)):
                self.interleaving.step()

    # --- the operator ---------------------------------------------------------------------------

    def _operator(self) -> None:
        for _ in range(self.random.randint(1, 3)):
            change = self._next_change()
            while True:
                try:
                    if self.random.random() < 0.4:
                        self.interleaving.crash_in(self.random.randint(0, 300))
                    with self._open() as store:
                        change(store)
                except TOLD_TO_START_ANEW:
                    continue
                except Crash:
                    change = Store.repair  # as another process, by somebody else
                    continue
                self.changes += 1
                break

    def _next_change(self) -> Callable[[Store], object]:
        with self._open_again() as store:
            members = [name for name, url in self.urls.items() if url in store.table.members]
        outside = [name for name in self.urls if name not in members]
        what = self.random.choice(self.CHANGES)
        if what == "add" or len(members) < 3:
            joining = self.random.choice(outside)
            self.gone.discard(self.urls[joining])
            return lambda store: store.add_member(self.urls[joining])
        leaving = self.random.choice(members)
        if what == "lose":
            self.gone.add(self.urls[leaving])
            return Store.repair
        return lambda store: store.remove_member(self.urls[leaving])

    # --- the end --------------------------------------------------------------------------------

    def _check_every_copy(self, store: Store) -> None:
        store.refresh()
        if not store.is_safe():
            raise Violation("the store is not safe after a repair")
        record = store.register("record").read()
        for names in json.loads(record.value if record else b"[]"):
            for key in [MapKey(partition, name) for name in names for partition in range(3)]:
                for member_id in store.table.replicas[key.partition]:
                    member = MemoryMember(member_id.removeprefix("memory://"))
                    stored = f"map/default/state/{key.partition:04d}/{key.name}".encode()
                    if member.get_many([stored]) != [seal(content(key))]:
                        raise Violation(f"{member_id} does not have {key}")


def content(key: MapKey) -> bytes:
    """Bytes that a chunk should hold."""
    return f"chunk {key.name} of partition {key.partition}".encode()
