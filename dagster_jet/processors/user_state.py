"""The state that a user's function keeps per key: a handle while it runs, bytes while it rests."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from dagster_jet.errors import StoreMismatchError

T = TypeVar("T")

PICKLED = 1
"""First byte of saved state: what follows is a pickle, of protocol 5. Readers refuse others."""
_PREFIX = bytes([PICKLED])


class State(Generic[T]):
    """What `map_stateful` hands to the function: the state of the row's key.

    `value` is what `create()` returned when the key was new. Change it in place if it is mutable,
    or assign another: both are kept. It is saved with `pickle`, so keep plain data in it, or
    objects of classes that can be imported where the job runs.
    """

    __slots__ = ("_cleared", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self._cleared = False

    @classmethod
    def absent(cls) -> State[Any]:
        """Of a key never seen, or forgotten."""
        state = State[Any](None)
        state.clear()
        return state

    def clear(self) -> None:
        """Forgets the key: its next row finds what `create()` returns.

        Until then `value` is None; assigning something else takes the clearing back.
        """
        self.value = None  # type: ignore[assignment]
        self._cleared = True

    @property
    def is_cleared(self) -> bool:
        return self._cleared and self.value is None

    def renew(self, create: Callable[[], T]) -> None:
        """After `clear`: as if the key had never been seen."""
        self._cleared = False
        self.value = create()


def state_to_bytes(value: Any) -> bytes:
    """Raises whatever `pickle` raises for a value that it cannot save."""
    return _PREFIX + pickle.dumps(value, protocol=5)


def state_from_bytes(saved: bytes) -> Any:
    """Raises `StoreMismatchError` for an unknown format, and whatever `pickle` raises."""
    if saved[:1] != _PREFIX:
        raise StoreMismatchError(
            f"saved state begins with byte {saved[:1]!r}, expected {_PREFIX!r}.",
            cure="Read it with the version of dagster_jet that wrote it, or a newer one.",
        )
    return pickle.loads(memoryview(saved)[1:])
