"""The log of a map, which all writes go through: batch after batch, each decided as a whole.

    1. the batch goes into the store, as a *blob* that nobody names yet
    2. the map's register := state with this batch as the newest one        <== DECISION POINT
    3. *apply*: the entries, and the events into the journal's ring, each with its version

The register is the store's quorum register, so a write of a process that has lost it fails, and
there is one order of batches over all processes. Who takes the register over applies the newest
batch before it decides the next: a batch that counts cannot get lost with its writer. Applying is
harmless at any time and any number of times, because versions only grow
(`ReplicatedMap.put_newer`): a process that slept through its own batch's successors changes
nothing when it wakes up.

That is also why a deleted key leaves a tombstone, an entry without value: a late put of an older
version must find it.
"""

from __future__ import annotations

import struct
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary, WeakValueDictionary

from dagster_jet.errors import (
    FencedError,
    StaleConfigurationError,
    StoreUnavailableError,
)
from dagster_jet.maps.changes import MapChange, Record, decode_changes, encode_changes
from dagster_jet.maps.key_encoding import entry_key
from dagster_jet.maps.log_state import LogState, Producer
from dagster_jet.maps.parts import MapParts, members_have_changed, retry_after_membership_change
from dagster_jet.maps.settings import MapSettings
from dagster_jet.store import MapKey, OwnedRegister, RegisterClient, Store
from dagster_jet.system.backoff import jitter_s
from dagster_jet.system.failpoint import fail_point

_VERSION = struct.Struct(">Q")
_PATIENCE_S = 60.0
_PAUSE_FIRST_S, _PAUSE_MAX_S = 0.002, 0.25


class MapLog:
    """The log of one map in one process. Any number of threads; calls happen one by one."""

    def __init__(self, store: Store, name: str) -> None:
        self.name = name
        self._parts = MapParts(store, name)
        self._store = store
        self._lock = threading.Lock()
        self._writer = uuid.uuid4().hex
        self._batches = 0
        self._owned: OwnedRegister | None = None
        self._state: LogState | None = None
        """As of our own last write; what we own nobody else changes."""
        self._applied = 0
        """Version of the newest batch that is known to be on all replicas."""

    def read(self) -> LogState | None:
        """Return the state as a majority knows it; None if the map does not exist.

        Raises:
            StoreUnavailableError: no majority answers.
        """
        stored = retry_after_membership_change(self._store, lambda: self._register().read())
        return None if stored is None else LogState.from_bytes(stored.value)

    def read_applied(self) -> LogState | None:
        """As ``read``, and every event up to its tails can be read on the members that answer.

        Its writer may have died between deciding and applying: then this applies it.
        """
        state = self.read()
        if state is None or state.version == self._applied:
            return state
        try:
            retry_after_membership_change(self._store, lambda: self._apply_newest(state))
        except StoreUnavailableError:
            # A replica is away. The others have the batch now, and nobody decides another before
            # this one is on all of them.
            return state
        self._applied = max(self._applied, state.version)
        return state

    def create(self, settings: MapSettings) -> LogState:
        """Create the map with these settings, unless it exists; return what holds."""
        state = self.read()
        if state is not None:
            return state
        with self._lock:
            return self._until_decided(lambda: self._own(settings))

    def append(
        self, changes: Sequence[MapChange], settings: MapSettings, producer: Producer | None = None
    ) -> None:
        """Decide a batch and apply it: on return every reader sees it. No change: nothing.

        Args:
            changes: in order; of several for one key the last one stays in the map, the journal
                gets them all.
            settings: for creating the map, if it does not exist.
            producer: offers batches under numbers of its own; one that was decided before is not
                decided again. By default this process, which offers each batch once.

        Raises:
            StoreUnavailableError: members do not answer. The batch may have been decided, all or
                nothing of it; if it was, it is applied before the next one.
            WriteOutcomeUnknownError: the same.
            StoreUnwritableError: a member cannot write.
        """
        if not changes:
            return
        with self._lock:
            if producer is None:
                self._batches += 1
                producer = Producer(self._writer, (self._batches,))
            self._until_decided(lambda: self._offer(changes, settings, producer))

    # --- owning the register --------------------------------------------------------------------

    def _register(self) -> RegisterClient:
        """Asked for anew each time, as all places are: the store knows its members of today."""
        return self._store.register(f"map/{self.name}")

    def _until_decided(self, attempt: Callable[[], LogState]) -> LogState:
        """Try again while other processes are faster. What a lost attempt left is found by the
        next one: by its producer's number, a batch that was decided after all."""
        deadline = time.monotonic() + _PATIENCE_S
        pause_s = _PAUSE_FIRST_S
        while True:
            try:
                return attempt()
            except FencedError as error:
                self._owned = None
                if time.monotonic() > deadline:
                    raise StoreUnavailableError(
                        f"other processes wrote to the map {self.name!r} all the time for "
                        f"{_PATIENCE_S:g} s.",
                        cure="Write in larger batches (put_all), or from fewer processes.",
                    ) from error
            except (StaleConfigurationError, StoreUnavailableError) as error:
                # If the members have changed: what was decided is found where those of today are,
                # what was not was written where nobody looks any more.
                self._owned = None
                if time.monotonic() > deadline or not members_have_changed(self._store, error):
                    raise
            except BaseException:
                # Decided or not, applied or not (an interrupt may come anywhere): what we believe
                # of the state is not to be built upon. Who claims next finds out.
                self._owned = None
                raise
            time.sleep(jitter_s(pause_s))
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)

    def _own(self, settings: MapSettings) -> LogState:
        """Return the newest state, with the register ours and its newest batch applied."""
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
        # Two blobs per owner, in turn: the other one is the newest batch, which must stay until
        # this one is decided. What was before it is applied.
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
        """Blobs of writers that lost the register: never decided, or applied by now."""
        blobs = self._parts.blobs()
        doomed = [
            key for key in blobs.keys("") if int(key.name.partition("-")[0]) < owned.ballot.number
        ]
        if doomed:
            blobs.delete_all(doomed)

    # --- applying -------------------------------------------------------------------------------

    def _apply_newest(self, state: LogState) -> None:
        """Applies the newest batch, unless its blob is gone or another's: then it is applied."""
        if state.blob is None:
            return
        data = self._parts.blobs().get(self._blob(state.blob), every_replica=True)
        if data is not None and _VERSION.unpack_from(data) == (state.version,):
            self._apply(state, list(decode_changes(data[_VERSION.size :])))

    def _apply(self, state: LogState, changes: Sequence[MapChange]) -> None:
        """Puts the newest batch where readers look. Complete on return, repeatable."""
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
    """Return the one log of a map on an open store: two in one process would fence each other."""
    with _logs_lock:
        logs = _logs.setdefault(store, WeakValueDictionary())
        log = logs.get(name)
        if log is None:
            log = logs[name] = MapLog(store, name)
        return log
