"""Member identities: they distinguish a member that lost its data from the original one.

A quorum relies on members remembering what they promised. A folder that was deleted and created
again, or a server that lost its disk, answers like an empty member and could turn "the newest value
on a majority" into an old one. Therefore every member gets a random identity when it joins the
store, and the store's metadata lists the identities. A member that shows another identity is
treated as unreachable until it is repaired (``administration.py``).

A member that came back *older* (restored from a copy, or replaced by a replica that lacks the last
writes) still shows its identity. Registers detect it (``register/__init__.py``, rule 7) and take
its identity away (``disown``); from then on it is treated like a member that lost its data.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress

from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError
from dagster_jet.store.members import Member, Replacement, Versioned
from dagster_jet.store.values.envelope import BadCopyError, seal, unseal
from dagster_jet.store.values.sealed_member import IDENTITY_KEY

_KEY = IDENTITY_KEY
_OLDER = "older "
"""Prefix of the identity of a member that was found to have come back older."""


def identity_of(member: Member) -> str | None:
    """Return the member's identity, None for an empty member."""
    return _identity_in(member, member.get_versioned(_KEY))


def _identity_in(member: Member, stored: Versioned | None) -> str | None:
    if stored is None:
        return None
    try:
        return unseal(stored.value).decode()
    except BadCopyError as error:
        raise StoreUnavailableError(
            f"the identity of the store member {member.member_id} is damaged: {error}."
        ) from error


def identify(member: Member) -> str:
    """Return the member's identity. A new, empty or disowned member gets a new one.

    If several processes do this concurrently, one of them decides and all return the same.
    """
    member.create()
    while True:
        stored = member.get_versioned(_KEY)
        identity = _identity_in(member, stored)
        if identity is not None and not identity.startswith(_OLDER):
            return identity
        _set(member, stored, secrets.token_hex(16))


def disown(member: Member) -> None:
    """Mark a member that came back older as one that lost its data, for all processes.

    If the member does not answer, the next process does it. A crash inside changes nothing.
    """
    if isinstance(member, VerifiedMember):
        member.disown()


def member_rolled_back(member_id: str) -> StoreUnavailableError:
    """Return the error of a member that has forgotten confirmed writes."""
    return StoreUnavailableError(
        f"the store member {member_id} has older data than it had confirmed. It was restored "
        "from a copy, or a replica took its place.",
        cure="Run 'dagster-jet store repair', which copies all of its data to it again. "
        "Restoring another old copy does not help.",
    )


def _set(member: Member, stored: Versioned | None, identity: str) -> bool:
    version = stored.version if stored else 0
    return member.compare_and_set(_KEY, version, seal(identity.encode()))


class VerifiedMember:
    """A member that is used only while it shows the identity that the store lists.

    The identity is read before the first use in this process and at every ``ping``. A backend
    detects a later replacement of its storage itself (``FileMember`` compares files).
    """

    def __init__(self, member: Member, identity: str) -> None:
        self._member = member
        self._identity = identity
        self._is_verified = False
        self._is_older = False

    @property
    def member_id(self) -> str:
        """The member's id."""
        return self._member.member_id

    def create(self) -> None:
        """See ``Member.create``; does nothing, because a listed member exists already."""

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Member.get_many``."""
        return self._verified().get_many(keys)

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """See ``Member.put_many``."""
        self._verified().put_many(items)

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """See ``Member.replace_many``."""
        return self._verified().replace_many(items)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """See ``Member.delete_many``."""
        self._verified().delete_many(keys)

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_keys``."""
        return self._verified().list_keys(prefix)

    def get_versioned(self, key: bytes) -> Versioned | None:
        """See ``Member.get_versioned``."""
        return self._verified().get_versioned(key)

    def written_last(self, key: bytes) -> Versioned | None:
        """See ``Member.written_last``; nothing before the identity is verified."""
        is_used = self._is_verified and not self._is_older
        return self._member.written_last(key) if is_used else None

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_versioned``."""
        return self._verified().list_versioned(prefix)

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """See ``Member.compare_and_set``."""
        return self._verified().compare_and_set(key, expected_version, value)

    def ping(self) -> None:
        """See ``Member.ping``; reads the identity again."""
        self._is_verified = self._is_older = False
        self._verified().ping()

    def disown(self) -> None:
        """See ``disown``."""
        self._is_older = True
        with suppress(StoreUnavailableError, StoreUnwritableError):
            stored = self._member.get_versioned(_KEY)
            if _identity_in(self._member, stored) == self._identity:
                _set(self._member, stored, _OLDER + secrets.token_hex(16))

    def close(self) -> None:
        """See ``Member.close``."""
        self._member.close()

    def _verified(self) -> Member:
        if self._is_older:
            raise member_rolled_back(self.member_id)
        if not self._is_verified:
            found = identity_of(self._member)
            if found is not None and found.startswith(_OLDER):
                raise member_rolled_back(self.member_id)
            if found != self._identity:
                state = "is empty" if found is None else "is not the one the store knows"
                raise StoreUnavailableError(
                    f"the store member {self.member_id} {state}: its data was deleted or "
                    "replaced. Its partitions are read from other replicas.",
                    cure="Put the same data back (not an older copy), or rebuild the member with "
                    "'dagster-jet store repair'.",
                )
            self._is_verified = True
        return self._member
