"""Decides when an execution ends: by itself, or on request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

from dagster_jet.core.durations import to_ms
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.protocol import StopKind, stop_that_counts


@dataclass
class StopSignal:
    """Requests to stop a running execution. Thread-safe; `stop_that_counts` says which of several
    requests counts."""

    kind: StopKind | None = None

    def __post_init__(self) -> None:
        self.event = threading.Event()
        self._lock = threading.Condition()
        self._listener: Callable[[], None] | None = None

    def listen(self, listener: Callable[[], None] | None) -> None:
        """Sets the function that is called after every request, on the requesting thread; None for
        no function."""
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
        """Returns True at once if another stop than `kind` is requested, else False later."""
        with self._lock:
            return self._lock.wait_for(lambda: self.kind is not kind, seconds)

    def restarted(self) -> None:
        """Clears a RESTART that was carried out; later requests stay."""
        with self._lock:
            if self.kind is StopKind.RESTART:
                self.kind = None
                self.event.clear()


@dataclass(frozen=True)
class Until:
    """Defines when an execution ends by itself."""

    input_ends: bool
    """Whether to read only the input available at the start."""
    stop: StopKind | None
    """Kind of the stop."""
    duration_s: float | None = None

    def after(self, passed_s: float) -> Until:
        """Returns what is left for the next execution once this time has passed."""
        if self.duration_s is None:
            return self
        return replace(self, duration_s=max(0.0, self.duration_s - passed_s))


UntilSpec = str | timedelta
"""Accepted values of `until`: "drained", "completed", "stopped", or a duration."""

_WORDS = {
    "drained": Until(input_ends=True, stop=StopKind.SHUTDOWN),
    "completed": Until(input_ends=True, stop=StopKind.COMPLETE),
    "stopped": Until(input_ends=False, stop=None),
}


def parse_until(value: UntilSpec) -> Until:
    """Parses a user's value of `until`.

    Raises:
        ConfigurationError: the value is neither one of the words nor a duration.
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
