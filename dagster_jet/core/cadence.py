"""How often a job takes snapshots: by its interval, or as often as they are quick.

Output becomes visible with a snapshot, so the pause between snapshots is most of the latency of a
job that keeps up. A snapshot begins at the end of its epoch, runs beside the next one and holds no
rows up. What bounds their number is their cost in the store and in outside systems: files,
requests, versions of tables.
"""

from __future__ import annotations

PERIOD_MS = 250
"""Time in ms from the start of a quick snapshot to the start of the next."""
SPARING_PERIOD_MS = 1_000
"""The same for a job with a sink that keeps each commit (`Sink.commits_sparingly`)."""
LONGEST_MS = 1_000
"""Longest automatic pause in ms; also the pause after a snapshot that was discarded."""


def pause_ms(interval_ms: int | None, took_ms: int | None, period_ms: int = PERIOD_MS) -> int:
    """Returns the ms from the end of the last snapshot to the start of the next.

    The pause of a snapshot that takes longer than the period grows with it.

    Args:
        interval_ms: the job's interval; None: automatic.
        took_ms: duration of the last snapshot; None: there is none, or it was discarded.
        period_ms: of an automatic interval.
    """
    if interval_ms is not None:
        return interval_ms
    if took_ms is None:
        return LONGEST_MS
    return min(LONGEST_MS, abs(period_ms - took_ms))
