"""A store's metadata: the value of its register named "store"."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dagster_jet.core.stored_format import check_format
from dagster_jet.errors import StoreMismatchError
from dagster_jet.store.config import StoreConfig
from dagster_jet.store.map.partition_table import PartitionTable, create_table
from dagster_jet.store.map.routing import ReplicaRouting
from dagster_jet.store.values.sealing import PLAIN, Sealer

METADATA = "store"
"""The name of the register with a store's metadata."""

FORMAT_VERSION = 1

Identities = tuple[tuple[str, str], ...]
"""(member id, identity) of members, sorted; see ``identity.py``."""


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """Settings fixed at creation, the members, and the partitions that each member holds.

    Attributes:
        store_id: identifies this store; random, never changes.
        partition_count: number of partitions of the store.
        backup_count: backups per partition.
        configuration: the number of the members' configuration; grows with every change.
        members: the current members. A majority of them decides a register.
        previous: the members of the configuration before, until every register has moved.
        leaving: former members whose copies still count.
        table: the holders of every partition (``routing.py``).
        target: the table that a change under way leads to; None between changes.
        key_id: the key that encrypts values since the last rotation; empty: not encrypted.
        mover: random name of the process that copies during a change; an older mover that
            resumes detects by it that it was replaced.
    """

    store_id: str
    partition_count: int
    backup_count: int
    configuration: int
    members: Identities
    table: PartitionTable
    previous: Identities = ()
    leaving: Identities = ()
    target: PartitionTable | None = None
    mover: str = ""
    key_id: str = ""

    @staticmethod
    def of_new_store(
        config: StoreConfig, identities: Mapping[str, str], sealer: Sealer = PLAIN
    ) -> StoreMetadata:
        """Return the metadata of a new store."""
        return StoreMetadata(
            store_id=secrets.token_hex(16),
            partition_count=config.partition_count,
            backup_count=config.backup_count,
            configuration=0,
            members=tuple(sorted(identities.items())),
            table=create_table(identities, config.partition_count, config.backup_count),
            key_id=sealer.keyring.newest_id if sealer.keyring else "",
        )

    @property
    def is_moving(self) -> bool:
        """Whether a change of the members is under way."""
        return self.target is not None

    @property
    def registers_have_moved(self) -> bool:
        """Whether every register has moved to the current members, so that data may be copied."""
        return not self.previous

    @property
    def routing(self) -> ReplicaRouting:
        """The members that maps read and write."""
        return ReplicaRouting(self.table, self.target)

    @property
    def identities(self) -> dict[str, str]:
        """Every member that holds or receives data, with the identity it must show."""
        return dict(self.members + self.leaving)

    def to_bytes(self) -> bytes:
        """Return the metadata as JSON."""
        return json.dumps(
            {
                "format": FORMAT_VERSION,
                "store_id": self.store_id,
                "partition_count": self.partition_count,
                "backup_count": self.backup_count,
                "configuration": self.configuration,
                "members": dict(self.members),
                "previous": dict(self.previous),
                "leaving": dict(self.leaving),
                "table": json.loads(self.table.to_json()),
                "target": json.loads(self.target.to_json()) if self.target else None,
                "mover": self.mover,
                "key_id": self.key_id,
            },
            separators=(",", ":"),
        ).encode()

    @staticmethod
    @lru_cache(maxsize=8)  # read at every access to a map; seldom changes
    def from_bytes(stored: bytes) -> StoreMetadata:
        """Parse the JSON of ``to_bytes``.

        Raises:
            StoreMismatchError: written by a newer version.
        """
        read: dict[str, Any] = json.loads(stored)
        check_format("the store", read["format"], FORMAT_VERSION)
        target = read["target"]
        return StoreMetadata(
            store_id=read["store_id"],
            partition_count=read["partition_count"],
            backup_count=read["backup_count"],
            configuration=read["configuration"],
            members=tuple(sorted(read["members"].items())),
            table=PartitionTable.from_json(json.dumps(read["table"])),
            previous=tuple(sorted(read["previous"].items())),
            leaving=tuple(sorted(read["leaving"].items())),
            target=None if target is None else PartitionTable.from_json(json.dumps(target)),
            mover=read["mover"],
            key_id=read["key_id"],
        )

    def check(self, config: StoreConfig) -> None:
        """Refuse a configuration that does not match this store.

        URLs of members that have left, or that do not belong to the store yet, are accepted: they
        are listed before a member is added and after one was removed (``strangers``).

        Raises:
            StoreMismatchError: names the setting, the store's value and the configured one.
        """
        settings = (
            ("partition_count", self.partition_count, config.partition_count),
            ("backup_count", self.backup_count, config.backup_count),
        )
        for name, stored, configured in settings:
            if stored != configured:
                raise StoreMismatchError(
                    f"{name}: the store was created with {stored}, the configuration says "
                    f"{configured}.",
                    cure="Use the store's setting, or another place for a new store.",
                )
        missing = self.missing_in(config)
        if missing:
            raise StoreMismatchError(
                f"urls: the store has the members {', '.join(sorted(self.identities))}, and the "
                f"configuration does not name {', '.join(missing)}.",
                cure="Add the URL, or remove the member with 'dagster-jet store remove'.",
            )

    def missing_in(self, config: StoreConfig) -> tuple[str, ...]:
        """Return the members of the store that the configuration does not name."""
        return tuple(sorted(self.identities.keys() - set(config.member_ids)))

    def completed(self, config: StoreConfig) -> StoreConfig:
        """Return the configuration with the store's settings, and all of its members."""
        return replace(
            config,
            urls=(*config.urls, *self.missing_in(config)),
            partition_count=self.partition_count,
            backup_count=self.backup_count,
        )

    def check_keys(self, sealer: Sealer) -> None:
        """Refuse keys that cannot read this store's values, or keys of an unencrypted store.

        Raises:
            StoreMismatchError: names the key's id, never the key itself.
        """
        ids = sealer.keyring.ids if sealer.keyring else ()
        if self.key_id and self.key_id not in ids:
            given = f"the keys given are {', '.join(ids)}" if ids else "no keys are configured"
            raise StoreMismatchError(
                f"encryption_keys: the store is encrypted with the key {self.key_id}, and {given}.",
                cure="Name the environment variable that holds that key. While keys are rotated, "
                "it comes after the new key.",
            )
        if ids and not self.key_id and not sealer.accept_unencrypted:
            raise StoreMismatchError(
                "encryption_keys: the store is not encrypted, and keys are configured.",
                cure="Encrypt the stored values with 'dagster-jet store rotate-keys', or leave "
                "the keys out.",
            )

    def routes_like(self, other: StoreMetadata) -> bool:
        """Whether maps read and write the same members under both metadata."""
        return (self.routing, self.identities) == (other.routing, other.identities)

    def strangers(self, config: StoreConfig) -> tuple[str, ...]:
        """Return the configured member ids that do not belong to the store."""
        return tuple(m for m in config.member_ids if m not in self.identities)
