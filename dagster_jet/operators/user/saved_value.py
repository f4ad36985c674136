"""What a user's code keeps, as bytes: plain values, or pickles where the pipeline asks for them.

Reading a pickle runs what it says, and what is read comes from the store: whoever may write to one
of its members would run code on every executor. So a pickle is only read where the *pipeline* says
`state_format="pickle"`; what the saved bytes say of themselves is never enough.
"""

from __future__ import annotations

import pickle
from typing import Any

from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import StoreMismatchError
from dagster_jet.operators.user import plain_values

_PICKLED, _PLAIN = b"\x01", b"\x02"
"""First byte of what is saved. What follows 1 is a pickle, what follows 2 a plain value."""
_OLD_PICKLE = pickle.PROTO
"""What accumulators and processors' entries began with when nothing but pickles was saved."""

READING_PICKLES = (
    'Say state_format="pickle" if you trust everybody who may write to the store\'s members: '
    "reading a pickle runs what it says. Or start the job anew."
)


def save(value: Any, state_format: StateFormat) -> bytes:
    """Raises `NotPlainError`, or whatever `pickle` raises, for what cannot be saved."""
    if state_format is StateFormat.PLAIN:
        return _PLAIN + plain_values.to_bytes(value)
    return _PICKLED + pickle.dumps(value, protocol=5)


def load(saved: bytes, state_format: StateFormat) -> Any:
    """
    Raises:
        StoreMismatchError: pickled, and pickles are not asked for; or of an unknown format.
        Exception: whatever reading raises.
    """
    if saved[:1] == _PLAIN:
        return plain_values.from_bytes(memoryview(saved)[1:])
    if saved[:1] not in (_PICKLED, _OLD_PICKLE):
        raise StoreMismatchError(
            f"saved state begins with byte {saved[:1]!r}, expected {_PLAIN!r} or {_PICKLED!r}.",
            cure="Read it with the version of dagster_jet that wrote it, or a newer one.",
        )
    if state_format is not StateFormat.PICKLE:
        raise StoreMismatchError("saved state is pickled.", cure=READING_PICKLES)
    return pickle.loads(saved if saved[:1] == _OLD_PICKLE else memoryview(saved)[1:])
