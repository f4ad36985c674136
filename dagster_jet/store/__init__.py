"""The store: a partitioned, replicated map and quorum registers over real storage members."""

from dagster_jet.store.administration import Changes
from dagster_jet.store.config import StoreConfig
from dagster_jet.store.envelope import BadCopyError, Payload, seal, unseal
from dagster_jet.store.handle import StoreHandle
from dagster_jet.store.members import (
    FileMember,
    Member,
    MemoryMember,
    Replacement,
    Versioned,
    member_id_of,
    open_member,
)
from dagster_jet.store.migration import Migrated
from dagster_jet.store.partition import DEFAULT_PARTITION_COUNT, key_hash, partition_id
from dagster_jet.store.placement import (
    PartitionTable,
    create_table,
    with_member_added,
    with_member_removed,
)
from dagster_jet.store.progress import OnProgress, Progress
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
from dagster_jet.store.routing import Routing
from dagster_jet.store.secret import Secret
from dagster_jet.store.status import MemberStatus, PartitionStatus, StoreStatus
from dagster_jet.store.store import Store
from dagster_jet.store.verification import Verified

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
    "Progress",
    "RegisterClient",
    "RegisterValue",
    "Replacement",
    "ReplicatedMap",
    "Routing",
    "Secret",
    "Store",
    "StoreConfig",
    "StoreHandle",
    "StoreStatus",
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
