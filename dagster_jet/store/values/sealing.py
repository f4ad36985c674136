"""Values and registers as members keep them: in an envelope, encrypted where there are keys.

With keys, what is read was written by somebody who has them, in that place:

- A value is bound to its store and its key: copied to another key or store it is a bad copy. (A
  key holds one value only where its name says which: snapshots, manifests and transaction logs. A
  map's value may be replaced by an older one of the same key.)
- A register's copy is bound to its store, its member, its key and its version on that member. (The
  register "store" says itself of which store it is, and is read before that is known.)
- What is not encrypted, or not bound so, is a bad copy, too, unless the configuration names a
  migration: ``accept_older_seals``.

Whoever can write to a member may still delete what is there, or bring all of an older state back.
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
    """Seals and unseals what one store keeps.

    Args:
        keyring: None: what is written is not encrypted, and what is encrypted is not read.
        store_id: the store's; empty while it is not known yet: only the register "store" is used.
        accept_older: read also what is not encrypted, or not bound to its store: while a store is
            brought up to date by ``rewriting.py``.
    """

    def __init__(
        self, keyring: Keyring | None = None, store_id: str = "", *, accept_older: bool = False
    ) -> None:
        self.keyring = keyring
        self.accept_older = accept_older
        self._store = bytes.fromhex(store_id)

    def of_store(self, store_id: str) -> Sealer:
        """Return the sealer of a store that is known by now."""
        return Sealer(self.keyring, store_id, accept_older=self.accept_older)

    # --- values ---------------------------------------------------------------------------------

    def seal(self, value: Payload, stored_key: bytes) -> bytes:
        """Return a value as it is stored under a key."""
        if self.keyring is None:
            return seal(value)
        return seal(self.keyring.encrypt(value, self._value_place(stored_key)), Form.BOUND)

    def unseal(self, sealed: bytes, stored_key: bytes) -> bytes:
        """Return the value of a copy found under a key.

        Raises:
            BadCopyError: damaged, written for another key or store, or without a key.
            StoreMismatchError: encrypted with a key that is not here, or by a newer version.
        """
        if self.keyring is None:
            return unseal(sealed)
        payload, form = open_envelope(sealed)
        if form is Form.BOUND:
            return self.keyring.decrypt(payload, self._value_place(stored_key))
        self._check_accepted(form)
        return self.keyring.decrypt(payload, stored_key) if form is Form.ENCRYPTED else payload

    def check(self, sealed: bytes, stored_key: bytes) -> None:
        """Look whether a copy is a good one.

        Raises:
            BadCopyError: as ``unseal``; without keys what is encrypted counts as good.
            StoreMismatchError: as ``unseal``.
        """
        if self.keyring is None:
            open_envelope(sealed)
        else:
            self.unseal(sealed, stored_key)

    # --- registers ------------------------------------------------------------------------------

    def seal_register(self, copy: bytes, member_id: str, key: bytes, version: int) -> bytes:
        """Return a member's copy of a register as it keeps it; ``copy`` has its own envelope."""
        assert self.keyring is not None
        place = self._register_place(member_id, key, version)
        return seal(self.keyring.encrypt(copy, place), Form.BOUND)

    def unseal_register(self, sealed: bytes, member_id: str, key: bytes, version: int) -> bytes:
        """Return what ``seal_register`` was given.

        Raises:
            BadCopyError: damaged, written without a key, for another store or member, under
                another key, or as another version.
            StoreMismatchError: encrypted with a key that is not here, or by a newer version.
        """
        assert self.keyring is not None
        payload, form = open_envelope(sealed)
        if form is Form.BOUND:
            return self.keyring.decrypt(payload, self._register_place(member_id, key, version))
        self._check_accepted(form)
        return sealed

    # --- rotation -------------------------------------------------------------------------------

    def is_current(self, sealed: bytes) -> bool:
        """Whether a good copy is stored as it would be today.

        Raises:
            BadCopyError: the copy is damaged.
        """
        payload, form = open_envelope(sealed)
        if self.keyring is None:
            return form is Form.PLAIN
        return form is Form.BOUND and self.keyring.is_newest(payload)

    def _value_place(self, stored_key: bytes) -> bytes:
        assert self._store
        return b"value\0" + self._store + stored_key

    def _register_place(self, member_id: str, key: bytes, version: int) -> bytes:
        assert self._store or key == _SELF_DESCRIBING
        store = b"" if key == _SELF_DESCRIBING else self._store.hex().encode()
        return b"\0".join((b"register", store, member_id.encode(), b"%d" % version, key))

    def _check_accepted(self, form: Form) -> None:
        if self.accept_older:
            return
        raise BadCopyError(
            "a copy is not encrypted, although there are keys"
            if form is Form.PLAIN
            else "a copy is encrypted as earlier versions did, not bound to its store"
        )


PLAIN = Sealer()
"""Without keys."""
