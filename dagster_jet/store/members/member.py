"""What the store needs from one storage member; every backend implements exactly this.

``dagster_jet.testing.check_member`` is this text as a test: whoever writes a member runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from dagster_jet.errors import StoreUnavailableError

MAX_KEY_BYTES = 511
"""The longest key every member must take (LMDB's limit, the smallest among the backends)."""


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value under compare-and-set, with the number of times it has been set."""

    version: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Replacement:
    """A write that only happens where the stored bytes are still the ones that were seen.

    Attributes:
        seen: the bytes; None for no value.
        value: what to write; None: remove what was seen.
    """

    seen: bytes | None
    value: bytes | None


class IncompleteListingError(StoreUnavailableError):
    """A member cannot list all of its keys: a part of what it holds cannot be read.

    What can be listed is in the error, for those who repair it from other replicas.
    """

    def __init__(self, member_id: str, listed: Sequence[bytes], damaged: Sequence[str]) -> None:
        super().__init__(
            f"the store member {member_id} holds objects that cannot be read: "
            f"{', '.join(damaged[:5])}{', ...' if len(damaged) > 5 else ''}.",
            cure="Repair them from other replicas: dagster-jet store verify --repair.",
        )
        self.listed, self.damaged = tuple(listed), tuple(damaged)


class DamagedMemberError(StoreUnavailableError):
    """A member answers, and cannot read what it has: its own structure is damaged."""


class Member(Protocol):
    """One place that keeps bytes and can compare-and-set one key.

    Two key spaces that never meet: *values* (``get_many``, ``put_many``, ``replace_many``,
    ``delete_many``, ``list_keys``) and *versioned values* (``get_versioned``,
    ``list_versioned``, ``compare_and_set``). Keys are 1 to ``MAX_KEY_BYTES`` bytes, any byte
    allowed; values any bytes, empty ones included. A member does not look into values: checksums
    are the caller's.

    A member may be used from several threads, and from several processes that opened the same
    URL; it opens its connection lazily and again after a fork. Objects are not pickled. A call
    ends within a bounded time: a member that hangs raises, or it would hold up the whole quorum.

    Every method raises:
        StoreUnavailableError: the member does not answer, lost its place or answered nonsense.
            The job restarts and other replicas serve meanwhile.
        StoreUnwritableError: the place cannot be created or written (permission, full disk);
            a person must act.
    Both messages name ``member_id``.
    """

    @property
    def member_id(self) -> str:
        """The normalised URL without secrets: the member's name in the partition table."""

    def create(self) -> None:
        """Make the place, if it is one that can be made, unless it is there.

        Called only for a member that joins a store: where a place that was there is missing (a disk
        that is not mounted), no other call may put an empty one instead.
        """

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key, in the order of ``keys``; None where there is none.

        A ``get_many`` that begins after a ``put_many`` has returned, in any process, sees it.
        """

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """Write all items, replacing what was there. Durable when it returns.

        After a crash inside, either all items are written, or any subset of them is and no item
        is half written: repeating the call is always right.
        """

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """Write or remove each item only where the stored bytes still equal ``seen``.

        Used to repair a bad copy without overwriting a newer value that arrived meanwhile, so
        test and write of one key are one atomic step. A crash inside leaves any subset written.

        Returns:
            How many items were written or removed.
        """

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """Remove the keys; unknown ones are no error. Durable, repeatable, as ``put_many``."""

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """Return every key that starts with ``prefix``, in byte order.

        Raises:
            IncompleteListingError: some cannot be read.
        """

    def get_versioned(self, key: bytes) -> Versioned | None:
        """Return the newest version of a versioned value, None if it was never set."""

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """Return every key of a versioned value that starts with ``prefix``, in byte order.

        For a change of the members, which has to move every register; not for the daily path.
        """

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """Set ``key`` if its version is still ``expected_version`` (0: it was never set).

        Linearizable over all processes: of two calls with one ``expected_version``, at most one
        returns True. The new version is ``expected_version + 1``; versions never repeat.

        Returns:
            True: written and durable. False: nothing was written, the version is another one.

        Raises:
            StoreUnavailableError: the outcome may be either; read before deciding.
        """

    def ping(self) -> None:
        """Return when the member can be read and written now: writes, and reads it back."""

    def close(self) -> None:
        """Release connections. Closing twice is no error; a closed member is not used again."""
