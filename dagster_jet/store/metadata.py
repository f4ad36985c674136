"""What a store says about itself: the value of its register named "store"."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from dagster_jet.errors import StoreMismatchError
from dagster_jet.store.config import StoreConfig
from dagster_jet.store.placement import PartitionTable, create_table

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """Settings fixed at creation, the partition table, and who the members are.

    Attributes:
        partition_count: of the whole store.
        backup_count: of the whole store.
        table: the partition table.
        identities: (member id, identity) of every member; see ``identity.py``.
    """

    partition_count: int
    backup_count: int
    table: PartitionTable
    identities: tuple[tuple[str, str], ...]

    @staticmethod
    def of_new_store(config: StoreConfig, identities: dict[str, str]) -> StoreMetadata:
        """Return the metadata of a store that is being created."""
        table = create_table(identities, config.partition_count, config.backup_count)
        return StoreMetadata(
            config.partition_count,
            config.backup_count,
            table,
            tuple(sorted(identities.items())),
        )

    def to_bytes(self) -> bytes:
        """Return the metadata as JSON."""
        return json.dumps(
            {
                "format": FORMAT_VERSION,
                "partition_count": self.partition_count,
                "backup_count": self.backup_count,
                "identities": dict(self.identities),
                "table": json.loads(self.table.to_json()),
            },
            separators=(",", ":"),
        ).encode()

    @staticmethod
    def from_bytes(stored: bytes) -> StoreMetadata:
        """Read what ``to_bytes`` wrote.

        Raises:
            StoreMismatchError: written by a newer version.
        """
        read: dict[str, Any] = json.loads(stored)
        if read["format"] > FORMAT_VERSION:
            raise StoreMismatchError(
                f"the store has format {read['format']}, this library reads up to "
                f"{FORMAT_VERSION}.",
                cure="Upgrade dagster-jet to the version that wrote the store.",
            )
        return StoreMetadata(
            read["partition_count"],
            read["backup_count"],
            PartitionTable.from_json(json.dumps(read["table"])),
            tuple(sorted(read["identities"].items())),
        )

    def check(self, config: StoreConfig) -> None:
        """Refuse a configuration that is not this store's.

        Raises:
            StoreMismatchError: names the setting, what the store has and what was configured.
        """
        settings = (
            ("partition_count", self.partition_count, config.partition_count),
            ("backup_count", self.backup_count, config.backup_count),
            ("members", sorted(self.table.members), sorted(config.member_ids)),
        )
        for name, stored, configured in settings:
            if stored != configured:
                raise StoreMismatchError(
                    f"{name}: the store was created with {stored}, the configuration says "
                    f"{configured}.",
                    cure="Use the store's setting, or another place for a new store.",
                )
