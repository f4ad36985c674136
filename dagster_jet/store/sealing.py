"""Values as members keep them: in an envelope, encrypted where there are keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

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

    def sealing(self, values: Mapping[bytes, Payload]) -> Callable[[bytes], bytes]:
        """Return what says what is stored under a key: the same bytes however often it is asked.

        Replicas are compared byte by byte, so values are encrypted once, now. Those that are not
        are sealed when a member comes to write them, and nobody keeps the result: a large batch is
        not in memory twice.
        """
        if self.keyring is None:
            return lambda key: seal(values[key])
        encrypted = {key: self.seal(value, key) for key, value in values.items()}
        return encrypted.__getitem__

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


class SealedBatch(Mapping[bytes, bytes]):
    """What one member is to write: some keys, and values that are made when they are asked for."""

    def __init__(self, keys: Iterable[bytes], sealed: Callable[[bytes], bytes]) -> None:
        self._keys = dict.fromkeys(keys)
        self._sealed = sealed

    def __getitem__(self, key: bytes) -> bytes:
        if key not in self._keys:
            raise KeyError(key)
        return self._sealed(key)

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


PLAIN = Sealer()
"""Without keys."""
