"""State that a user's function keeps per key; saved as bytes between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any, Generic, TypeVar

from dagster_jet.errors import PipelineError

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EARLIEST_MS = -(2**63)


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

    __slots__ = ("_cleared", "due_ms", "now_ms", "timer", "timers", "value")
    value: T
    timer: str | None
    """In `on_timer`: the name of the timer that is due, or "". Else None."""
    timers: dict[str, int] | None
    """Times of the key's timers in ms, by name. None: the stage has no `on_timer`."""
    now_ms: int
    """Event time of the row, or of the timer, for which a function is called. With timers in
    processing time: the clock of the epoch, the same in all its calls; it never goes back."""
    due_ms: int
    """In `on_timer`: the time of the timer that is called."""

    def __init__(self, value: T) -> None:
        self.value = value
        self.timer = self.timers = None
        self.now_ms = self.due_ms = _EARLIEST_MS
        self._cleared = False

    @classmethod
    def absent(cls) -> State[Any]:
        """Returns the state of a key that was never seen, or was removed."""
        state = State[Any](None)
        state.clear()
        return state

    def clear(self) -> None:
        """Removes the state of the key, and its timers: its next row gets a new one from
        `create()`.

        Until then `value` is None. Assigning another value undoes the removal.
        """
        self.value = None  # type: ignore[assignment]
        self._cleared = True
        if self.timers:
            self.timers.clear()

    def set_timer(self, time: datetime | int, name: str = "") -> None:
        """Sets a timer of the key: `on_timer` is called when event time has passed `time`.

        A key has one timer of each name; setting it again moves it. It is called before the key's
        first row with a later time; timers that are due come by time and name. A time that is
        already over counts as the time of the row. With `timers="processing time"` the clock of the
        epoch (`now_ms`) takes the place of event time.

        Args:
            time: a `datetime` (UTC if it has no zone), or ms since 1970.
            name: what `state.timer` is in `on_timer`.

        Raises:
            PipelineError: the stage has no `on_timer`; the state was cleared; or the time is not
                after that of the timer that is being called.
            TypeError: the name is no text.

        Example:
            >>> def watch(state, row):
            ...     state.set_timer(row["at"] + timedelta(minutes=50), "warn")
            ...     state.set_timer(row["at"] + timedelta(hours=1), "close")
        """
        if self.timers is None:
            raise PipelineError(
                "set_timer() without on_timer: nothing would be called.",
                cure="Give map_stateful() a function on_timer=.",
            )
        if not isinstance(name, str):
            raise TypeError(f"the name of a timer is a text, not {name!r:.100}")
        if self.is_cleared:
            raise PipelineError(
                "set_timer() after clear(): the key has no state that a timer could find.",
                cure="Assign state.value first.",
            )
        at_ms = time_ms(time)
        if self.timer is None:
            at_ms = max(at_ms, self.now_ms)
        elif at_ms <= self.due_ms:
            raise PipelineError(
                f"on_timer at {self.due_ms} ms has set a timer that is not later.",
                cure="Set a later time than time_ms, or none.",
            )
        self.timers[name] = at_ms

    def cancel_timer(self, name: str = "") -> None:
        """Removes the timer of this name, if the key has one."""
        if self.timers:
            self.timers.pop(name, None)

    @property
    def is_cleared(self) -> bool:
        """Whether the state is removed: `clear` was called, and nothing was assigned since."""
        return self._cleared and self.value is None

    def renew(self, create: Callable[[], T]) -> None:
        """Gives the key a new state after `clear`, as for a new key."""
        self._cleared = False
        self.value = create()


def with_columns_of_now(saved: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns a saved row: one from before a change of the pipeline has other columns.

    Args:
        names: the columns of now; none: they are not known, the row stays as it is.
    """
    return {name: saved.get(name) for name in names} if names else saved


def time_ms(time: datetime | int) -> int:
    """Returns a time of a row in ms since 1970; one without a zone is in UTC."""
    if not isinstance(time, datetime):
        return time
    zoned = time if time.tzinfo is not None else time.replace(tzinfo=timezone.utc)
    return (zoned - _EPOCH) // timedelta(milliseconds=1)
