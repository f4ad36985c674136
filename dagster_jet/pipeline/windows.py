"""Windows over event time. A frame is named by its exclusive end (vectors.md, section 3)."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.errors import ConfigurationError
from dagster_jet.pipeline.durations import Duration, to_ms


@dataclass(frozen=True)
class TumblingWindow:
    """Back-to-back windows of one size, aligned to the epoch (1970-01-01 UTC)."""

    size_ms: int

    def __post_init__(self) -> None:
        if self.size_ms <= 0:
            raise ConfigurationError("size: a window must be longer than 0 ms.")

    def last_closed_end(self, watermark_ms: int) -> int:
        """The newest window end that `watermark_ms` closes; all ends up to it are closed."""
        return watermark_ms - watermark_ms % self.size_ms


def tumbling(size: Duration) -> TumblingWindow:
    """Windows [0, size), [size, 2*size), ...: every event is in exactly one."""
    return TumblingWindow(to_ms(size, "windows.tumbling(size)"))
