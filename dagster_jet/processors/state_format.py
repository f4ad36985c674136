"""How what a user's code keeps is saved: as plain values, or pickled where that is asked for.

Reading a pickle runs what it says, and what is read comes from the store: whoever may write to one
of its members would run code on every executor. So a pickle is only read where the *pipeline* says
`state_format="pickle"`; what the saved bytes say of themselves is never enough.
"""

from __future__ import annotations

import pickle
from enum import Enum
from typing import Any

from dagster_jet.errors import StoreMismatchError
from dagster_jet.processors import plain_values

_PICKLED, _PLAIN = b"\x01", b"\x02"
"""First byte of what is saved. What follows 1 is a pickle, what follows 2 a plain value."""
_OLD_PICKLE = pickle.PROTO
"""What accumulators and processors' entries began with when nothing but pickles was saved."""

READING_PICKLES = (
    'Say state_format="pickle" if you trust everybody who may write to the store\'s members: '
    "reading a pickle runs what it says. Or start the job anew."
)


class StateFormat(Enum):
    """How states, accumulators and processors' entries are saved."""

    PLAIN = "plain"
    """Plain values; pickles are refused."""
    PICKLE = "pickle"
    """Anything that can be pickled. Plain values that were saved before are read, too."""

    @property
    def cure(self) -> str:
        """Of a value that cannot be saved."""
        if self is StateFormat.PICKLE:
            return "Keep plain values, or objects that `pickle` can save."
        return (
            "Keep plain values (numbers, text, bytes, lists, tuples, dicts, sets, times, Decimal, "
            'UUID), for example dataclasses.asdict(...); or say state_format="pickle".'
        )

    def to_bytes(self, value: Any) -> bytes:
        """Raises `NotPlainError`, or whatever `pickle` raises, for what cannot be saved."""
        if self is StateFormat.PLAIN:
            return _PLAIN + plain_values.to_bytes(value)
        return _PICKLED + pickle.dumps(value, protocol=5)

    def from_bytes(self, saved: bytes) -> Any:
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
        if self is not StateFormat.PICKLE:
            raise StoreMismatchError("saved state is pickled.", cure=READING_PICKLES)
        return pickle.loads(saved if saved[:1] == _OLD_PICKLE else memoryview(saved)[1:])
