"""State that a user's function keeps per key; saved as bytes between steps."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, Generic, TypeVar

from dagster_jet.errors import PipelineError

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
NO_TIMER_MS = 10**17
"""Time of a timer that is not set: beyond every watermark."""


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

    __slots__ = ("_cleared", "timer_ms", "value")
    value: T
    timer_ms: int | None
    """Time of the key's timer, or `NO_TIMER_MS`. None: the stage has no `on_timer`."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.timer_ms = None
        self._cleared = False

    @classmethod
    def absent(cls) -> State[Any]:
        """Returns the state of a key that was never seen, or was removed."""
        state = State[Any](None)
        state.clear()
        return state

    def clear(self) -> None:
        """Removes the state of the key, and its timer: its next row gets a new one from `create()`.

        Until then `value` is None. Assigning another value undoes the removal.
        """
        self.value = None  # type: ignore[assignment]
        self._cleared = True
        self.cancel_timer()

    def set_timer(self, time: datetime | int) -> None:
        """Sets the timer of the key: `on_timer` is called when event time has passed `time`.

        A key has one timer; setting it again moves it. It is called before the key's first row with
        a later time. A time that is already over counts as the time of the row.

        Args:
            time: a `datetime` (UTC if it has no zone), or ms since 1970.

        Raises:
            PipelineError: the stage has no `on_timer`.
        """
        if self.timer_ms is None:
            raise PipelineError(
                "set_timer() without on_timer: nothing would be called.",
                cure="Give map_stateful() a function on_timer=.",
            )
        self.timer_ms = time_ms(time)

    def cancel_timer(self) -> None:
        """Removes the timer of the key, if it has one."""
        if self.timer_ms is not None:
            self.timer_ms = NO_TIMER_MS

    @property
    def is_cleared(self) -> bool:
        """Whether the state is removed: `clear` was called, and nothing was assigned since."""
        return self._cleared and self.value is None

    def renew(self, create: Callable[[], T]) -> None:
        """Gives the key a new state after `clear`, as for a new key."""
        self._cleared = False
        self.value = create()


def time_ms(time: datetime | int) -> int:
    """Returns a time of a row in ms since 1970; one without a zone is in UTC."""
    if not isinstance(time, datetime):
        return time
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)
