"""The three replicated maps of the store that a user map is kept in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dagster_jet.errors import StaleConfigurationError, StoreError, StoreUnavailableError
from dagster_jet.store import MapKey, ReplicatedMap, Store, StoreHandle
from dagster_jet.store.map.stored_key import BATCHES, ENTRIES, RING
from dagster_jet.store.members import MAX_KEY_BYTES

AnyStore = Store | StoreHandle

T = TypeVar("T")
_CHANGES_MAX = 10


@dataclass(frozen=True)
class MapParts:
    """The parts of one map. Asked for anew each time: the store knows who holds what today."""

    store: AnyStore
    name: str

    def entries(self) -> ReplicatedMap:
        """Per key, the record of its newest change."""
        return self.store.map(f"{ENTRIES}/{self.name}")

    def ring(self) -> ReplicatedMap:
        """The journal: per partition a ring of as many slots as its capacity."""
        return self.store.map(f"{RING}/{self.name}")

    def blobs(self) -> ReplicatedMap:
        """Batches too large for the register, until they are applied."""
        return self.store.map(f"{BATCHES}/{self.name}")

    @staticmethod
    def slot(partition: int, sequence: int, capacity: int) -> MapKey:
        """Return the ring's slot of a sequence number: the one that leaves makes room."""
        return MapKey(partition, f"{sequence % capacity:09d}")

    @property
    def name_bytes_max(self) -> int:
        """How long the name of an entry can be, so that every member can hold it."""
        return MAX_KEY_BYTES - len(self.entries().prefix.encode()) - len("/0000/")


def retry_after_membership_change(store: AnyStore, work: Callable[[], T]) -> T:
    """Run ``work``, and again where it failed because the store's members have changed.

    Raises:
        StoreUnavailableError: members do not answer, and they are still the store's.
        StaleConfigurationError: in a Spark task, whose handle cannot be refreshed (the job
            restarts), or the members change all the time.
    """
    for _ in range(_CHANGES_MAX):
        try:
            return work()
        except (StaleConfigurationError, StoreUnavailableError) as error:
            if not members_have_changed(store, error):
                raise
    return work()


def members_have_changed(store: AnyStore, error: StoreError) -> bool:
    """Whether an error may be due to a change of the members that the store had not heard of."""
    if not isinstance(store, Store):
        return False
    if isinstance(error, StaleConfigurationError):
        store.refresh()  # perhaps another thread has just done so
        return True
    try:
        return store.refresh()
    except StoreError:
        return False  # the first error says more
