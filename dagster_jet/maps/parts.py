"""The three replicated maps of the store that hold a user map."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dagster_jet.errors import MembersChangedError, StoreError, StoreUnavailableError
from dagster_jet.store import MapKey, ReplicatedMap, Store, StoreHandle
from dagster_jet.store.map.stored_key import BATCHES, ENTRIES, RING
from dagster_jet.store.members import MAX_KEY_BYTES

AnyStore = Store | StoreHandle

T = TypeVar("T")
_CHANGES_MAX = 10


@dataclass(frozen=True)
class MapParts:
    """Storage of one map. The parts are looked up at each call: the holders may have changed."""

    store: AnyStore
    name: str

    def entries(self) -> ReplicatedMap:
        """Returns the entries: per key, the record of its newest change."""
        return self.store.map(f"{ENTRIES}/{self.name}")

    def ring(self) -> ReplicatedMap:
        """Returns the journal: per partition a ring buffer with `capacity` slots."""
        return self.store.map(f"{RING}/{self.name}")

    def blobs(self) -> ReplicatedMap:
        """Returns the blobs: batches too large for the register, kept until they are applied."""
        return self.store.map(f"{BATCHES}/{self.name}")

    @staticmethod
    def slot(partition: int, sequence: int, capacity: int) -> MapKey:
        """Return the ring slot of a sequence number; it overwrites the event `capacity` earlier."""
        return MapKey(partition, f"{sequence % capacity:09d}")

    @property
    def name_bytes_max(self) -> int:
        """Longest name of an entry that every member can hold, in bytes."""
        return MAX_KEY_BYTES - len(self.entries().prefix.encode()) - len("/0000/")


def retry_after_membership_change(store: AnyStore, work: Callable[[], T]) -> T:
    """Run ``work``, and repeat it if it failed because the store's members have changed.

    Raises:
        StoreUnavailableError: members do not answer although they are still members.
        MembersChangedError: in a Spark task, whose handle cannot be refreshed (the job
            restarts), or if the members keep changing.
    """
    for _ in range(_CHANGES_MAX):
        try:
            return work()
        except (MembersChangedError, StoreUnavailableError) as error:
            if not _members_have_changed(store, error):
                raise
    return work()


def _members_have_changed(store: AnyStore, error: StoreError) -> bool:
    """Whether the error may be due to a change of members that the store did not know of."""
    if not isinstance(store, Store):
        return False
    if isinstance(error, MembersChangedError):
        store.refresh()  # another thread may just have done so
        return True
    try:
        return store.refresh()
    except StoreError:
        return False  # the first error is more informative
