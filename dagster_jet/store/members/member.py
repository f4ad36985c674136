"""The interface of a storage member; every backend implements exactly this.

``dagster_jet.testing.check_member`` tests this contract: run it against every new backend.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dagster_jet.errors import StoreUnavailableError

MAX_KEY_BYTES = 511
"""Longest key that every member must accept (LMDB's limit, the smallest of all backends)."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A compare-and-set value, with the number of times it has been set."""

    version: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Replacement:
    """A write that happens only if the stored bytes are still those that were read.

    Attributes:
        seen: the bytes that were read; None for no value.
        value: the bytes to write; None: remove the value.
    """

    seen: bytes | None
    value: bytes | None


class IncompleteListingError(StoreUnavailableError):
    """A member cannot list all of its keys, because some of its objects cannot be read.

    The error contains the keys that can be listed, for a repair from other replicas.
    """

    def __init__(self, member_id: str, listed: Sequence[bytes], damaged: Sequence[str]) -> None:
        super().__init__(
            f"the store member {member_id} holds objects that cannot be read: "
            f"{', '.join(damaged[:5])}{', ...' if len(damaged) > 5 else ''}.",
            cure="Repair them from other replicas: dagster-jet store verify --repair.",
        )
        self.listed, self.damaged = tuple(listed), tuple(damaged)


class DamagedMemberError(StoreUnavailableError):
    """A member answers, but its own data structure is damaged and cannot be read."""


class Member(Protocol):
    """A place that stores bytes and can compare-and-set one key.

    It has two separate key spaces: *values* (``get_many``, ``put_many``, ``replace_many``,
    ``delete_many``, ``list_keys``) and *versioned values* (``get_versioned``,
    ``list_versioned``, ``compare_and_set``). Keys are 1 to ``MAX_KEY_BYTES`` arbitrary bytes.
    Values are arbitrary bytes, also empty. Members do not interpret them; callers add checksums.

    A member may be used from several threads, and from several processes that opened the same
    URL. It connects lazily and reconnects after a fork. Objects are not pickled. A call must end
    within a bounded time: a member that hangs raises an error, or it would block the quorum.

    Every method raises:
        StoreUnavailableError: the member does not answer, lost its storage or answered nonsense.
            The job restarts and other replicas serve meanwhile.
        StoreUnwritableError: the storage cannot be created or written (permission, full disk);
            an operator must act.
    Both messages contain ``member_id``.
    """

    @property
    def member_id(self) -> str:
        """The normalised URL without secrets: the member's name in the partition table."""

    def create(self) -> None:
        """Create the storage unless it exists, if the backend can create it.

        Called only for a member that joins a store. No other call may create empty storage: an
        existing one may only be missing for now (a disk that is not mounted).
        """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values in the order of ``keys``; None where there is none.

        A ``get_many`` that begins after a ``put_many`` returned, in any process, sees its items.
        """

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """Write all items, replacing existing values. Durable when it returns.

        After a crash inside, all items or any subset of them are written, and each of these
        completely. Repeating the call is always correct.
        """

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """Write or remove each item only where the stored bytes still equal ``seen``.

        Used to repair a bad copy without overwriting a newer value written concurrently. Test and
        write of one key are therefore atomic. A crash inside leaves any subset written.

        Returns:
            Number of items written or removed.
        """

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Remove the keys; ignores unknown ones. Durable and repeatable like ``put_many``."""

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """Return every key that starts with ``prefix``, in byte order.

        Raises:
            IncompleteListingError: some objects cannot be read.
        """

    def get_versioned(self, key: bytes) -> Versioned | None:
        """Return the newest version of a versioned value, None if it was never set."""

    def written_last(self, key: bytes) -> Versioned | None:
        """Return what this object's last ``compare_and_set`` of the key has written; no request.

        Only a member whose ``compare_and_set`` at that version fails unless exactly these bytes
        are still there returns it, which spares a read, and only for a moment: a set without an
        answer leaves a doubt, so that a read should be the first to meet an outage. None: read.
        """

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """Return every key of a versioned value that starts with ``prefix``, in byte order.

        Used by changes of the members, which move every register. May be slow.
        """

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """Set ``key`` if its version is still ``expected_version`` (0: never set).

        Linearizable over all processes: of two calls with one ``expected_version``, at most one
        returns True. The new version is ``expected_version + 1``; versions never repeat.

        Returns:
            True: written and durable. False: nothing was written, because the version differs.

        Raises:
            StoreUnavailableError: the outcome is unknown; read before deciding.
        """

    def ping(self) -> None:
        """Check that the member can be read and written: writes a value and reads it back."""

    def close(self) -> None:
        """Release connections. May be called twice; a closed member is not used again."""
