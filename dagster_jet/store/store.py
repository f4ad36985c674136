"""The store: its maps and registers, its members, and what an operator does with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TypeVar
from urllib.parse import quote

from dagster_jet.errors import (
    ConfigurationError,
    StaleConfigurationError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
)
from dagster_jet.store.config import StoreConfig
from dagster_jet.store.connection import Connection, View
from dagster_jet.store.handle import StoreHandle
from dagster_jet.store.map.partition_table import PartitionTable
from dagster_jet.store.map.replicated_map import ReplicatedMap
from dagster_jet.store.map.stored_key import map_of, map_prefix
from dagster_jet.store.members.fan_out import BRIEF_SECONDS_MAX, fan_out
from dagster_jet.store.membership import changed
from dagster_jet.store.quorum import (
    RegisterClient,
    RegisterValue,
    disown_rolled_back_members,
)
from dagster_jet.store.upkeep.administration import Administration, Changes, no_store
from dagster_jet.store.upkeep.progress import OnProgress, unwatched
from dagster_jet.store.upkeep.reencryption import Reencrypted
from dagster_jet.store.upkeep.repair_lease import REPAIR, RepairLease
from dagster_jet.store.upkeep.status import StoreStatus, status_of
from dagster_jet.store.upkeep.verification import Verified, verify_store

T = TypeVar("T")

_MOVES_MAX = 10


class Store:
    """An open store. Made by ``Store.open``; use as a context manager or ``close`` it.

    It knows the members and the table as of opening, or of the last ``refresh``. Maps, registers
    and handles keep what the store knew when they were made.
    """

    def __init__(self, connection: Connection, view: View) -> None:
        self._connection = connection
        self._view = view
        self._refreshing = threading.Lock()

    @staticmethod
    def open(config: StoreConfig, *, create: bool = True) -> Store:
        """Open a store, creating it at the first time.

        Creating needs every member: a member that is away might hold an older store. Opening an
        existing one needs a majority; partitions of the others are read from backups. Several
        processes may open at one moment, also for the first time. A crash inside leaves no store,
        or a whole one.

        Args:
            config: must name every member of the store. May name others: members that were
                removed, or are to be added.
            create: False, for operators: never create, and take partition_count, backup_count and
                members that are not configured from the store itself.

        Raises:
            ConfigurationError: fewer members than ``backup_count`` + 1.
            StoreMismatchError: the store has other settings or members, or a newer format.
            StoreUnavailableError: too few members answer; names them. Or there is no store, with
                ``create=False``.
            StoreUnwritableError: a member of a new store cannot be created.
        """
        config.check_members()
        connection = Connection(config)
        try:
            view = connection.discover()
            if view is None:
                if not create:
                    raise no_store(connection)
                view = connection.create()
            if not create:
                connection.config = view.metadata.completed(config)
            view.metadata.check(connection.config)
            if create:
                view.metadata.check_keys(connection.sealer)
        except BaseException:
            connection.close()
            raise
        return Store(connection, view)

    @property
    def config(self) -> StoreConfig:
        """The configuration it was opened with."""
        return self._connection.config

    @property
    def table(self) -> PartitionTable:
        """The partition table, as of opening or the last refresh."""
        return self._view.metadata.table

    @property
    def partition_count(self) -> int:
        """How many partitions the store has."""
        return self._view.metadata.partition_count

    @property
    def configuration_number(self) -> int:
        """The number of the members' configuration that this object works with."""
        return self._view.metadata.configuration

    @property
    def is_moving(self) -> bool:
        """Whether a change of the members is under way, as of opening or the last refresh."""
        return self._view.metadata.is_moving

    @property
    def store_id(self) -> str:
        """A random name that identifies this store, whatever members it has."""
        return self._view.metadata.store_id

    def refresh(self) -> bool:
        """Look whether the members or the table have changed, and work with the new ones.

        Maps, registers and handles that exist keep the old ones: make them anew. In particular, an
        ``OwnedRegister`` of an older configuration never decides again, and what was written
        through older maps and handles must not be decided under a newer configuration.

        Returns:
            Whether anything has changed.

        Raises:
            StoreUnavailableError: no majority of the members answers. Nothing has changed here.
            StoreMismatchError: the store is another one now, or has a newer format.
        """
        with self._refreshing:
            view = self._connection.discover_after(self._view)
            is_new = view.metadata != self._view.metadata
            if is_new:
                self._view = view
            return is_new

    def map(self, name: str) -> ReplicatedMap:
        """Return the map of a name in the configured namespace; its writes are checked."""
        view = self._view
        return ReplicatedMap(
            view.members,
            view.metadata.routing,
            map_prefix(self.config.namespace, name),
            check=view.check_routes,
            check_writes=True,
            sealer=view.sealer,
            on_damage=view.damage_notes.add,
        )

    def map_names(self, prefix: str) -> list[str]:
        """Return the names of this namespace's maps that begin so and hold something.

        A map of which only members hold anything that do not answer now is not among them.
        """
        start = map_prefix(self.config.namespace, prefix).encode()
        listings = {m: partial(member.list_keys, start) for m, member in self._view.members.items()}
        listed, _ = fan_out(listings)
        return sorted({map_of(key) for keys in listed.values() for key in keys})

    def register(self, name: str) -> RegisterClient:
        """Return the register of a name in the configured namespace."""
        in_namespace = f"{quote(self.config.namespace, safe='')}/{quote(name, safe='')}"
        return self._view.register(in_namespace)

    def read_register(self, name: str) -> RegisterValue | None:
        """Return the newest value of a register, whoever the store's members are by now.

        Raises:
            StoreUnavailableError: no majority of the members answers.
        """
        return self._following(lambda: self.register(name).read())

    def update_register(
        self, name: str, change: Callable[[bytes | None], bytes | None]
    ) -> RegisterValue | None:
        """Read, change and write a register (``RegisterClient.update``), whoever the store's
        members are by now."""
        ours: set[bytes] = set()
        return self._following(lambda: self.register(name).update(change, ours=ours))

    def _following(self, use: Callable[[], T]) -> T:
        """Use a register again where it has moved to other members."""
        for _ in range(_MOVES_MAX):
            with suppress(StaleConfigurationError):
                return use()
            self.refresh()
        return use()

    def handle(self) -> StoreHandle:
        """Return what executors need: frozen, picklable, with maps only."""
        return StoreHandle(self.config, self._view.metadata)

    # --- looking --------------------------------------------------------------------------------

    def status(self) -> StoreStatus:
        """Ask every member now. Never raises because of a member."""
        view = self._view
        pings = {m: member.ping for m, member in view.members.items()}
        _, failures = fan_out(pings, within_s=BRIEF_SECONDS_MAX)
        troubles = {m: str(failure) for m, failure in failures.items()}
        damaged = view.damage_notes.known(view.members.keys() - troubles.keys())
        return status_of(view.metadata, troubles, view.metadata.strangers(self.config), damaged)

    def away(self) -> dict[str, str]:
        """Ask every member that the store has now; return those that do not answer, and why.

        One that answers and refuses (a full disk, a wrong password) is not among them.

        Raises:
            StoreUnavailableError: no majority of the members answers.
        """
        members = self._connection.discover_after(self._view).members
        pings = {m: member.ping for m, member in members.items()}
        _, failures = fan_out(pings, within_s=BRIEF_SECONDS_MAX)
        return {
            member_id: str(failure)
            for member_id, failure in failures.items()
            if isinstance(failure, StoreUnavailableError)
        }

    def is_safe(self) -> bool:
        """Whether every partition has all its replicas, on members that answer; see ``status``."""
        return self.status().is_safe

    def verify(self, *, repair: bool = False, on_progress: OnProgress = unwatched) -> Verified:
        """Read and compare every copy of every key of all maps; see ``verification.py``."""
        view = self._view
        disown_rolled_back_members(view.configuration)
        return verify_store(view, repair=repair, on_progress=on_progress)

    # --- changing -------------------------------------------------------------------------------

    def add_member(self, url: str, *, on_progress: OnProgress = unwatched) -> Changes:
        """Take in a new member and rebalance; see ``Administration.add``."""
        return self._changed(lambda admin: admin.add(url), on_progress)

    def remove_member(
        self, member_id: str, *, accept_loss: bool = False, on_progress: OnProgress = unwatched
    ) -> Changes:
        """Give up a member, dead or alive, and rebalance; see ``Administration.remove``."""
        return self._changed(
            lambda admin: admin.remove(member_id, accept_loss=accept_loss), on_progress
        )

    def repair(self, *, accept_loss: bool = False, on_progress: OnProgress = unwatched) -> Changes:
        """Rebuild what is missing and finish what was interrupted; ``Administration.repair``."""
        return self._changed(lambda admin: admin.repair(accept_loss=accept_loss), on_progress)

    def can_give_up(self, member_ids: Collection[str]) -> bool:
        """Whether the store, as it is now, could go on without these members and lose nothing.

        Raises:
            StoreUnavailableError: no majority of the members answers.
        """
        metadata = self._connection.discover_after(self._view).metadata
        try:
            if metadata.registers_have_moved:
                changed(metadata, lost=set(member_ids) & metadata.identities.keys())
        except (ConfigurationError, StoreCorruptedError):
            return False
        return True

    def give_up(
        self, member_ids: Collection[str], *, on_progress: OnProgress = unwatched
    ) -> Changes:
        """Go on without members that stay away; see ``Administration.give_up``."""
        return self._changed(lambda admin: admin.give_up(member_ids), on_progress)

    def repair_lease(self) -> RepairLease:
        """Return the lease of the process that repairs the store by itself, unacquired."""

        def register() -> RegisterClient:
            return self._connection.discover_after(self._view).register(REPAIR)

        return RepairLease(register)

    def rotate_keys(self, *, on_progress: OnProgress = unwatched) -> Reencrypted:
        """Encrypt every value and register with the newest key.

        Put the new key in front of the old ones in the environment of every process, restart the
        jobs, then call this; when nothing is ``left``, the old keys may go. May be interrupted and
        repeated. A store that is not encrypted, or was by an earlier version, is opened with
        ``accept_older_seals`` for this, and its jobs are stopped or run with it, too.

        Raises:
            ConfigurationError: no keys are configured.
            StoreUnavailableError: a member does not answer, or the members are being changed.
        """
        return self._changed(lambda admin: admin.rotate_keys(), on_progress)

    def drop_orphans(self, *, on_progress: OnProgress = unwatched) -> int:
        """Remove copies that nobody holds any more; returns how many."""
        return Administration(self._connection, self._view, on_progress).drop_orphans()

    def _changed(self, change: Callable[[Administration], T], on_progress: OnProgress) -> T:
        try:
            return change(Administration(self._connection, self._view, on_progress))
        finally:
            with suppress(StoreError):  # also after a failure: some of it may have been decided
                self.refresh()

    def close(self) -> None:
        """Release the members. Handles made from this store stay usable."""
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
