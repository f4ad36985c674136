"""Frame arithmetic: windows are made of frames, and a frame is named by its exclusive end.

A sliding window of `size_ms` moves on by `slide_ms`; the stretch of time between two moves is a
frame. An event belongs to one frame and, through it, to `size_ms / slide_ms` windows. A tumbling
window is the case of one frame per window. Source: Hazelcast Jet `SlidingWindowPolicy`;
vectors.md section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.errors import PipelineError


@dataclass(frozen=True)
class Frames:
    """How event time (int64 ms since 1970) is cut.

    Raises:
        PipelineError: the window is not a whole number of frames.
    """

    size_ms: int
    slide_ms: int
    offset_ms: int = 0
    """Frames end at `offset_ms + n * slide_ms`; windows therefore too."""

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
        """How many frames make a window; also how many windows a frame is part of."""
        return self.size_ms // self.slide_ms

    def floor(self, time_ms: int) -> int:
        """The newest frame end at or before `time_ms`: what a watermark closes."""
        return time_ms - (time_ms - self.offset_ms) % self.slide_ms

    def end_of(self, time_ms: int) -> int:
        """The frame an event belongs to: the first end after its time."""
        return self.floor(time_ms) + self.slide_ms

    def expired_until(self, watermark_ms: int) -> int:
        """Frames up to this end are in no window that is still open under `watermark_ms`."""
        return self.floor(watermark_ms) + self.slide_ms - self.size_ms
