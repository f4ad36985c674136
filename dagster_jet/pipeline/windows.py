"""Windows: definitions of the rows that are aggregated together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import get_args

from dagster_jet.core.durations import Duration, in_words, to_ms
from dagster_jet.core.window_frames import Frames
from dagster_jet.errors import ConfigurationError
from dagster_jet.pipeline.user_functions import Rest, RowOrder


@dataclass(frozen=True)
class TumblingWindow:
    """Consecutive windows of one size, aligned to 1970-01-01 UTC plus an offset."""

    size_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        if self.size_ms <= 0:
            raise ConfigurationError("size: a window must be longer than 0 ms.")
        self.frames  # noqa: B018 raises an error for a wrong offset

    def __str__(self) -> str:
        return f"tumbling, {in_words(self.size_ms)}{_shifted(self.offset_ms)}"

    @property
    def slide_ms(self) -> int:
        """Time from the end of one window to the end of the next, in ms; equal to the size."""
        return self.size_ms

    @property
    def frames(self) -> Frames:
        """The frames of the windows: one per window."""
        return Frames(self.size_ms, self.size_ms, self.offset_ms)


@dataclass(frozen=True)
class SlidingWindow:
    """Windows of `size_ms`, one ending every `slide_ms`; an event is in several windows."""

    size_ms: int
    slide_ms: int
    offset_ms: int = 0

    def __post_init__(self) -> None:
        self.frames  # noqa: B018 raises an error for wrong values

    def __str__(self) -> str:
        slide = in_words(self.slide_ms)
        return f"sliding, {in_words(self.size_ms)} every {slide}{_shifted(self.offset_ms)}"

    @property
    def frames(self) -> Frames:
        """The frames of the windows, each as long as the slide."""
        return Frames(self.size_ms, self.slide_ms, self.offset_ms)


@dataclass(frozen=True)
class SessionWindow:
    """Per key, events less than `gap_ms` apart; from the first event to the last plus the gap."""

    gap_ms: int
    max_ms: int | None = None
    """An event this long after the first one, or later, begins another session."""

    def __post_init__(self) -> None:
        if self.gap_ms <= 0:
            raise ConfigurationError("gap: a session's gap must be longer than 0 ms.")
        if self.max_ms is not None and self.max_ms <= 0:
            raise ConfigurationError(
                "max_duration: a session must be longer than 0 ms.",
                cure="Leave it out if sessions have no maximum.",
            )

    def __str__(self) -> str:
        most = "" if self.max_ms is None else f", at most {in_words(self.max_ms)}"
        return f"sessions, {in_words(self.gap_ms)} apart{most}"


Window = TumblingWindow | SlidingWindow | SessionWindow
"""A window in event time."""


OPEN_MAX = 100
"""Windows by count that a row is in."""


@dataclass(frozen=True)
class CountWindow:
    """Per key, so many rows, one after the other."""

    size: int
    order: RowOrder | None = None
    slide: int | None = None
    rest: Rest = "drop"

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigurationError("size: a window has at least 1 row.")
        slide = self.size if self.slide is None else self.slide
        if not 1 <= slide <= self.size or -(-self.size // slide) > OPEN_MAX:
            raise ConfigurationError(
                f"slide: {slide} is not between 1 and the size, or a row is in more than "
                f"{OPEN_MAX} windows."
            )
        if self.rest not in get_args(Rest):
            raise ConfigurationError(
                f"rest={self.rest!r} is unknown.", cure='Use "drop" or "emit".'
            )
        if self.rest == "emit" and slide < self.size:
            raise ConfigurationError(
                'rest="emit" is not available with slide: rows at the end are in windows that were '
                "emitted.",
                cure="Leave one of them out.",
            )

    def __str__(self) -> str:
        return f"{self.size} rows" + (f" each {self.slide} rows" if self.slide else "")


def tumbling(size: Duration, offset: Duration = "0 ms") -> TumblingWindow:
    """Return windows [0, size), [size, 2*size), ...: every event is in exactly one.

    Args:
        size: a `timedelta`, or a text such as "1 hour".
        offset: shifts all windows, by less than `size`: days that begin at 06:00 UTC are
            ``tumbling("1 day", offset="6 hours")``.

    Raises:
        ConfigurationError: a duration cannot be read, or `size` is not above 0.
        PipelineError: the offset is not below `size`.

    Example:
        >>> tumbling("1 hour")
        TumblingWindow(size_ms=3600000, offset_ms=0)
    """
    size_ms = to_ms(size, "windows.tumbling(size)")
    return TumblingWindow(size_ms, to_ms(offset, "windows.tumbling(offset)"))


def sliding(size: Duration, slide: Duration, offset: Duration = "0 ms") -> SlidingWindow:
    """Return windows of `size`, one ending every `slide`; an event is in `size / slide` windows.

    Args:
        size: a `timedelta`, or a text such as "1 hour".
        slide: time from the end of one window to the end of the next.
        offset: shifts all windows, as in `tumbling`.

    Raises:
        ConfigurationError: a duration cannot be read.
        PipelineError: `size` is not a multiple of `slide`, or `offset` is not below `slide`.

    Example:
        >>> sliding("1 hour", slide="10 minutes")
        SlidingWindow(size_ms=3600000, slide_ms=600000, offset_ms=0)
    """
    return SlidingWindow(
        to_ms(size, "windows.sliding(size)"),
        to_ms(slide, "windows.sliding(slide)"),
        to_ms(offset, "windows.sliding(offset)"),
    )


def session(gap: Duration, *, max_duration: Duration | None = None) -> SessionWindow:
    """Return session windows per key: each ends when `gap` has passed without an event.

    Args:
        gap: gap in event time, a `timedelta`, or a text such as "30 minutes".
        max_duration: a session ends at most this long after its first event; the next event begins
            another one. Which events are in a session does not depend on how they arrive. None: a
            session goes on while events come.

    Raises:
        ConfigurationError: a duration cannot be read, or is not above 0.

    Example:
        >>> session("30 minutes", max_duration="8 hours")
        SessionWindow(gap_ms=1800000, max_ms=28800000)
    """
    max_ms = None
    if max_duration is not None:
        max_ms = to_ms(max_duration, "windows.session(max_duration)")
    return SessionWindow(to_ms(gap, "windows.session(gap)"), max_ms)


def count(
    size: int, order: RowOrder | None = None, *, slide: int | None = None, rest: Rest = "drop"
) -> CountWindow:
    """Return windows of `size` rows per key, which follow each other, or overlap.

    A window is emitted with its last row. The rows of a key that fill no window wait in the state
    for others, also from one run that drains to the next.

    Args:
        size: number of rows.
        slide: a window begins with every so many rows of a key, at most `size`; a row is in at most
            100 windows. None: with each `size` rows.
        order: as in `map_stateful`: in order of event time by default, if the stream has one.
        rest: at the end of the input (`until="completed"`), "drop" drops such rows. "emit" emits
            them as windows of fewer rows, the open one of each key; the results then have no event
            time for later stages. Not with `slide`.

    Raises:
        ConfigurationError: `size` or `slide` is below 1, or `slide` too small or too large; `rest`
            is unknown, or "emit" with `slide`.

    Example:
        >>> count(100)
        CountWindow(size=100, order=None, slide=None, rest='drop')
    """
    return CountWindow(size, order, slide, rest)


def _shifted(offset_ms: int) -> str:
    return f", shifted by {in_words(offset_ms)}" if offset_ms else ""


__all__ = [
    "CountWindow",
    "SessionWindow",
    "SlidingWindow",
    "TumblingWindow",
    "count",
    "session",
    "sliding",
    "tumbling",
]
