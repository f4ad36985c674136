"""Log of a map: all writes go through it in batches, each decided atomically.

    1. the batch is written to the store as a *blob* that nothing refers to yet
    2. the map's register := state with this batch as the newest one        <== DECISION POINT
    3. *apply*: write the entries, and the events into the journal's ring, each with its version

The register is the store's quorum register, so a process that has lost it cannot write, and batches
are totally ordered over all processes. A process that claims the register applies the newest batch
before it decides the next one, so a decided batch is not lost with its writer. Applying is
idempotent and safe at any time, because versions only grow (`ReplicatedMap.put_newer`): a process
that wakes up after later batches changes nothing.

For the same reason a deleted key leaves a tombstone, an entry without value: a late put with an
older version must find it.
"""

from __future__ import annotations

import os
import struct
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary, WeakValueDictionary

from dagster_jet.errors import FencedError, StoreUnavailableError
from dagster_jet.maps.changes import MapChange, Record, decode_changes, encode_changes
from dagster_jet.maps.key_encoding import entry_key
from dagster_jet.maps.log_state import LogState, Producer
from dagster_jet.maps.parts import MapParts, retry_after_membership_change
from dagster_jet.maps.settings import MapSettings
from dagster_jet.store import MapKey, OwnedRegister, RegisterClient, Store
from dagster_jet.system.backoff import attempts
from dagster_jet.system.failpoint import fail_point

_VERSION = struct.Struct(">Q")
_PATIENCE_S = 60.0
_RACES_MAX = 1000


