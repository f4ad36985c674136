"""Format of values and registers on members: in an envelope, encrypted if there are keys.

With keys, a value that is read was written by an owner of the keys, in the same place:

- A value is bound to its store and its key: copied to another key or store it is a bad copy. (A
  key holds only one value if its name identifies the value: snapshots, manifests and transaction
  logs. A map's value may be replaced by an older one of the same key.)
- A register's copy is bound to its store, its member, its key and its version on that member. (The
  register "store" contains its store's id, and is read before that id is known.)
- A value that is not encrypted is a bad copy, too, unless the configuration allows it while a store
  is being encrypted: ``accept_unencrypted``.

Anybody who can write to a member can still delete its data, or restore its whole older state.
"""

from __future__ import annotations

from dagster_jet.store.values.encryption import Keyring
from dagster_jet.store.values.envelope import (
    BadCopyError,
    Form,
    Payload,
    open_envelope,
    seal,
    unseal,
)

_SELF_DESCRIBING = b"register/store"


class Sealer:
    """Seals and unseals the values of one store.

    Args:
        keyring: None: values are written unencrypted, and encrypted ones are not read.
        store_id: the store's id; empty while it is unknown: only the register "store" is used.
        accept_unencrypted: also read values that are not encrypted, while a store is being
            encrypted by ``reencryption.py``.
    """

    def __init__(
        self,
        keyring: Keyring | None = None,
        store_id: str = "",
        *,
        accept_unencrypted: bool = False,
    ) -> None:
        self.keyring = keyring
        self.accept_unencrypted = accept_unencrypted
        self._store = bytes.fromhex(store_id)

    def of_store(self, store_id: str) -> Sealer:
        """Return the sealer of a store once its id is known."""
        return Sealer(self.keyring, store_id, accept_unencrypted=self.accept_unencrypted)

    # --- values ---------------------------------------------------------------------------------

    def seal(self, value: Payload, stored_key: bytes) -> bytes:
        """Return the stored form of a value under a key."""
        if self.keyring is None:
            return seal(value)
        return seal(self.keyring.encrypt(value, self._value_place(stored_key)), Form.ENCRYPTED)

    def unseal(self, sealed: bytes, stored_key: bytes) -> bytes:
        """Return the value of a copy found under a key.

        Raises:
            BadCopyError: damaged, written for another key or store, or without a key.
            StoreMismatchError: encrypted with an unknown key, or by a newer version.
        """
        if self.keyring is None:
            return unseal(sealed)
        payload, form = open_envelope(sealed)
        if form is Form.ENCRYPTED:
            return self.keyring.decrypt(payload, self._value_place(stored_key))
        self._check_accepted()
        return payload

    def check(self, sealed: bytes, stored_key: bytes) -> None:
        """Check that a copy is good.

        Raises:
            BadCopyError: as ``unseal``; without keys, encrypted copies count as good.
            StoreMismatchError: as ``unseal``.
        """
        if self.keyring is None:
            open_envelope(sealed)
        else:
            self.unseal(sealed, stored_key)

    # --- registers ------------------------------------------------------------------------------

    def seal_register(self, copy: bytes, member_id: str, key: bytes, version: int) -> bytes:
        """Return the stored form of a register on a member; ``copy`` has its own envelope."""
        assert self.keyring is not None
        place = self._register_place(member_id, key, version)
        return seal(self.keyring.encrypt(copy, place), Form.ENCRYPTED)

    def unseal_register(self, sealed: bytes, member_id: str, key: bytes, version: int) -> bytes:
        """Return the ``copy`` that ``seal_register`` was given.

        Raises:
            BadCopyError: damaged, written without a key, for another store or member, under
                another key, or as another version.
            StoreMismatchError: encrypted with an unknown key, or by a newer version.
        """
        assert self.keyring is not None
        payload, form = open_envelope(sealed)
        if form is Form.ENCRYPTED:
            return self.keyring.decrypt(payload, self._register_place(member_id, key, version))
        self._check_accepted()
        return sealed

    # --- rotation -------------------------------------------------------------------------------

    def is_current(self, sealed: bytes) -> bool:
        """Whether a good copy is stored in the current form.

        Raises:
            BadCopyError: the copy is damaged.
        """
        payload, form = open_envelope(sealed)
        if self.keyring is None:
            return form is Form.PLAIN
        return form is Form.ENCRYPTED and self.keyring.is_newest(payload)

    def _value_place(self, stored_key: bytes) -> bytes:
        assert self._store
        return b"value\0" + self._store + stored_key

    def _register_place(self, member_id: str, key: bytes, version: int) -> bytes:
        assert self._store or key == _SELF_DESCRIBING
        store = b"" if key == _SELF_DESCRIBING else self._store.hex().encode()
        return b"\0".join((b"register", store, member_id.encode(), b"%d" % version, key))

    def _check_accepted(self) -> None:
        if not self.accept_unencrypted:
            raise BadCopyError("a copy is not encrypted, although keys are configured")


PLAIN = Sealer()
"""The sealer without keys."""
