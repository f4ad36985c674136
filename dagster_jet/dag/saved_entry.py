"""A saved entry as it is kept: serialised when it was offered, with the partition that owns it."""

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
    """One entry of a snapshot, pickled: load only what this library itself has written."""

    partition: int | None
    """The partition of its key; None: every instance gets it."""
    data: bytes

    @classmethod
    def of(cls, entry: SnapshotEntry, partitioning: Partitioning) -> SavedEntry:
        """Raises `ContractError` if it could not be given back after a restart."""
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
        except Exception as error:  # objects fail to pickle in their own ways
            raise ContractError(
                f"saved an entry with key {key!r} that cannot be serialised: {error}.",
                "Save plain values; leave out functions, locks and open files.",
            ) from error

    def load(self) -> SnapshotEntry:
        """Raises `ContractError` if it cannot be given back."""
        key, value = cast("tuple[object, object]", loaded(self.data))
        return SnapshotEntry(key, value)


def loaded(data: bytes) -> object:
    """What was pickled. Raises `ContractError`: some objects are written and cannot be read."""
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
    """Entries by instance, at whatever parallelism they were saved.

    The owner of a partition is the one that partitioned edges send its items to.

    Args:
        entries: of one vertex.
        parallelism: instances now.
        excluded: instances that are not run; what they own goes to the next one that is.
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