class MapLog:
    """Log of one map in one process. Thread-safe; calls are serialized."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self._parts = MapParts(store, name)
        self._store = store
        self._applied = 0
        """Version of the newest batch that is known to be on all replicas."""
        self.begin_anew()

    def begin_anew(self) -> None:
        """Make this process a writer that has written nothing.

        A forked child must not number its batches under its parent's name: the state would seem to
        have them already.
        """
        self._lock = threading.Lock()
        self._writer = uuid.uuid4().hex
        self._batches = 0
        self._owned: OwnedRegister | None = None
        self._state: LogState | None = None
        """State after our own last write; no other process changes it while we own the register."""

    def read(self) -> LogState | None:
        """Return the state known to a majority; None if the map does not exist.

        Raises:
            StoreUnavailableError: no majority answers.
        """
        stored = retry_after_membership_change(self._store, lambda: self._register().read())
        return None if stored is None else LogState.from_bytes(stored.value)

    def read_applied(self) -> LogState | None:
        """Like ``read``, and makes every event up to the tails readable on the members that answer.

        The writer may have died between deciding and applying; then this applies its batch.
        """
        state = self.read()
        if state is None or state.version == self._applied:
            return state
        try:
            retry_after_membership_change(self._store, lambda: self._apply_newest(state))
        except StoreUnavailableError:
            # A replica is away. The others have the batch, and the next batch is decided only after
            # this one is on all replicas.
            return state
        self._applied = max(self._applied, state.version)
        return state

    def create(self, settings: MapSettings) -> LogState:
        """Create the map with these settings unless it exists; return its state."""
        state = self.read()
        if state is not None:
            return state
        with self._lock:
            return self._until_decided(lambda: self._own(settings))

    def append(
        self, changes: Sequence[MapChange], settings: MapSettings, producer: Producer | None = None
    ) -> None:
        """Decide a batch and apply it: on return every reader sees it.

        Args:
            changes: in order. The map keeps the last change of each key, the journal all of them.
                Without changes only the producer's number is decided.
            settings: settings of the map if it has to be created.
            producer: identifies the batch by a number; a batch that was decided before is not
                decided again. By default this process, which offers each batch once.

        Raises:
            StoreUnavailableError: members do not answer. The batch was decided as a whole or not at
                all; if it was, it is applied before the next one.
            WriteOutcomeUnknownError: same consequences.
            StoreUnwritableError: a member cannot write.
        """
        if not changes and producer is None:
            return
        with self._lock:
            if producer is None:
                self._batches += 1
                producer = Producer(self._writer, (self._batches,))
            self._until_decided(lambda: self._offer(changes, settings, producer))

    # --- owning the register --------------------------------------------------------------------

    def _register(self) -> RegisterClient:
        """Looked up at each call, because the store's members may have changed."""
        return self._store.register(f"map/{self.name}")

    def _until_decided(self, attempt: Callable[[], LogState]) -> LogState:
        """Retry while other processes are faster. If a failed attempt did decide the batch, the
        next one recognizes it by the producer's number.

        `RegisterClient.update` would claim the register for every batch. The log keeps it instead,
        and names a batch's blob after the ballot, before the batch is decided.
        """

        def attempt_or_forget() -> LogState:
            try:
                return attempt()
            except BaseException:
                # After an interrupt at any point it is unknown whether the batch was decided or
                # applied, so the cached state is dropped. The next claim reads it again. If the
                # members have changed: a decided batch is found on the current members; an
                # undecided one was written to members that are no longer used.
                self._owned = None
                raise

        lost: FencedError | None = None
        for _ in attempts(_RACES_MAX, base_s=0.002, cap_s=0.25, budget_s=_PATIENCE_S):
            try:
                return retry_after_membership_change(self._store, attempt_or_forget)
            except FencedError as error:
                lost = error
        raise StoreUnavailableError(
            f"the write to the map {self.name!r} did not succeed within {_PATIENCE_S:g} s: other "
            "processes kept writing to it.",
            cure="Write in larger batches (put_all), or from fewer processes.",
        ) from lost

    def _own(self, settings: MapSettings) -> LogState:
        """Claim the register and apply its newest batch; return the newest state."""
        if self._owned is not None and self._state is not None:
            return self._state
        register = self._register()
        highest = register.highest_ballot()
        owned = register.claim(highest.number + 1 if highest else 1, self._writer)
        if owned.value is None:
            owned.write(LogState(settings).to_bytes())
        assert owned.value is not None
        state = LogState.from_bytes(owned.value)
        if state.version != self._applied:
            self._apply_newest(state)
            self._applied = state.version
        self._remove_orphans(owned)
        self._owned, self._state = owned, state
        return state

    def _offer(
        self, changes: Sequence[MapChange], settings: MapSettings, producer: Producer
    ) -> LogState:
        state = self._own(settings)
        if state.has(producer):
            return state
        assert self._owned is not None
        # Two blob names per owner, used alternately: the other name holds the newest batch, which
        # must stay until this one is decided. Earlier batches are applied.
        blob = f"{self._owned.ballot.number:012d}-{state.version % 2}"
        decided = state.decided(changes, producer, blob, round(time.time() * 1000))
        data = _VERSION.pack(decided.version) + encode_changes(changes)
        self._parts.blobs().put_all({self._blob(blob): data})
        fail_point("maps.decide.before")
        self._owned.write(decided.to_bytes())
        fail_point("maps.decide.after")
        self._apply(decided, changes)
        fail_point("maps.apply.after")
        self._state, self._applied = decided, decided.version
        return decided

    def _remove_orphans(self, owned: OwnedRegister) -> None:
        """Deletes blobs of writers that lost the register: never decided, or applied by now."""
        blobs = self._parts.blobs()
        doomed = [
            key for key in blobs.keys("") if int(key.name.partition("-")[0]) < owned.ballot.number
        ]
        if doomed:
            blobs.delete_all(doomed)

    # --- applying -------------------------------------------------------------------------------

    def _apply_newest(self, state: LogState) -> None:
        """Applies the newest batch, unless its blob shows that it was applied: missing, or
        another's."""
        if state.blob is None:
            return
        data = self._parts.blobs().get(self._blob(state.blob), every_replica=True)
        if data is not None and _VERSION.unpack_from(data) == (state.version,):
            self._apply(state, list(decode_changes(data[_VERSION.size :])))

    def _apply(self, state: LogState, changes: Sequence[MapChange]) -> None:
        """Writes the newest batch to entries and journal. Complete on return; idempotent."""
        records = [
            Record(state.version, change.kind, state.timestamp_ms, change.key, change.value)
            for change in changes
        ]
        capacity = state.settings.journal_capacity
        if capacity is not None:
            ring = {}
            for change, record, sequence in zip(
                changes, records, state.sequences(changes), strict=True
            ):
                event = replace(record, version=sequence)
                ring[self._parts.slot(change.partition, sequence, capacity)] = event.to_bytes()
            self._parts.ring().put_newer(ring)
        newest = {
            entry_key(c.key, c.partition, self._parts.name_bytes_max): record.to_bytes()
            for c, record in zip(changes, records, strict=True)
        }
        self._parts.entries().put_newer(newest)

    def _blob(self, name: str) -> MapKey:
        return self._parts.blobs().key(name)


_logs: WeakKeyDictionary[Store, WeakValueDictionary[str, MapLog]] = WeakKeyDictionary()
_logs_lock = threading.Lock()


def log_of(store: Store, name: str) -> MapLog:
    """Return the only log of a map on an open store; two in one process would fence each other."""
    with _logs_lock:
        logs = _logs.setdefault(store, WeakValueDictionary())
        log = logs.get(name)
        if log is None:
            log = logs[name] = MapLog(store, name)
        return log


def _begin_anew() -> None:
    global _logs_lock
    _logs_lock = threading.Lock()  # another thread may have held it during the fork
    for logs in _logs.values():
        for log in logs.values():
            log.begin_anew()


os.register_at_fork(after_in_child=_begin_anew)
