"""Encryption of values at rest: AES-256-GCM, keys from the environment, with rotation.

A value is encrypted for the key under which it is stored: copied to another place it cannot be
decrypted. Layout: ``key id(8) salt(16) nonce(12) ciphertext tag(16)``. Each value has its own
subkey, HMAC-SHA-256(key, salt): random nonces under one AES-GCM key are safe for about 2**32 values
(NIST SP 800-38D, 8.3), which a stream writes within weeks.

To rotate, put the new key in front and keep the old ones until everything has been rewritten. Keys
(they contain stage names and snapshot numbers) and sizes are not encrypted.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from dagster_jet.errors import ConfigurationError, MissingEnvironmentError, StoreMismatchError
from dagster_jet.store.values.envelope import BadCopyError, Payload

KEY_BYTES = 32
KEY_ID_BYTES = 8
_SALT_BYTES, _NONCE_BYTES, _TAG_BYTES = 16, 12, 16
OVERHEAD_BYTES = KEY_ID_BYTES + _SALT_BYTES + _NONCE_BYTES + _TAG_BYTES


class Keyring:
    """Keys by id. The first one encrypts, all of them decrypt. Never shown, never pickled.

    Args:
        keys: at least one, each of 32 bytes.
    """

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {key_id(key): key for key in keys}
        self._newest = key_id(keys[0])
        self._aead = _aead()

    @staticmethod
    def from_environment(variable: str, environment: Mapping[str, str] = os.environ) -> Keyring:
        """Read base64 keys, separated by commas, the newest first.

        Raises:
            ConfigurationError: the variable is missing, or its content is not valid.
            MissingEnvironmentError: the package ``cryptography`` is not installed.
        """
        cure = (
            f"Set {variable} to base64 keys of {KEY_BYTES} bytes, separated by commas, the newest "
            "first, on the driver and on every executor."
        )
        text = environment.get(variable, "")
        if not text.strip():
            raise ConfigurationError(
                f"the environment variable {variable} holds no key.", cure=cure
            )
        keys = []
        for position, part in enumerate(text.split(","), start=1):
            try:
                key = base64.b64decode(part.strip(), validate=True)
            except (binascii.Error, ValueError):
                key = b""
            if len(key) != KEY_BYTES:  # the invalid content is not repeated: it may be a secret
                raise ConfigurationError(
                    f"key {position} in the environment variable {variable} is not the base64 of "
                    f"{KEY_BYTES} bytes.",
                    cure=cure,
                )
            keys.append(key)
        return Keyring(keys)

    @property
    def newest_id(self) -> str:
        """The hexadecimal id of the key that encrypts."""
        return self._newest.hex()

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, the newest first."""
        return tuple(identity.hex() for identity in self._keys)

    def encrypt(self, value: Payload, place: bytes) -> bytes:
        """Return the value encrypted with the newest key for one place."""
        salt, nonce = os.urandom(_SALT_BYTES), os.urandom(_NONCE_BYTES)
        subkey = _subkey(self._keys[self._newest], salt)
        return b"".join(
            (self._newest, salt, nonce, self._aead(subkey).encrypt(nonce, value, place))
        )

    def decrypt(self, encrypted: bytes, place: bytes) -> bytes:
        """Return the decrypted value.

        Raises:
            BadCopyError: changed, truncated, or written for another place.
            StoreMismatchError: encrypted with an unknown key.
        """
        from cryptography.exceptions import InvalidTag

        if len(encrypted) < OVERHEAD_BYTES:
            raise BadCopyError(f"an encrypted copy has only {len(encrypted)} bytes")
        key = self._keys.get(encrypted[:KEY_ID_BYTES])
        if key is None:
            raise StoreMismatchError(
                f"a value is encrypted with the key {encrypted[:KEY_ID_BYTES].hex()}, and the "
                f"configured keys are {', '.join(self.ids)}.",
                cure="Add that key after the newest one.",
            )
        salt_end = KEY_ID_BYTES + _SALT_BYTES
        salt, nonce = encrypted[KEY_ID_BYTES:salt_end], encrypted[salt_end:][:_NONCE_BYTES]
        try:
            body = encrypted[salt_end + _NONCE_BYTES :]
            value: bytes = self._aead(_subkey(key, salt)).decrypt(nonce, body, place)
            return value
        except InvalidTag:
            raise BadCopyError(
                "an encrypted copy was changed, or belongs to another key or store"
            ) from None

    def is_newest(self, encrypted: bytes) -> bool:
        """Whether a value is encrypted with the newest key."""
        return encrypted[:KEY_ID_BYTES] == self._newest

    def __repr__(self) -> str:
        return f"Keyring(ids={list(self.ids)})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("keys are not pickled: executors read them from their own environment")


def key_id(key: bytes) -> bytes:
    """Return a name of a key that does not reveal it."""
    return hashlib.sha256(b"dagster-jet key id\0" + key).digest()[:KEY_ID_BYTES]


def _subkey(key: bytes, salt: bytes) -> bytes:
    return hmac.digest(key, b"dagster-jet value\0" + salt, "sha256")


def _aead() -> Any:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise MissingEnvironmentError(
            "encryption needs the package 'cryptography'.",
            cure="pip install 'dagster-jet[encryption]'",
        ) from None
    return AESGCM
