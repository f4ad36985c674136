"""When an execution ends: by itself, or because somebody asks it to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

from dagster_jet.core.durations import to_ms
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.protocol import StopKind, stop_that_counts


@dataclass
class StopSignal:
    """How others ask a running execution to stop. Safe from any thread; which of several requests
    counts is said by `stop_that_counts`."""

    kind: StopKind | None = None

    def __post_init__(self) -> None:
        self.event = threading.Event()
        self._lock = threading.Condition()
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Has `listener` called after every request, on the thread that makes it; None: nobody."""
        self._listener = listener

    def request(self, kind: StopKind) -> None:
        with self._lock:
            self.kind = stop_that_counts(self.kind, kind)
            self.event.set()
            self._lock.notify_all()
        listener = self._listener
        if listener is not None:
            listener()

    def wait_for_another(self, kind: StopKind | None, seconds: float) -> bool:
        """Returns True at once where something else than `kind` is asked for, else False after a
        pause."""
        with self._lock:
            return self._lock.wait_for(lambda: self.kind is not kind, seconds)

    def restarted(self) -> None:
        """RESTART is carried out; what was asked for since then stands."""
        with self._lock:
            if self.kind is StopKind.RESTART:
                self.kind = None
                self.event.clear()


@dataclass(frozen=True)
class Until:
    """When an execution ends by itself."""

    input_ends: bool
    """Take what is there at the start and no more."""
    stop: StopKind | None
    """How to stop then."""
    duration_s: float | None = None


UntilSpec = str | timedelta
"""When a run ends by itself: "drained", "completed", "stopped", or a duration."""

_WORDS = {
    "drained": Until(input_ends=True, stop=StopKind.SHUTDOWN),
    "completed": Until(input_ends=True, stop=StopKind.COMPLETE),
    "stopped": Until(input_ends=False, stop=None),
}


def parse_until(value: UntilSpec) -> Until:
    """Reads what a user has written.

    Raises:
        ConfigurationError: it is neither one of the words nor a duration.
    """
    if isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    try:
        return Until(input_ends=False, stop=None, duration_s=to_ms(value, "until") / 1000)
    except ConfigurationError as error:
        words = ", ".join(f'"{word}"' for word in _WORDS)
        raise ConfigurationError(
            f"until: {value!r} is neither {words} nor a duration.",
            cure='Use one of these words, or a duration such as "10 minutes".',
        ) from error
