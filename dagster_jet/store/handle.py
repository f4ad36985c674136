"""The executors' view of a store: small, picklable, with maps only."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

from dagster_jet.store.config import StoreConfig
from dagster_jet.store.connection import Connection, View
from dagster_jet.store.map.partition_table import PartitionTable
from dagster_jet.store.map.replicated_map import MapKey, ReplicatedMap
from dagster_jet.store.map.stored_key import map_prefix
from dagster_jet.store.metadata import StoreMetadata


@dataclass(frozen=True)
class StoreHandle:
    """Gives a Spark task access to the store's maps; made by ``Store.handle`` on the driver.

    Members are opened at first use and shared by all handles of the worker process. The handle
    keeps the partition table it was made with: after a change of the members, make new handles.

    Data written through a handle counts only once a register names it that was claimed under
    the handle's ``configuration_number``. A decision under a newer number could name data that
    was written to members from which nobody copies any more.

    Attributes:
        config: the store's configuration.
        metadata: the members and the partition table.
    """

    config: StoreConfig
    metadata: StoreMetadata

    @property
    def configuration_number(self) -> int:
        """The number of the members' configuration."""
        return self.metadata.configuration

    @property
    def table(self) -> PartitionTable:
        """The partition table."""
        return self.metadata.table

    @property
    def identities(self) -> tuple[tuple[str, str], ...]:
        """(member id, identity) of every member (``identity.py``), sorted."""
        return tuple(sorted(self.metadata.identities.items()))

    @property
    def partition_count(self) -> int:
        """Number of partitions of the store."""
        return self.table.partition_count

    def key(self, name: str) -> MapKey:
        """Return the key of a name, in the partition it hashes to."""
        return MapKey.of(name, self.partition_count)

    def map(self, name: str) -> ReplicatedMap:
        """Return a map of the configured namespace. Its writes do not check the table."""
        view = _view_of(self.config, self.metadata)
        return ReplicatedMap(
            view.members,
            self.metadata.routing,
            map_prefix(self.config.namespace, name),
            check=view.check_routes,
            sealer=view.sealer,
            on_damage=view.damage_notes.add,
        )


_views: dict[tuple[int, StoreConfig, StoreMetadata], View] = {}
_connections: dict[tuple[int, StoreConfig], Connection] = {}
_lock = threading.Lock()


def _view_of(config: StoreConfig, metadata: StoreMetadata) -> View:
    pid = os.getpid()  # a forked child opens its own connections
    with _lock:
        key = (pid, config, metadata)
        if key not in _views:
            if (pid, config) not in _connections:
                _connections[pid, config] = Connection(config)
            _views[key] = _connections[pid, config].view(metadata)
        return _views[key]


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it during the fork


os.register_at_fork(after_in_child=_new_lock)
