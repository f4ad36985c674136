"""Timers of a key in its saved state.

A timer without a name is saved as the time of the row alone. Timers with names are in front of the
state: a mark, the length of what follows, and the times by name as a plain value.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from dagster_jet.operators.touched_keys import NEVER_TOUCHED
from dagster_jet.operators.user import plain_values

NO_TIMER_MS = 10**17
"""Time of a key without timers: beyond every watermark."""
_MARK = b"\x03"
"""First byte; no other saved state begins with it (`saved_value.py`)."""
_LENGTH = Struct("<I")


def with_timers(saved: bytes, timers: Mapping[str, int]) -> bytes:
    """Returns a saved state with its timers, except one that has no name."""
    if not timers.keys() - {""}:
        return saved
    times = plain_values.to_bytes(dict(sorted(timers.items())))
    return _MARK + _LENGTH.pack(len(times)) + times + saved


def without_timers(saved: bytes | None, next_ms: int) -> tuple[dict[str, int], bytes | None]:
    """Returns timers and state of a saved state.

    Args:
        next_ms: the time of the row.
    """
    if saved is not None and saved[:1] == _MARK:
        begin = 1 + _LENGTH.size
        (length,) = _LENGTH.unpack_from(saved, 1)
        return plain_values.from_bytes(saved[begin : begin + length]), saved[begin + length :]
    return {} if next_ms in (NEVER_TOUCHED, NO_TIMER_MS) else {"": next_ms}, saved
