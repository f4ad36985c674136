"""Intents: marks on copies that are about to be put back or removed. Pure.

Members are passive: a process may complete a delayed operation at any later time. An operation that
a delayed process must not complete therefore takes two steps. The first step writes an intent that
is unique to the process. Any write in between replaces the intent, and the second step, a
compare-and-set on the intent, then does nothing.

- *Restore intent*: a copy is being put back here (``copy_repair.py``). It does not count as a copy.
- *Removal intent*: a copy that is probably not needed any more (``orphans.py``). The intent
  contains the copy, which still counts.

Both begin like an envelope of an unknown version with a wrong length: a reader that does not know
them treats them as damaged copies.
"""

from __future__ import annotations

import secrets

_RESTORE, _REMOVE = b"DJcoming", b"DJdoomed"
_NONCE_BYTES = 8


def restore_intent() -> bytes:
    """Return a unique mark for a place where a copy is being put back."""
    return _RESTORE + secrets.token_bytes(_NONCE_BYTES)


def removal_intent(copy: bytes) -> bytes:
    """Return a copy wrapped in a unique removal intent."""
    return _REMOVE + secrets.token_bytes(_NONCE_BYTES) + copy


def without_intents(stored: bytes | None) -> bytes | None:
    """Return the stored copy without its intents; None if there is none (yet)."""
    while stored is not None and stored.startswith(_REMOVE):
        stored = stored[len(_REMOVE) + _NONCE_BYTES :]
    return None if stored is not None and stored.startswith(_RESTORE) else stored
