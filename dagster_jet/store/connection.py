"""The opened members of a store, and the register that lists them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace

from dagster_jet.errors import (
    MembersChangedError,
    StoreMismatchError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.store.config import StoreConfig
from dagster_jet.store.identity import VerifiedMember, identify
from dagster_jet.store.map.damage_notes import DamageNotes
from dagster_jet.store.members import Member, member_id_of
from dagster_jet.store.members.fan_out import BRIEF_SECONDS_MAX, Failure, fan_out
from dagster_jet.store.metadata import METADATA, Identities, StoreMetadata
from dagster_jet.store.quorum import (
    Configuration,
    RegisterClient,
    discover_configuration,
)
from dagster_jet.store.quorum.acceptor_on_member import state_of
from dagster_jet.store.register import AcceptorState
from dagster_jet.store.same_store import check_same_store
from dagster_jet.store.values.sealed_member import SealedMember, UnsealableError
from dagster_jet.store.values.sealing import Sealer

_CLOSE_SECONDS_MAX = 5.0


class Connection:
    """Opens each member once and keeps it until ``close``."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self.sealer = config.sealer()
        self._opened: dict[tuple[str, str | None], Member] = {}
        self._lock = threading.Lock()

    def member(self, member_id: str, identity: str | None = None, store_id: str = "") -> Member:
        """Return a member. With an identity, it is used only while it shows that identity.

        With keys, its registers are written for ``store_id``, and those of other stores are not
        read. Without an id, registers of any store are read and none is written.

        A member that the configured URLs lack is opened by its id, which is its URL without
        secrets: a process keeps working when a member joins that its configuration lacks.
        """
        with self._lock:
            key = (member_id, identity)
            if key not in self._opened:
                member = self.config.open_member(member_id)
                if self.sealer.keyring is not None:
                    member = SealedMember(member, self.sealer.of_store(store_id))
                self._opened[key] = member if identity is None else VerifiedMember(member, identity)
            return self._opened[key]

    def reopen(self, member_id: str) -> Member:
        """Close a member that was opened without an identity, and return it opened again."""
        with self._lock:
            former = self._opened.pop((member_id, None), None)
        if former is not None:
            former.close()
        return self.member(member_id)

    def reseal_registers(self, member_id: str, store_id: str) -> int:
        """Seal the registers of a member with the newest key; see ``SealedMember.reseal``."""
        member = SealedMember(self.config.open_member(member_id), self.sealer.of_store(store_id))
        with closing(member):
            return member.reseal()

    def add_url(self, url: str) -> None:
        """Add a member's URL to the configuration.

        Raises:
            ConfigurationError: the URL cannot be opened.
        """
        if member_id_of(url) not in self.config.member_ids:
            self.config = replace(self.config, urls=(*self.config.urls, url))

    def view(self, metadata: StoreMetadata) -> View:
        """Return the store as described by its metadata."""
        members = self._members(metadata, metadata.members + metadata.leaving)
        sealer = self.sealer.of_store(metadata.store_id)
        return View(metadata, members, self._configuration(metadata), sealer)

    def discover(self) -> View | None:
        """Find the store's newest metadata, beginning with the configured members.

        Only members that show the identity listed in the metadata count. If the first step of a
        member change is half done, the write of the metadata is completed.

        Returns:
            None if no member that answers has ever heard of a store.

        Raises:
            StoreUnavailableError: no majority of the members answers; names them.
            StoreMismatchError: the store has a newer format, or was not written with these keys,
                or the configured members belong to several stores; names the members.
        """
        configured = {m: self.member(m) for m in self.config.member_ids}
        check_same_store(configured)
        try:
            found = self._discover(configured)
        except StoreUnavailableError:
            _check_unsealed(configured)
            raise
        if found is None:
            _check_unsealed(configured)
        return found

    def discover_after(self, view: View) -> View:
        """Find the newest metadata of a store that was opened before.

        Raises:
            StoreUnavailableError: no majority of the members answers; names them.
            StoreMismatchError: the store has a newer format, or is a different store now.
        """
        try:
            found = self._discover(view.configuration.members)
        except StoreUnavailableError:
            # Perhaps all members of that configuration have left since and are gone.
            found = self.discover()
            if found is None or found.metadata.configuration <= view.metadata.configuration:
                raise
        if found is None:
            # Members answer only while they show their former identity, so this is an outage.
            raise StoreUnavailableError(
                f"none of the store's members {', '.join(sorted(view.configuration.members))} "
                "answers.",
                cure="Bring the members back. No data is lost while they are away.",
            )
        if found.metadata.store_id != view.metadata.store_id:
            raise StoreMismatchError(
                "the members now belong to another store than when this process opened it.",
                cure="Open the store again.",
            )
        return found

    def _discover(self, known: Mapping[str, Member]) -> View | None:
        found = discover_configuration(METADATA, known, self._parse)
        return None if found is None else self.view(StoreMetadata.from_bytes(found.value.value))

    def create(self) -> View:
        """Create the store, unless another process does so first. Needs every configured member.

        Raises:
            StoreUnavailableError: a member does not answer; it might hold an older store.
            StoreUnwritableError: a member cannot be created.
        """

        def name(member: Member) -> Callable[[], str]:
            return lambda: identify(member)

        members = {m: self.member(m) for m in self.config.member_ids}
        calls = {m: name(member) for m, member in members.items()}
        identities, failures = fan_out(calls, within_s=BRIEF_SECONDS_MAX)
        if failures:
            raise _cannot_create(failures)
        new = StoreMetadata.of_new_store(self.config, identities, self.sealer)
        register = RegisterClient(self._configuration(new), METADATA)
        # Crash window: between claim and write there is no store yet; the next process to open it
        # claims a higher ballot and creates it.
        created = register.update(lambda current: new.to_bytes() if current is None else current)
        assert created is not None
        return self.view(StoreMetadata.from_bytes(created.value))

    def decide(self, view: View, metadata: StoreMetadata) -> View:
        """Replace the store's metadata, if it is still that of ``view``.

        After a crash inside, the metadata is either the old or the new one.

        Raises:
            MembersChangedError: another process has changed it.
            WriteOutcomeUnknownError: read the metadata again to see.
        """
        try:
            self._replace(view, metadata)
        except MembersChangedError:
            # Readers of the new value may move its register on before our own write returns.
            if self.discover_after(view).metadata != metadata:
                raise
        return self.view(metadata)

    def _replace(self, view: View, metadata: StoreMetadata) -> None:
        def change(current: bytes | None) -> bytes | None:
            found = None if current is None else StoreMetadata.from_bytes(current)
            if found == metadata:
                return current
            if found != view.metadata:
                raise changed_meanwhile()
            return metadata.to_bytes()

        view.register(METADATA).update(change)

    def close(self) -> None:
        """Release all members. A member that hangs is left until the process ends."""
        with self._lock:
            opened, self._opened = dict(self._opened), {}
        by_name = {f"{m} {identity or ''}": one.close for (m, identity), one in opened.items()}
        fan_out(by_name, within_s=_CLOSE_SECONDS_MAX)

    def _parse(self, value: bytes) -> Configuration[Member]:
        return self._configuration(StoreMetadata.from_bytes(value))

    def _configuration(self, metadata: StoreMetadata) -> Configuration[Member]:
        previous = None
        if metadata.previous:
            former = self._members(metadata, metadata.previous)
            previous = Configuration(metadata.configuration - 1, former)
        members = self._members(metadata, metadata.members)
        return Configuration(metadata.configuration, members, previous)

    def _members(self, metadata: StoreMetadata, identities: Identities) -> dict[str, Member]:
        return {m: self.member(m, identity, metadata.store_id) for m, identity in identities}


