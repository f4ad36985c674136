"""A store as executors see it: small, picklable, without the register."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from urllib.parse import quote

from dagster_jet.store.config import StoreConfig
from dagster_jet.store.identity import VerifiedMember
from dagster_jet.store.members import Member
from dagster_jet.store.placement import PartitionTable
from dagster_jet.store.replicated_map import MapKey, ReplicatedMap

_Identities = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class StoreHandle:
    """What a Spark task needs to read and write maps; made by ``Store.handle`` on the driver.

    Members are opened at first use and shared by all handles of the worker process. The table is
    the one of the moment the handle was made: after a change of the members, make new handles.

    Attributes:
        config: the store's configuration.
        table: the partition table.
        identities: who the members are (``identity.py``).
    """

    config: StoreConfig
    table: PartitionTable
    identities: _Identities

    @property
    def partition_count(self) -> int:
        """How many partitions the store has."""
        return self.table.partition_count

    def key(self, name: str) -> MapKey:
        """Return the key of a name, in the partition it hashes to."""
        return MapKey.of(name, self.partition_count)

    def map(self, name: str) -> ReplicatedMap:
        """Return the map of a name in the configured namespace."""
        members = _members_of(self.config, self.identities)
        return ReplicatedMap(members, self.table, map_prefix(self.config.namespace, name))


def map_prefix(namespace: str, name: str) -> str:
    """Return the prefix of a map's stored keys; any two maps have prefixes that do not meet."""
    return f"map/{quote(namespace, safe='')}/{quote(name, safe='')}"


def verified_members(config: StoreConfig, identities: _Identities) -> dict[str, Member]:
    """Open the members of a configuration, each to be used only as the one the store knows."""
    known = dict(identities)
    return {
        member_id: VerifiedMember(member, known[member_id])
        for member_id, member in config.open_members().items()
    }


_opened: dict[tuple[int, StoreConfig, _Identities], dict[str, Member]] = {}
_opened_lock = threading.Lock()


def _members_of(config: StoreConfig, identities: _Identities) -> dict[str, Member]:
    key = (os.getpid(), config, identities)  # a forked child opens its own connections
    with _opened_lock:
        if key not in _opened:
            _opened[key] = verified_members(config, identities)
        return _opened[key]


def _new_lock() -> None:
    global _opened_lock
    _opened_lock = threading.Lock()  # another thread may have held it at the moment of the fork


os.register_at_fork(after_in_child=_new_lock)
