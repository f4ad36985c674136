"""The state that a user's function keeps per key: a handle while it runs, bytes while it rests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class State(Generic[T]):
    """What `map_stateful` hands to the function: the state of the row's key.

    `value` is what `create()` returned when the key was new. Change it in place if it is mutable,
    or assign another: both are kept. It is saved as `state_format` says: plain values
    (`plain_values.py`), or whatever `pickle` takes.
    """

    __slots__ = ("_cleared", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self._cleared = False

    @classmethod
    def absent(cls) -> State[Any]:
        """Returns the state of a key that was never seen, or is forgotten."""
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
        """Whether the key is forgotten: `clear` was called, and nothing assigned since."""
        return self._cleared and self.value is None

    def renew(self, create: Callable[[], T]) -> None:
        """Begins again after `clear`, as if the key had never been seen."""
        self._cleared = False
        self.value = create()
