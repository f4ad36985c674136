"""How often a job takes snapshots: by its interval, or as often as snapshots are cheap.

Output becomes visible with a snapshot, so the pause between snapshots is most of the latency of a
job that keeps up. Without an interval a snapshot follows as soon as snapshots take no more than a
tenth of the time.
"""

from __future__ import annotations

SHARE = 0.1
"""Largest share of the time that snapshots take, from an epoch's acks to the end of phase 2."""
LONGEST_MS = 1_000
"""Longest automatic pause in ms; also the pause after a snapshot that was discarded."""


def pause_ms(interval_ms: int | None, took_ms: int | None) -> int:
    """Returns the ms from the end of the last snapshot to the start of the next.

    Args:
        interval_ms: the job's interval; None: automatic.
        took_ms: duration of the last snapshot; None: there is none, or it was discarded.
    """
    if interval_ms is not None:
        return interval_ms
    if took_ms is None:
        return LONGEST_MS
    return min(LONGEST_MS, round(took_ms * (1 - SHARE) / SHARE))
