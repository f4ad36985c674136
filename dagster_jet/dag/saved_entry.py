"""Stored form of a saved entry: serialised when it was offered, with its key's partition."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import cast

from dagster_jet.dag.items import BroadcastKey, SnapshotEntry
from dagster_jet.dag.outbox import ContractError
from dagster_jet.dag.partitioning import Partitioning


@dataclass(frozen=True)
class SavedEntry:
    """One entry of a snapshot, pickled: load only entries written by this library."""

    partition: int | None
    """The partition of its key; None: every instance receives it."""
    data: bytes

    @classmethod
    def of(cls, entry: SnapshotEntry, partitioning: Partitioning) -> SavedEntry:
        """Convert an entry; raises `ContractError` if it could not be restored after a restart."""
        key, value = entry
        try:
            everybody = isinstance(key, BroadcastKey)
            partition = None if everybody else partitioning.partition_of(key)
        except (TypeError, ValueError, OverflowError) as error:
            raise ContractError(
                f"saved an entry whose key {key!r} has no partition: {error}.",
                "Use a text, number, date, bytes, a tuple of them, PartitionKey or broadcast_key.",
            ) from error
        try:
            return cls(partition, pickle.dumps((key, value), protocol=pickle.HIGHEST_PROTOCOL))
        except Exception as error:  # objects fail to pickle in various ways
            raise ContractError(
                f"saved an entry with key {key!r} that cannot be serialised: {error}.",
                "Save plain values; leave out functions, locks and open files.",
            ) from error

    def load(self) -> SnapshotEntry:
        """Return the entry; raises `ContractError` if it cannot be restored."""
        key, value = cast("tuple[object, object]", loaded(self.data))
        return SnapshotEntry(key, value)


def loaded(data: bytes) -> object:
    """Unpickle. Raises `ContractError`: some objects can be pickled and not unpickled."""
    try:
        return pickle.loads(data)
    except Exception as error:
        raise ContractError(
            f"saved an entry that cannot be read back: {type(error).__name__}: {error}.",
            "Save plain values; a class of yours must still be found under its module and name.",
        ) from error


def redistribute(
    entries: Iterable[SavedEntry], parallelism: int, *, excluded: Collection[int] = ()
) -> list[list[SavedEntry]]:
    """Distribute entries to instances, whatever the parallelism at which they were saved.

    A partition's owner is the instance that partitioned edges send its items to.

    Args:
        entries: the entries of one vertex.
        parallelism: the present number of instances.
        excluded: instances that do not run; their entries go to the next running instance.
    """
    shares: list[list[SavedEntry]] = [[] for _ in range(parallelism)]
    running = [index for index in range(parallelism) if index not in excluded]
    for entry in entries:
        if not running:
            break
        if entry.partition is None:
            for index in running:
                shares[index].append(entry)
        else:
            owner = entry.partition % parallelism
            shares[min(running, key=lambda i: (i - owner) % parallelism)].append(entry)
    return shares
