"""Intents: marks on copies that are about to be put back or removed. Pure.

Members are passive: nothing stops a process from finishing tomorrow what it began today. What must
not be finished by a process that slept meanwhile is therefore done in two steps, with an intent in
between that only this process makes: whoever writes in between removes the intent, and the second
step, a compare-and-set on it, does nothing.

- *Restore intent*: a copy is being put back here (``copy_repair.py``). It counts as no copy.
- *Removal intent*: a copy that nobody should need any more (``orphans.py``). The copy is in it, and
  counts as before.

Both begin like an envelope of an unknown version whose length is wrong: to earlier versions of this
library they are damaged copies.
"""

from __future__ import annotations

import secrets

_RESTORE, _REMOVE = b"DJcoming", b"DJdoomed"
_NONCE_BYTES = 8


def restore_intent() -> bytes:
    """Return what stands where a copy is being put back; no two are equal."""
    return _RESTORE + secrets.token_bytes(_NONCE_BYTES)


def removal_intent(copy: bytes) -> bytes:
    """Return a copy with the intent to remove it; no two are equal."""
    return _REMOVE + secrets.token_bytes(_NONCE_BYTES) + copy


def without_intents(stored: bytes | None) -> bytes | None:
    """Return the copy that is stored, None if there is none (yet)."""
    while stored is not None and stored.startswith(_REMOVE):
        stored = stored[len(_REMOVE) + _NONCE_BYTES :]
    return None if stored is not None and stored.startswith(_RESTORE) else stored