@dataclass(frozen=True)
class View:
    """A store's metadata as read at one time, and the members that it lists.

    Attributes:
        metadata: as read then.
        members: every member that holds or receives data, verified, by id.
        configuration: the members the registers are on.
        sealer: seals and unseals values.
    """

    metadata: StoreMetadata
    members: dict[str, Member]
    configuration: Configuration[Member]
    sealer: Sealer

    @property
    def damage_notes(self) -> DamageNotes:
        """Notes of damaged copies seen since the last complete verification."""
        return DamageNotes(self.members, self.metadata.routing, self.check_routes, self.sealer)

    def register(self, name: str) -> RegisterClient:
        """Return a register by its full name."""
        return RegisterClient(self.configuration, name)

    def read_metadata(self) -> StoreMetadata:
        """Return the current metadata.

        Raises:
            MembersChangedError: the register has moved to other members.
            StoreUnavailableError: no majority answers.
        """
        value = self.register(METADATA).read()
        if value is None:
            raise StoreUnavailableError(
                "no majority of the store's members has the store's metadata."
            )
        return StoreMetadata.from_bytes(value.value)

    def check_routes(self) -> None:
        """Raise ``MembersChangedError`` unless the store's maps still use these members."""
        if not self.read_metadata().routes_like(self.metadata):
            raise changed_meanwhile()

    def check_unchanged(self) -> None:
        """Raise ``MembersChangedError`` unless this is still the store's metadata."""
        if self.read_metadata() != self.metadata:
            raise changed_meanwhile()


def changed_meanwhile() -> MembersChangedError:
    """Return the error of a process whose table is not the store's any more."""
    return MembersChangedError(
        "the store's members or their partitions have changed, and this process still uses the "
        "old partition table.",
        cure="Refresh the store and repeat the call. A job restarts by itself.",
    )


def _check_unsealed(members: Mapping[str, Member]) -> None:
    """Raise ``StoreMismatchError`` if a majority of the members fails for lack of the keys."""

    def read(member: Member) -> Callable[[], AcceptorState]:
        return lambda: state_of(member, METADATA)

    _, failures = fan_out({m: read(member) for m, member in members.items()})
    refused = [failure for failure in failures.values() if isinstance(failure, UnsealableError)]
    if len(refused) > len(members) // 2:
        raise StoreMismatchError(str(refused[0]))


def _cannot_create(failures: Mapping[str, Failure]) -> Failure:
    causes = "; ".join(f"{member_id}: {error}" for member_id, error in sorted(failures.items()))
    message = f"a new store needs all of its members: {causes}"
    if any(isinstance(failure, StoreUnwritableError) for failure in failures.values()):
        return StoreUnwritableError(message)
    return StoreUnavailableError(message, cure="Bring them back, or correct urls.")
