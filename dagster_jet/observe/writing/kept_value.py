"""One value that an execution keeps in the store beside its record, for whoever asks about the job.

It is written under a new name each time: a crash between two replicas leaves no two that differ.
Best effort: what is kept here is never a reason for a job to fail.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from dagster_jet.errors import StoreError
from dagster_jet.store import MapKey, ReplicatedMap, Store

_logger = logging.getLogger(__name__)

_READS_MAX = 3


@dataclass
class KeptValue:
    """A value of one execution, of bounded size; written by one thread."""

    store: Store
    job: str
    what: str
    """Its noun: "profile". The job has one value of each."""
    execution_id: int
    _writes: int = 0
    _older: list[MapKey] | None = None
    """Keys that the next write deletes; None: all keys of older executions."""

    def write(self, data: bytes) -> None:
        """Replaces the value. The value of a newer execution wins."""
        self._writes += 1
        try:
            kept = kept_values(self.store, self.job, self.what)
            key = kept.key(f"{self.execution_id:012d}-{self._writes:09d}")
            kept.put_all({key: data})
            older = self._older
            if older is None:
                older = [k for k in kept.keys("") if k.name < key.name]
            self._older = [key]
            kept.delete_all(older)
        except (StoreError, OSError) as error:
            _logger.debug(
                "job %r: its %s could not be saved in the store: %s", self.job, self.what, error
            )
            self._older = None


def read_kept(store: Store, job: str, what: str) -> tuple[int, bytes] | None:
    """Returns the newest value of a job, and the execution that has written it; None: none has.

    Raises:
        StoreError: it cannot be read now.
    """
    kept = kept_values(store, job, what)
    for _ in range(_READS_MAX):
        newest = max(kept.keys(""), key=lambda key: key.name, default=None)
        if newest is None:
            return None
        data = kept.get(newest)
        if data is not None:  # else a newer one has replaced it meanwhile
            return int(newest.name.partition("-")[0]), data
    return None


def kept_values(store: Store, job: str, what: str) -> ReplicatedMap:
    return store.map(f"jobs/{job}/{what}")
