"""The store: its maps, registers and members, and the operations of an operator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import TypeVar

from dagster_jet.errors import (
    ConfigurationError,
    MembersChangedError,
    StoreCorruptedError,
    StoreError,
    StoreUnavailableError,
)
from dagster_jet.store.config import StoreConfig
from dagster_jet.store.connection import Connection, View
from dagster_jet.store.handle import StoreHandle
from dagster_jet.store.map.partition_table import PartitionTable
from dagster_jet.store.map.replicated_map import ReplicatedMap
from dagster_jet.store.map.stored_key import escaped, map_of, map_prefix
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

    It uses the members and the table as of opening, or of the last ``refresh``. Maps, registers
    and handles keep the table they were made with.
    """

    def __init__(self, connection: Connection, view: View) -> None:
        self._connection = connection
        self._view = view
        self._refreshing = threading.Lock()
        self._is_closed = False

    @staticmethod
    def open(config: StoreConfig, *, create: bool = True) -> Store:
        """Open a store; create it if there is none.

        Creating needs every member: a member that is away might hold an older store. Opening an
        existing store needs a majority; partitions of the other members are read from backups.
        Several processes may open a store concurrently, also for the first time. A crash inside
        leaves either no store or a complete one.

        Args:
            config: must list every member of the store. It may list others: members that were
                removed, or are to be added.
            create: False, for operators: never create, and take partition_count, backup_count and
                members that are not configured from the store itself.

        Raises:
            ConfigurationError: fewer members than ``backup_count`` + 1.
            StoreMismatchError: the store has other settings or members, or a newer format.
            StoreUnavailableError: too few members answer; names them. Or, with ``create=False``,
                there is no store.
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
        """The configuration the store was opened with."""
        return self._connection.config

    @property
    def table(self) -> PartitionTable:
        """The partition table, as of opening or the last refresh."""
        return self._view.metadata.table

    @property
    def partition_count(self) -> int:
        """Number of partitions of the store."""
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
        """Random name of this store; does not change with its members."""
        return self._view.metadata.store_id

    def refresh(self) -> bool:
        """Read the members and the table again, and use the new ones if they have changed.

        Existing maps, registers and handles keep the old ones: make new ones. In particular, an
        ``OwnedRegister`` of an older configuration never decides again, and data written through
        older maps and handles must not be decided under a newer configuration.

        Returns:
            Whether anything has changed.

        Raises:
            StoreUnavailableError: no majority of the members answers. This object is unchanged.
            StoreMismatchError: the store is a different one now, or has a newer format.
        """
        with self._refreshing:
            view = self._connection.discover_after(self._view)
            is_new = view.metadata != self._view.metadata
            if is_new:
                self._view = view
            return is_new

    def map(self, name: str, *, check_writes: bool = True) -> ReplicatedMap:
        """Return a map of the configured namespace.

        Args:
            check_writes: check the table after every write. False for values that count only once
                a register names them which was claimed before this call.
        """
        self._require_open()
        view = self._view
        return ReplicatedMap(
            view.members,
            view.metadata.routing,
            map_prefix(self.config.namespace, name),
            check=view.check_routes,
            check_writes=check_writes,
            sealer=view.sealer,
            on_damage=view.damage_notes.add,
        )

    def map_names(self, prefix: str) -> list[str]:
        """Return the names of this namespace's maps that start with ``prefix`` and are not empty.

        A map whose entries are only on members that do not answer is missing from the result.
        """
        start = map_prefix(self.config.namespace, prefix).encode()
        listings = {m: partial(member.list_keys, start) for m, member in self._view.members.items()}
        listed, _ = fan_out(listings)
        return sorted({map_of(key) for keys in listed.values() for key in keys})

    def register(self, name: str) -> RegisterClient:
        """Return a register of the configured namespace."""
        self._require_open()
        return self._view.register(f"{escaped(self.config.namespace)}/{escaped(name)}")

    def read_register(self, name: str) -> RegisterValue | None:
        """Return the newest value of a register, also after a change of the members.

        Raises:
            StoreUnavailableError: no majority of the members answers.
        """
        return self._following(lambda: self.register(name).read())

    def update_register(
        self, name: str, change: Callable[[bytes | None], bytes | None]
    ) -> RegisterValue | None:
        """Read, change and write a register (``RegisterClient.update``), also after a change of
        the members."""
        ours: set[bytes] = set()
        return self._following(lambda: self.register(name).update(change, ours=ours))

    def _following(self, use: Callable[[], T]) -> T:
        """Call ``use`` again, after a refresh, when the register has moved to other members."""
        for _ in range(_MOVES_MAX):
            with suppress(MembersChangedError):
                return use()
            self.refresh()
        return use()

    def handle(self) -> StoreHandle:
        """Return a frozen, picklable handle for executors, with maps only."""
        return StoreHandle(self.config, self._view.metadata)

    # --- inspection -----------------------------------------------------------------------------

    def status(self) -> StoreStatus:
        """Ping every member and return the status. Never raises because of a member."""
        view = self._view
        pings = {m: member.ping for m, member in view.members.items()}
        _, failures = fan_out(pings, within_s=BRIEF_SECONDS_MAX)
        errors = {m: str(failure) for m, failure in failures.items()}
        damaged = view.damage_notes.known(view.members.keys() - errors.keys())
        return status_of(view.metadata, errors, view.metadata.strangers(self.config), damaged)

    def away(self) -> dict[str, str]:
        """Ping all current members; return those that do not answer, with the reason.

        A member that answers with a refusal (full disk, wrong password) is not included.

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
        """Whether every partition has all its replicas on members that answer; see ``status``."""
        return self.status().is_safe

    def verify(self, *, repair: bool = False, on_progress: OnProgress = unwatched) -> Verified:
        """Read and compare every copy of every key of all maps; see ``verification.py``."""
        view = self._view
        disown_rolled_back_members(view.configuration)
        return verify_store(view, repair=repair, on_progress=on_progress)

    # --- maintenance ----------------------------------------------------------------------------

    def add_member(self, url: str, *, on_progress: OnProgress = unwatched) -> Changes:
        """Add a member and rebalance; see ``Administration.add``."""
        return self._changed(lambda admin: admin.add(url), on_progress)

    def remove_member(
        self, member_id: str, *, accept_loss: bool = False, on_progress: OnProgress = unwatched
    ) -> Changes:
        """Give up a member, dead or alive, and rebalance; see ``Administration.remove``."""
        return self._changed(
            lambda admin: admin.remove(member_id, accept_loss=accept_loss), on_progress
        )

    def repair(self, *, accept_loss: bool = False, on_progress: OnProgress = unwatched) -> Changes:
        """Rebuild missing copies, finish interrupted changes; see ``Administration.repair``."""
        return self._changed(lambda admin: admin.repair(accept_loss=accept_loss), on_progress)

    def can_give_up(self, member_ids: Collection[str]) -> bool:
        """Whether the store could go on now without these members and lose nothing.

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
        """Return the lease for repairing the store automatically, not yet acquired."""

        def register() -> RegisterClient:
            return self._connection.discover_after(self._view).register(REPAIR)

        return RepairLease(register)

    def rotate_keys(self, *, on_progress: OnProgress = unwatched) -> Reencrypted:
        """Encrypt every value and register with the newest key.

        Put the new key in front of the old ones in the environment of every process, restart the
        jobs, then call this. When nothing is ``left``, the old keys may be removed. The call may be
        interrupted and repeated. Open a store that is not encrypted yet with
        ``accept_unencrypted``; its jobs must be stopped or use it, too.

        Raises:
            ConfigurationError: no keys are configured.
            StoreUnavailableError: a member does not answer, or the members are being changed.
        """
        return self._changed(lambda admin: admin.rotate_keys(), on_progress)

    def drop_orphans(self, *, on_progress: OnProgress = unwatched) -> int:
        """Remove copies on members that no longer hold their partition; returns their number."""
        return Administration(self._connection, self._view, on_progress).drop_orphans()

    def _changed(self, change: Callable[[Administration], T], on_progress: OnProgress) -> T:
        try:
            return change(Administration(self._connection, self._view, on_progress))
        finally:
            with suppress(StoreError):  # also after a failure: some of it may have been decided
                self.refresh()

    def close(self) -> None:
        """Release the members. Handles made from this store stay usable."""
        self._is_closed = True
        self._connection.close()

    def _require_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailableError(
                "this store is closed.", cure="Ask inside the `with` block, or open another Jet."
            )

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
