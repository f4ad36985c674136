"""State of a user's code as bytes: plain values, or pickles if the pipeline asks for them.

Reading a pickle executes code, and the bytes come from the store: anybody who may write to one of
its members could run code on every executor. So a pickle is read only if the *pipeline* says
`state_format="pickle"`; the saved bytes alone never decide.
"""

from __future__ import annotations

import pickle
from typing import Any

from dagster_jet.core.state_format import StateFormat
from dagster_jet.errors import StoreMismatchError
from dagster_jet.operators.user import plain_values

_PICKLED, _PLAIN = b"\x01", b"\x02"
"""First byte of saved bytes: 1 before a pickle, 2 before a plain value."""

READING_PICKLES = (
    'Set state_format="pickle" if you trust everybody who may write to the store\'s members: '
    "unpickling runs code from the saved value. Or start the job under a new name."
)


def save(value: Any, state_format: StateFormat) -> bytes:
    """Raises `NotPlainError`, or any error of `pickle`, for a value that cannot be saved."""
    if state_format is StateFormat.PLAIN:
        return _PLAIN + plain_values.to_bytes(value)
    return _PICKLED + pickle.dumps(value, protocol=5)


def load(saved: bytes, state_format: StateFormat) -> Any:
    """
    Raises:
        StoreMismatchError: it is a pickle and the format is plain, or the format is unknown.
        Exception: any error of reading.
    """
    if saved[:1] == _PLAIN:
        return plain_values.from_bytes(memoryview(saved)[1:])
    if saved[:1] != _PICKLED:
        raise StoreMismatchError(
            f"saved state begins with byte {saved[:1]!r}, expected {_PLAIN!r} or {_PICKLED!r}.",
            cure="Read it with the version of dagster_jet that wrote it, or a newer one.",
        )
    if state_format is not StateFormat.PICKLE:
        raise StoreMismatchError("saved state is pickled.", cure=READING_PICKLES)
    return pickle.loads(memoryview(saved)[1:])
