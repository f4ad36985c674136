"""The store: members, metadata and partition table, and the maps and registers on them."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from dagster_jet.errors import (
    ConfigurationError,
    FencedError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.store.config import StoreConfig
from dagster_jet.store.handle import StoreHandle, map_prefix, verified_members
from dagster_jet.store.identity import identify
from dagster_jet.store.members import Member
from dagster_jet.store.members.fan_out import Failure, fan_out
from dagster_jet.store.metadata import StoreMetadata
from dagster_jet.store.placement import PartitionTable
from dagster_jet.store.quorum import Configuration, RegisterClient
from dagster_jet.store.replicated_map import ReplicatedMap

_METADATA = "store"
_CREATE_ATTEMPTS_MAX = 100


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One member at the moment it was asked.

    Attributes:
        member_id: the member.
        reachable: it answers, and is the member the store knows.
        primaries: partitions it is read first for.
        backups: partitions it holds a further replica of.
        trouble: why it is not reachable, None if it is.
    """

    member_id: str
    reachable: bool
    primaries: int
    backups: int
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """All members at the moment they were asked."""

    members: tuple[MemberStatus, ...]

    @property
    def is_safe(self) -> bool:
        """Whether every member in the table is reachable, so that writes reach all replicas."""
        return all(member.reachable for member in self.members)


class Store:
    """An open store. Made by ``Store.open``; use as a context manager or ``close`` it."""

    def __init__(
        self, config: StoreConfig, metadata: StoreMetadata, members: Mapping[str, Member]
    ) -> None:
        self.config = config
        self._metadata = metadata
        self._members = dict(members)

    @staticmethod
    def open(config: StoreConfig) -> Store:
        """Open a store, creating it at the first time.

        Creating needs every member: a member that is away might hold an older store. Opening an
        existing one needs a majority; partitions of the others are read from backups. Several
        processes may open at one moment, also for the first time. A crash inside leaves no store,
        or a whole one.

        Raises:
            ConfigurationError: fewer members than ``backup_count`` + 1.
            StoreMismatchError: the store has other settings or members, or a newer format.
            StoreUnavailableError: too few members answer; names them.
            StoreUnwritableError: a member of a new store cannot be created.
        """
        if len(config.urls) < config.backup_count + 1:
            raise ConfigurationError(
                f"backup_count={config.backup_count} needs {config.backup_count + 1} members, "
                f"urls names {len(config.urls)}.",
                cure="Add members, or lower backup_count.",
            )
        members = config.open_members()
        try:
            found = _read_or_create(config, members)
            found.check(config)
            known = verified_members(config, found.identities)
        finally:
            for member in members.values():
                member.close()
        try:
            # Once more, now without the members that lost their data: only these count.
            value = RegisterClient(Configuration(0, known), _METADATA).read()
            if value is None:
                raise StoreUnavailableError("the store's metadata is on no verified majority.")
            metadata = StoreMetadata.from_bytes(value.value)
            metadata.check(config)
        except BaseException:
            for member in known.values():
                member.close()
            raise
        return Store(config, metadata, known)

    @property
    def table(self) -> PartitionTable:
        """The partition table, as of opening."""
        return self._metadata.table

    @property
    def partition_count(self) -> int:
        """How many partitions the store has."""
        return self._metadata.partition_count

    def map(self, name: str) -> ReplicatedMap:
        """Return the map of a name in the configured namespace."""
        prefix = map_prefix(self.config.namespace, name)
        return ReplicatedMap(self._members, self.table, prefix)

    def register(self, name: str) -> RegisterClient:
        """Return the register of a name in the configured namespace."""
        in_namespace = f"{quote(self.config.namespace, safe='')}/{quote(name, safe='')}"
        return RegisterClient(Configuration(0, self._members), in_namespace)

    def status(self) -> StoreStatus:
        """Ask every member now. Never raises because of a member."""

        def ping(member: Member) -> Callable[[], None]:
            return member.ping

        _, failures = fan_out({m: ping(member) for m, member in self._members.items()})
        held = self.table.replicas
        return StoreStatus(
            tuple(
                MemberStatus(
                    member_id=member_id,
                    reachable=member_id not in failures,
                    primaries=sum(member_id == replicas[0] for replicas in held),
                    backups=sum(member_id in replicas[1:] for replicas in held),
                    trouble=str(failures[member_id]) if member_id in failures else None,
                )
                for member_id in self.table.members
            )
        )

    def handle(self) -> StoreHandle:
        """Return what executors need: frozen, picklable, without the register."""
        return StoreHandle(self.config, self.table, self._metadata.identities)

    def close(self) -> None:
        """Release the members. Handles made from this store stay usable."""
        for member in self._members.values():
            member.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_or_create(config: StoreConfig, members: Mapping[str, Member]) -> StoreMetadata:
    def name(member: Member) -> Callable[[], str]:
        return lambda: identify(member)

    identities, failures = fan_out({m: name(member) for m, member in members.items()})
    register = RegisterClient(Configuration(0, members), _METADATA)
    value = register.read()
    if value is not None:
        return StoreMetadata.from_bytes(value.value)
    if failures:
        raise _cannot_create(failures)
    owner = uuid.uuid4().hex
    for attempt in range(_CREATE_ATTEMPTS_MAX):
        try:
            highest = register.highest_ballot()
            owned = register.claim(highest.number + 1 if highest else 1, owner)
            if owned.value is None:
                # Crash window: between claim and write there is no store yet; the next process to
                # open it claims a higher ballot and creates it.
                owned.write(StoreMetadata.of_new_store(config, identities).to_bytes())
            if owned.value is not None:
                return StoreMetadata.from_bytes(owned.value)
        except FencedError:
            # Another process is creating the store: let it, and read what it wrote.
            time.sleep(random.uniform(0, 0.002 * (1 + min(attempt, 20))))
            value = register.read()
            if value is not None:
                return StoreMetadata.from_bytes(value.value)
    raise StoreUnavailableError(
        f"the store could not be created: {_CREATE_ATTEMPTS_MAX} times another process was faster.",
        cure="Open it again.",
    )


def _cannot_create(failures: Mapping[str, Failure]) -> Failure:
    causes = "; ".join(f"{member_id}: {error}" for member_id, error in sorted(failures.items()))
    message = f"a new store needs all of its members: {causes}"
    if any(isinstance(failure, StoreUnwritableError) for failure in failures.values()):
        return StoreUnwritableError(message)
    return StoreUnavailableError(message, cure="Bring them back, or correct urls.")
