"""Changes of a store's members while jobs run: join, leave, loss and replacement.

``membership.py`` contains the decisions, ``routing.py`` the rules for data; this module carries
them out. Every function first completes interrupted changes. It may die at any point and be called
again by any process: decisions are in the register "store", and all steps in between are
repeatable.
    step                     if the process dies after it
    decide: changed          the next repair moves the registers; so does any client that needs one
    registers moved          the next repair finds them moved
    decide: registers moved  the next repair copies
    copied                   the next repair compares, copies nothing
    decide: finished         old copies stay on members that do not need them, until ``gc``
    orphans dropped
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from dagster_jet.errors import (
    ConfigurationError,
    StoreError,
    StoreMismatchError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.store.connection import Connection, View
from dagster_jet.store.identity import identify, identity_of
from dagster_jet.store.members import Member, member_id_of
from dagster_jet.store.members.fan_out import BRIEF_SECONDS_MAX, Failure, fan_out
from dagster_jet.store.membership import changed, finished, with_registers_moved
from dagster_jet.store.metadata import StoreMetadata
from dagster_jet.store.quorum import disown_rolled_back_members, move_registers
from dagster_jet.store.same_store import metadata_on
from dagster_jet.store.upkeep.migration import Migrated, migrate
from dagster_jet.store.upkeep.orphans import drop_orphans
from dagster_jet.store.upkeep.progress import OnProgress, Steps, unwatched
from dagster_jet.store.upkeep.reencryption import Reencrypted, reencrypt
from dagster_jet.store.upkeep.verification import Verified, verify_store

_PINGS = 3
_PAUSE_SECONDS = 0.2


@dataclass(slots=True)
class Changes:
    """Result of a change of a store's members.

    Attributes:
        joined: new members.
        readmitted: members that had lost their data and have received it again.
        left: members that have left the store.
        registers: number of registers moved.
        migrated: result of the copying.
        dropped: number of orphans removed.
        verified: result of the verification at the end of a repair.
    """

    joined: list[str] = field(default_factory=list)
    readmitted: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    registers: int = 0
    migrated: Migrated = field(default_factory=Migrated)
    dropped: int = 0
    verified: Verified | None = None


class Administration:
    """Makes changes of one store in this process.

    Args:
        connection: the connection to the store.
        view: the last known view of the store.
        on_progress: called with the progress of every step.
    """

    def __init__(
        self, connection: Connection, view: View, on_progress: OnProgress = unwatched
    ) -> None:
        self._connection = connection
        self._last_seen = view
        self._on_progress = on_progress
        self._changes = Changes()

    def add(self, url: str) -> Changes:
        """Add a new member and give it its share of the data.

        Raises:
            ConfigurationError: it is already a member.
            StoreMismatchError: it belongs to another store.
            StoreUnavailableError: it, or a majority of the members, does not answer.
            StoreUnwritableError: it cannot be written.
        """
        self._connection.add_url(url)
        member_id = member_id_of(url)
        view = self._view_with_registers_moved()
        if member_id in dict(view.metadata.members):
            cure = "If it has lost its data, run 'dagster-jet store repair'."
            raise ConfigurationError(f"{member_id} is already a member of the store.", cure=cure)
        identity = self._take_in(view.metadata, member_id)
        self._change(view, joining={member_id: identity})
        self._changes.joined.append(member_id)
        return self._changes

    def remove(self, member_id: str, *, accept_loss: bool = False) -> Changes:
        """Remove a member, whether it answers or not; its data is first copied to the others.

        A member that can be read and not written (a full disk) has its data.

        Raises:
            ConfigurationError: it is not a member, or too few members would stay.
            StoreCorruptedError: it cannot be read, and partitions would be lost; names them.
            StoreUnavailableError: a majority of the members does not answer.
        """
        view = self._view_with_registers_moved()
        error = self._errors(view).get(member_id)
        has_data = error is None or (
            isinstance(error, StoreUnwritableError)
            and self._shows_identity(view, member_id) is True
        )
        self._change(
            view,
            leaving=(member_id,) if has_data else (),
            lost=() if has_data else (member_id,),
            accept_loss=accept_loss,
        )
        self._changes.left.append(member_id)
        return self._changes

    def repair(self, *, accept_loss: bool = False) -> Changes:
        """Restore all replicas of every partition, and compare all copies.

        Completes an interrupted change. Members that answer but have lost their data, or came back
        older, receive it again. Members that do not answer leave the store; their backups are
        promoted and rebuilt elsewhere. A member that comes back later is added as a new one.

        Raises:
            ConfigurationError: too few members would stay.
            StoreCorruptedError: partitions would be lost; names them.
            StoreUnavailableError: a majority of the members does not answer.
            StoreUnwritableError: a member cannot be written, for a reason an operator can fix.
        """
        view = self._view_with_registers_moved()
        disown_rolled_back_members(view.configuration)
        errors = self._errors(view)
        joining, lost = {}, list(errors)
        for member_id, error in errors.items():
            if self._shows_identity(view, member_id) is False:  # it was emptied
                if member_id in dict(view.metadata.members):
                    joining[member_id] = self._take_in(view.metadata, member_id)
            elif isinstance(error, StoreUnwritableError):
                # A full disk or a missing password is no reason to discard its data automatically.
                raise StoreUnwritableError(
                    f"the repair does not remove {member_id} from the store: {error}",
                    cure=f"To continue without it, run 'dagster-jet store remove {member_id}'.",
                )
        if lost:
            view = self._change(view, joining=joining, lost=lost, accept_loss=accept_loss)
            self._changes.readmitted += sorted(joining)
            self._changes.left += sorted(set(lost) - joining.keys())
        elif view.metadata.is_moving:
            view = self._copy(view)
        self._changes.verified = verify_store(view, repair=True, on_progress=self._on_progress)
        return self._changes

    def give_up(self, member_ids: Collection[str]) -> Changes:
        """Continue without members that stay away; called automatically.

        Like ``repair``, but no member is readmitted, nothing is lost, and existing copies are not
        compared. A member that answers again stays.

        Raises:
            ConfigurationError: too few members would stay.
            StoreCorruptedError: partitions would be lost; names them.
            StoreUnavailableError: a majority of the members does not answer.
            StoreUnwritableError: a member cannot write its share.
        """
        view = self._view_with_registers_moved()
        errors = self._errors(view)
        lost = {m for m in member_ids if isinstance(errors.get(m), StoreUnavailableError)}
        if lost:
            self._change(view, lost=lost)
            self._changes.left += sorted(lost)
        elif view.metadata.is_moving:
            self._copy(view)
        return self._changes

    def rotate_keys(self) -> Reencrypted:
        """Seal every value with the newest key; see ``Store.rotate_keys``."""
        sealer = self._connection.sealer
        if sealer.keyring is None:
            raise ConfigurationError(
                "encryption_keys: no keys are configured.",
                cure="Name the environment variable that holds them, the newest first.",
            )
        view = self._view_with_registers_moved()
        if view.metadata.is_moving:
            raise StoreUnavailableError(
                "a change of the members is not finished.",
                cure="Finish it first with 'dagster-jet store repair'.",
            )
        done = reencrypt(
            view.members, view.metadata.routing, view.sealer, on_progress=self._on_progress
        )
        if done.left == 0:
            # Registers come last: until they are sealed, operators are asked to run this again.
            done.registers = sum(
                self._connection.reseal_registers(member_id, view.metadata.store_id)
                for member_id in sorted(view.members)
            )
        if done.left == 0 and view.metadata.key_id != sealer.keyring.newest_id:
            # Crash window: everything is sealed again, but the metadata does not say so yet.
            self._connection.decide(view, replace(view.metadata, key_id=sealer.keyring.newest_id))
        return done

    def drop_orphans(self) -> int:
        """Remove copies on members that no longer hold them, unless a change is under way.

        Raises:
            StoreUnavailableError: a majority of the members does not answer.
        """
        view = self._view_with_registers_moved()
        return self._drop(view, view.members)

    # --- the steps ------------------------------------------------------------------------------

    def _view_with_registers_moved(self) -> View:
        return self._move_registers(self._connection.discover_after(self._last_seen))

    def _move_registers(self, view: View) -> View:
        """Move all registers to the current members, unless they have moved already."""
        if view.metadata.registers_have_moved:
            return view
        steps = Steps("registers", 0, self._on_progress)

        def moved(_: str) -> None:
            steps.total += 1
            steps.advance(done=1)

        self._changes.registers += move_registers(view.configuration, moved)
        return self._connection.decide(view, with_registers_moved(view.metadata))

    def _change(
        self,
        view: View,
        *,
        joining: Mapping[str, str] | None = None,
        leaving: Collection[str] = (),
        lost: Collection[str] = (),
        accept_loss: bool = False,
    ) -> View:
        metadata = changed(
            view.metadata,
            joining=joining,
            leaving=leaving,
            lost=lost,
            mover=secrets.token_hex(8),
            accept_loss=accept_loss,
        )
        self._check_majority(metadata)
        return self._copy(
            self._move_registers(self._connection.decide(view, metadata)), view.members
        )

    def _check_majority(self, metadata: StoreMetadata) -> None:
        """Refuse a change after which no majority could decide anything, even a reversal."""
        members = self._connection.view(metadata).configuration.members
        _, failures = _pinged(members)
        majority = len(members) // 2 + 1
        if len(members) - len(failures) < majority:
            raise StoreUnavailableError(
                f"the store would have {len(members)} members, of which {majority} must answer: "
                + "; ".join(f"{m}: {failure}" for m, failure in sorted(failures.items())),
                cure="Bring members back, or first remove the members that are gone.",
            )

    def _copy(self, view: View, former: Mapping[str, Member] | None = None) -> View:
        """Copy missing data to the receivers, decide the end of the change, drop the orphans."""
        mine = replace(view.metadata, mover=secrets.token_hex(8))
        view = self._connection.decide(view, mine)
        try:
            self._changes.migrated = migrate(
                view.members,
                view.metadata.routing,
                check_still_ours=view.check_unchanged,
                sealer=view.sealer,
                on_progress=self._on_progress,
            )
        except StoreError:
            # The member may not answer because another operator has removed it meanwhile.
            view.check_unchanged()
            raise
        done = self._connection.decide(view, finished(view.metadata))
        # Also from members that have left and may return later. Newer entries win: a readmitted
        # member is used with its present identity.
        self._changes.dropped += self._drop(done, {**(former or {}), **view.members})
        return done

    def _drop(self, view: View, members: Mapping[str, Member]) -> int:
        return drop_orphans(
            members,
            view.metadata.routing,
            check_table=view.check_routes,
            on_progress=self._on_progress,
        )

    # --- member checks --------------------------------------------------------------------------

    def _errors(self, view: View) -> dict[str, StoreError]:
        """Return the members that repeatedly fail, or lack the identity that the store lists."""
        members = dict(view.members)
        for attempt in range(_PINGS):
            _, failures = _pinged(members)
            members = {m: members[m] for m in failures}
            if not members:
                return {}
            if attempt < _PINGS - 1:
                time.sleep(_PAUSE_SECONDS)
        return dict(failures)

    def _shows_identity(self, view: View, member_id: str) -> bool | None:
        """Whether a member shows the identity that the store lists; None if it cannot be read."""
        try:
            found = identity_of(self._connection.reopen(member_id))
        except (StoreUnavailableError, StoreUnwritableError):
            return None
        return found == view.metadata.identities[member_id]

    def _take_in(self, metadata: StoreMetadata, member_id: str) -> str:
        """Return the identity of a joining member; a new member gets one.

        Raises:
            StoreMismatchError: it belongs to another store.
        """
        member = self._connection.reopen(member_id)
        member.create()
        found = metadata_on(member)
        if found is not None and found.store_id != metadata.store_id:
            raise StoreMismatchError(
                f"{member_id} belongs to another store, of {', '.join(found.identities)}.",
                cure="Use an empty location, or remove this member from the other store and "
                "empty it.",
            )
        identity = identify(member)
        member.ping()
        return identity


def no_store(connection: Connection) -> StoreUnavailableError:
    """Return the error of opening a store that does not exist."""

    def ask(member: Member) -> Callable[[], str | None]:
        return lambda: identity_of(member)

    members = {m: connection.member(m) for m in connection.config.member_ids}
    calls = {m: ask(member) for m, member in members.items()}
    _, failures = fan_out(calls, within_s=BRIEF_SECONDS_MAX)
    silent = "; ".join(f"{m}: {failure}" for m, failure in sorted(failures.items()))
    return StoreUnavailableError(
        f"no store was found on {', '.join(members)}" + (f": {silent}" if silent else "."),
        cure="Check the URLs; a store is created by the first job that uses it.",
    )


def _pinged(members: Mapping[str, Member]) -> tuple[dict[str, None], dict[str, Failure]]:
    return fan_out({m: one.ping for m, one in members.items()}, within_s=BRIEF_SECONDS_MAX)
