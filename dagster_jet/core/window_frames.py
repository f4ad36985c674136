"""Frame arithmetic: windows consist of frames, and a frame is named by its exclusive end.

A sliding window of `size_ms` advances by `slide_ms`; the time between two advances is a frame. An
event belongs to one frame and, through it, to `size_ms / slide_ms` windows. A tumbling window has
one frame. Source: Hazelcast Jet `SlidingWindowPolicy`; vectors.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.errors import PipelineError


@dataclass(frozen=True)
class Frames:
    """Division of event time (int64 ms since 1970) into frames.

    Raises:
        PipelineError: the window is not a whole number of frames.
    """

    size_ms: int
    slide_ms: int
    offset_ms: int = 0
    """Frames, and therefore windows, end at `offset_ms + n * slide_ms`."""
    lateness_ms: int = 0
    """How long after its end a window still takes rows."""

    def __post_init__(self) -> None:
        if self.size_ms <= 0 or self.slide_ms <= 0:
            raise PipelineError("a window and its slide must be longer than 0 ms.")
        if self.size_ms % self.slide_ms:
            raise PipelineError(
                f"a window of {self.size_ms} ms is not a whole multiple of its slide of "
                f"{self.slide_ms} ms.",
                cure="Choose a slide that divides the size.",
            )
        if not 0 <= self.offset_ms < self.slide_ms:
            raise PipelineError(
                f"offset {self.offset_ms} ms is outside [0, {self.slide_ms}) ms.",
                cure="An offset shifts windows by less than one slide.",
            )

    @property
    def per_window(self) -> int:
        """Number of frames per window; also number of windows per frame."""
        return self.size_ms // self.slide_ms

    def floor(self, time_ms: int) -> int:
        """Return the newest frame end at or before `time_ms`: the last one a watermark closes."""
        return time_ms - (time_ms - self.offset_ms) % self.slide_ms

    def end_of(self, time_ms: int) -> int:
        """Return the frame of an event: the first end after its time."""
        return self.floor(time_ms) + self.slide_ms

    def floor_watermark(self, watermark_ms: int) -> int:
        """Return the last watermark up to this one that closes a window or ends its lateness."""
        final = self.floor(watermark_ms - self.lateness_ms) + self.lateness_ms
        return max(self.floor(watermark_ms), final)

    def late_until(self, watermark_ms: int, expired_until_ms: int | None) -> int:
        """Return the frame end up to which rows are late under `watermark_ms`.

        Args:
            expired_until_ms: frames up to this end have been removed. After a change of size or
                lateness they may be missing in windows that could take rows otherwise.
        """
        until = self.floor(watermark_ms - self.lateness_ms)
        if expired_until_ms is not None:
            until = max(until, expired_until_ms + self.size_ms - self.slide_ms)
        return min(until, self.floor(watermark_ms))

    def expired_until(self, watermark_ms: int) -> int:
        """Return the frame end up to which no window takes rows under `watermark_ms`."""
        return self.floor(watermark_ms - self.lateness_ms) + self.slide_ms - self.size_ms
