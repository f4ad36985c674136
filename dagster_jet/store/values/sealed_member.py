"""A member of an encrypted store: its registers are encrypted and bound to it.

Values pass unchanged: they are sealed before, because their replicas must be equal
(``sealing.py``). The member's identity passes unchanged, too: it is read before anything else is
known. A changed identity only makes the member unusable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dagster_jet.errors import StoreMismatchError, StoreUnavailableError
from dagster_jet.store.members import Member, Replacement, Versioned
from dagster_jet.store.values.envelope import BadCopyError
from dagster_jet.store.values.sealing import Sealer

IDENTITY_KEY = b"member/identity"
_PREFIXES = (b"member/", b"register/")


class UnsealableError(StoreUnavailableError):
    """A member's copy of a register was not written with the present keys.

    Other members may have good ones: this one does not count; a majority is sufficient.
    """


class SealedMember:
    """A ``Member`` that seals compare-and-set values.

    Args:
        member: the member that stores them.
        sealer: a sealer with keys.
    """

    def __init__(self, member: Member, sealer: Sealer) -> None:
        self._member = member
        self._sealer = sealer

    @property
    def member_id(self) -> str:
        """The member's id."""
        return self._member.member_id

    def create(self) -> None:
        """See ``Member.create``."""
        self._member.create()

    def get_versioned(self, key: bytes) -> Versioned | None:
        """See ``Member.get_versioned``.

        Raises:
            UnsealableError: the copy was not written with the present keys.
        """
        stored = self._member.get_versioned(key)
        if stored is None or key == IDENTITY_KEY:
            return stored
        return Versioned(stored.version, self._unsealed(key, stored))

    def written_last(self, key: bytes) -> Versioned | None:
        """See ``Member.written_last``."""
        stored = self._member.written_last(key)
        if stored is None or key == IDENTITY_KEY:
            return stored
        return Versioned(stored.version, self._unsealed(key, stored))

    def compare_and_set(self, key: bytes, expected_version: int, value: bytes) -> bool:
        """See ``Member.compare_and_set``."""
        if key != IDENTITY_KEY:
            version = expected_version + 1
            value = self._sealer.seal_register(value, self.member_id, key, version)
        return self._member.compare_and_set(key, expected_version, value)

    def reseal(self) -> int:
        """Seal every register again that is not sealed with the newest key; return the number.

        Register contents stay the same; concurrent writes come before or after. May be repeated.

        Raises:
            UnsealableError: a copy is damaged.
        """
        done = 0
        keys = (key for prefix in _PREFIXES for key in self._member.list_versioned(prefix))
        for key in keys:
            while key != IDENTITY_KEY:
                stored = self._member.get_versioned(key)
                if stored is None:
                    break
                copy = self._unsealed(key, stored)
                if self._sealer.is_current(stored.value):
                    break
                if self.compare_and_set(key, stored.version, copy):
                    done += 1
        return done

    def _unsealed(self, key: bytes, stored: Versioned) -> bytes:
        try:
            return self._sealer.unseal_register(stored.value, self.member_id, key, stored.version)
        except StoreMismatchError as error:
            raise UnsealableError(f"{self.member_id}, {key.decode()}: {error}") from error
        except BadCopyError as error:
            raise UnsealableError(
                f"{self.member_id} holds a bad copy of {key.decode()}: {error}.",
                cure="If the store was created without keys, stop its jobs, run 'dagster-jet store "
                "rotate-keys' and start them again. Otherwise a program without the keys has "
                "written to the member.",
            ) from error

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """See ``Member.get_many``."""
        return self._member.get_many(keys)

    def put_many(self, items: Mapping[bytes, bytes]) -> None:
        """See ``Member.put_many``."""
        self._member.put_many(items)

    def replace_many(self, items: Mapping[bytes, Replacement]) -> int:
        """See ``Member.replace_many``."""
        return self._member.replace_many(items)

    def delete_many(self, keys: Sequence[bytes]) -> None:
        """See ``Member.delete_many``."""
        self._member.delete_many(keys)

    def list_keys(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_keys``."""
        return self._member.list_keys(prefix)

    def list_versioned(self, prefix: bytes) -> list[bytes]:
        """See ``Member.list_versioned``."""
        return self._member.list_versioned(prefix)

    def ping(self) -> None:
        """See ``Member.ping``."""
        self._member.ping()

    def close(self) -> None:
        """See ``Member.close``."""
        self._member.close()
