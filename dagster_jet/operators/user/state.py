"""State that a user's function keeps per key; saved as bytes between steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class State(Generic[T]):
    """State of a row's key, as `map_stateful` passes it to the function.

    `value` is the result of `create()` when the key is new. Change it in place if it is mutable, or
    assign another value: both are kept. It is saved in `state_format`: as plain values
    (`plain_values.py`), or as a pickle.

    Example:
        >>> def count_to_three(state, row):
        ...     state.value += 1
        ...     if state.value == 3:
        ...         state.clear()
    """

    __slots__ = ("_cleared", "value")
    value: T

    def __init__(self, value: T) -> None:
        self.value = value
        self._cleared = False

    @classmethod
    def absent(cls) -> State[Any]:
        """Returns the state of a key that was never seen, or was removed."""
        state = State[Any](None)
        state.clear()
        return state

    def clear(self) -> None:
        """Removes the state of the key: its next row gets a new one from `create()`.

        Until then `value` is None. Assigning another value undoes the removal.
        """
        self.value = None  # type: ignore[assignment]
        self._cleared = True

    @property
    def is_cleared(self) -> bool:
        """Whether the state is removed: `clear` was called, and nothing was assigned since."""
        return self._cleared and self.value is None

    def renew(self, create: Callable[[], T]) -> None:
        """Gives the key a new state after `clear`, as for a new key."""
        self._cleared = False
        self.value = create()
