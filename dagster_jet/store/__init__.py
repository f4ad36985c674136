"""The store: a partitioned, replicated map and quorum registers over real storage members."""

from dagster_jet.core.partition import DEFAULT_PARTITION_COUNT, key_hash, partition_id
from dagster_jet.core.secret import Secret
from dagster_jet.store.config import StoreConfig
from dagster_jet.store.handle import StoreHandle
from dagster_jet.store.map.partition_table import (
    PartitionTable,
    create_table,
    with_member_added,
    with_member_removed,
)
from dagster_jet.store.map.replicated_map import MapKey, MapStats, ReplicatedMap
from dagster_jet.store.map.routing import ReplicaRouting
from dagster_jet.store.members import (
    FileMember,
    Member,
    MemoryMember,
    Replacement,
    Versioned,
    member_id_of,
    open_member,
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
from dagster_jet.store.store import Store
from dagster_jet.store.upkeep.administration import Changes
from dagster_jet.store.upkeep.migration import Migrated
from dagster_jet.store.upkeep.progress import OnProgress, UpkeepProgress
from dagster_jet.store.upkeep.status import MemberStatus, PartitionStatus, StoreStatus
from dagster_jet.store.upkeep.verification import Verified
from dagster_jet.store.values.envelope import BadCopyError, Payload, seal, unseal

__all__ = [
    "DEFAULT_PARTITION_COUNT",
    "BadCopyError",
    "Ballot",
    "Changes",
    "Configuration",
    "Discovered",
    "FileMember",
    "MapKey",
    "MapStats",
    "Member",
    "MemberStatus",
    "MemoryMember",
    "Migrated",
    "OnProgress",
    "OwnedRegister",
    "PartitionStatus",
    "PartitionTable",
    "Payload",
    "RegisterClient",
    "RegisterValue",
    "Replacement",
    "ReplicaRouting",
    "ReplicatedMap",
    "Secret",
    "Store",
    "StoreConfig",
    "StoreHandle",
    "StoreStatus",
    "UpkeepProgress",
    "Verified",
    "Versioned",
    "create_table",
    "discover_configuration",
    "key_hash",
    "list_registers",
    "member_id_of",
    "move_register",
    "move_registers",
    "open_member",
    "partition_id",
    "seal",
    "unseal",
    "with_member_added",
    "with_member_removed",
]
