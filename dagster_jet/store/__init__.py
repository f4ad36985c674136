"""The store: a partitioned, replicated map and quorum registers over real storage members."""

from dagster_jet.store.config import StoreConfig
from dagster_jet.store.envelope import BadCopyError, seal, unseal
from dagster_jet.store.handle import StoreHandle
from dagster_jet.store.members import (
    FileMember,
    Member,
    MemoryMember,
    Replacement,
    Versioned,
    open_member,
)
from dagster_jet.store.partition import DEFAULT_PARTITION_COUNT, key_hash, partition_id
from dagster_jet.store.placement import (
    PartitionTable,
    create_table,
    with_member_added,
    with_member_removed,
)
from dagster_jet.store.quorum import (
    Ballot,
    Configuration,
    Discovered,
    OwnedRegister,
    RegisterClient,
    RegisterValue,
    discover_configuration,
    list_registers,
    move_register,
    move_registers,
)
from dagster_jet.store.replicated_map import MapKey, MapStats, ReplicatedMap
from dagster_jet.store.store import MemberStatus, Store, StoreStatus

__all__ = [
    "DEFAULT_PARTITION_COUNT",
    "BadCopyError",
    "Ballot",
    "Configuration",
    "Discovered",
    "FileMember",
    "MapKey",
    "MapStats",
    "Member",
    "MemberStatus",
    "MemoryMember",
    "OwnedRegister",
    "PartitionTable",
    "RegisterClient",
    "RegisterValue",
    "Replacement",
    "ReplicatedMap",
    "Store",
    "StoreConfig",
    "StoreHandle",
    "StoreStatus",
    "Versioned",
    "create_table",
    "discover_configuration",
    "key_hash",
    "list_registers",
    "move_register",
    "move_registers",
    "open_member",
    "partition_id",
    "seal",
    "unseal",
    "with_member_added",
    "with_member_removed",
]
