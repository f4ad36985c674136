"""Values as members keep them: in an envelope, encrypted where there are keys."""

from __future__ import annotations

from dagster_jet.store.encryption import Keyring
from dagster_jet.store.envelope import Payload, open_envelope, seal, unseal


class Sealer:
    """Seals and unseals the values of one store.

    Args:
        keyring: None: what is written is not encrypted, and what is encrypted is not read.
    """

    def __init__(self, keyring: Keyring | None = None) -> None:
        self.keyring = keyring

    def seal(self, value: Payload, stored_key: bytes) -> bytes:
        """Return a value as it is stored under a key."""
        if self.keyring is None:
            return seal(value)
        return seal(self.keyring.encrypt(value, stored_key), is_encrypted=True)

    def unseal(self, sealed: bytes, stored_key: bytes) -> bytes:
        """Return the value of a copy found under a key. Also what was written before encryption.

        Raises:
            BadCopyError: the copy is damaged, or was written for another key.
            StoreMismatchError: encrypted with a key that is not here, or by a newer version.
        """
        if self.keyring is None:
            return unseal(sealed)
        payload, is_encrypted = open_envelope(sealed)
        return self.keyring.decrypt(payload, stored_key) if is_encrypted else payload

    def is_current(self, sealed: bytes) -> bool:
        """Whether a good copy is stored as it would be today: with the newest key, or with none.

        Raises:
            BadCopyError: the copy is damaged.
        """
        payload, is_encrypted = open_envelope(sealed)
        if self.keyring is None:
            return not is_encrypted
        return is_encrypted and self.keyring.is_newest(payload)


PLAIN = Sealer()
"""Without keys."""
