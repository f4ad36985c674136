"""Marks on copies that are about to come or to go. Pure.

Members are passive: nobody can be kept from finishing tomorrow what it began today. What must not
be finished by somebody who slept meanwhile is therefore done in two steps, and the mark between
them is his own: who comes in between takes it away, and the second step does nothing.

- *Coming*: a copy that is being restored (``restoring.py``). It counts as no copy.
- *Doomed*: a copy that nobody should need any more (``leftovers.py``). The copy is in it, and
  counts as before.

Both begin like an envelope of an unknown version whose length is wrong: to earlier versions of this
library they are damaged copies.
"""

from __future__ import annotations

import secrets

_COMING, _DOOMED = b"DJcoming", b"DJdoomed"
_NONCE_BYTES = 8


def coming() -> bytes:
    """Return a mark that no one else makes."""
    return _COMING + secrets.token_bytes(_NONCE_BYTES)


def doomed(copy: bytes) -> bytes:
    """Return a copy with a mark that no one else makes."""
    return _DOOMED + secrets.token_bytes(_NONCE_BYTES) + copy


def without_marks(stored: bytes | None) -> bytes | None:
    """Return the copy that is stored, None if there is none (yet)."""
    while stored is not None and stored.startswith(_DOOMED):
        stored = stored[len(_DOOMED) + _NONCE_BYTES :]
    return None if stored is not None and stored.startswith(_COMING) else stored
