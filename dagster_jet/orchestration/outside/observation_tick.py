"""One tick over observed streams: which events Dagster gets. Pure.

An event stays in Dagster's log for ever: an observation takes 4.7 KB in SQLite, a check 3.5 KB. So
a stream that runs well adds one observation in `report_every_ms`, and none while nothing changes. A
check adds an event when its verdict changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import dagster as dg
import xxhash

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.health import Health
from dagster_jet.orchestration.materialization import lag_facts
from dagster_jet.orchestration.outside.reading import (
    LastMove,
    Reading,
    StreamLimits,
    unreadable,
    verdicts,
)

GREEN_AGAIN_MS = 300_000
"""Minimum time from a red verdict to the green one after it: a job that comes and goes would fill
Dagster's log."""

_INTERVAL_MS, _INTERVAL_PER_STREAM_MS = 600_000, 450_000

Event = dg.AssetObservation | dg.AssetCheckEvaluation


@dataclass(frozen=True)
class Shown:
    """The last observation of a stream, as the sensor's cursor keeps it.

    Attributes:
        observed_at_ms: time of the last observation.
        seen: digest of what it showed.
        position: newest position that was read, and `moved_at_ms`, when it was first read.
        checks: by check, the last verdict, and when it was reported.
    """

    observed_at_ms: int = 0
    seen: str = ""
    position: str = ""
    moved_at_ms: int = 0
    checks: Mapping[str, tuple[bool, int]] = field(default_factory=dict)

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Shown:
        checks = {name: (bool(well), int(at)) for name, (well, at) in saved["checks"].items()}
        return cls(**{**saved, "checks": checks})


def default_interval_ms(streams: int) -> int:
    """Returns the minimum time between two observations of a stream, with which all streams
    together take at most 30 MB a month.

    Example:
        >>> [default_interval_ms(streams) // 60_000 for streams in (1, 2, 10)]
        [10, 15, 75]
    """
    return max(_INTERVAL_MS, streams * _INTERVAL_PER_STREAM_MS)


def cursor_of(shown: Mapping[str, Shown]) -> str:
    """Returns a cursor for the states of streams, by asset key."""
    return json.dumps({key: asdict(each) for key, each in shown.items()})


def shown_in(cursor: str | None) -> dict[str, Shown]:
    """Parses a cursor; after an unreadable one all streams are reported once more."""
    try:
        saved = json.loads(cursor or "{}")
        return {key: Shown.from_json(each) for key, each in saved.items()}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def reports(
    key: dg.AssetKey,
    read: Reading | str,
    limits: StreamLimits,
    before: Shown,
    now_ms: int,
    report_every_ms: int,
) -> tuple[list[Event], Shown]:
    """Returns the events of one stream, and what Dagster knows after them.

    Args:
        key: its asset.
        read: what was read, or why nothing was.
        limits: limits of its checks.
        before: what Dagster knows.
        now_ms: wall clock.
        report_every_ms: minimum time between two observations, and between two reports of a check
            that stays red.
    """
    if isinstance(read, str):
        found = unreadable(read, limits)
    else:
        read = read.after(LastMove(before.position, before.moved_at_ms), now_ms)
        found = verdicts(read, limits, now_ms)
    news = {
        name: health
        for name, health in found.items()
        if _is_news(health.is_well, before.checks.get(name), now_ms, report_every_ms)
    }
    events: list[Event] = [evaluation(key, name, health) for name, health in news.items()]
    reported = {name: (health.is_well, now_ms) for name, health in news.items()}
    after = replace(before, checks={**before.checks, **reported})
    if isinstance(read, str):
        return events, after
    after = replace(after, position=read.position, moved_at_ms=read.committed_at_ms or 0)
    is_due = not 0 <= now_ms - before.observed_at_ms < report_every_ms
    if news or (is_due and _digest(read) != before.seen):
        events.insert(0, observation(key, read, now_ms, limits.watermark_lag_ms or 0))
        after = replace(after, observed_at_ms=now_ms, seen=_digest(read))
    return events, after


def _is_news(
    is_well: bool, before: tuple[bool, int] | None, now_ms: int, report_every_ms: int
) -> bool:
    if before is None:
        return True
    was_well, at_ms = before
    age_ms = now_ms - at_ms
    if is_well:
        return not was_well and not 0 <= age_ms < GREEN_AGAIN_MS
    return was_well or not 0 <= age_ms < report_every_ms


def _digest(reading: Reading) -> str:
    parts = (reading.position, reading.state, reading.lag, reading.watermark_ms)
    return str(xxhash.xxh32_hexdigest(repr(parts).encode()))


def evaluation(key: dg.AssetKey, check: str, health: Health) -> dg.AssetCheckEvaluation:
    """Returns a check's event."""
    return dg.AssetCheckEvaluation(
        asset_key=key,
        check_name=check,
        passed=health.is_well,
        description=health.why,
        severity=dg.AssetCheckSeverity.ERROR,
        metadata=dict(health.numbers),
    )


def observation(
    key: dg.AssetKey, reading: Reading, now_ms: int, normal_lag_ms: int
) -> dg.AssetObservation:
    """Returns the observation of a reading. Its data version is the position, so that conditions
    and sensors downstream see each commit that is reported."""
    tags = {keys.TAG_DATA_VERSION: reading.position} if reading.position else None
    return dg.AssetObservation(
        key, metadata=dict(_metadata(reading, now_ms, normal_lag_ms)), tags=tags
    )


def _metadata(reading: Reading, now_ms: int, normal_lag_ms: int) -> Iterator[tuple[str, Any]]:
    yield keys.STATE, reading.state
    if reading.lag is not None:
        yield keys.LAG_ROWS, reading.lag
    if reading.watermark_ms is not None:
        yield keys.WATERMARK, dg.MetadataValue.timestamp(reading.watermark_ms / 1000)
        yield from lag_facts(now_ms - reading.watermark_ms, normal_lag_ms).items()
    if reading.committed_at_ms is not None:
        yield keys.LAST_COMMIT, dg.MetadataValue.timestamp(reading.committed_at_ms / 1000)
    if reading.details:
        yield keys.DETAILS, dg.MetadataValue.json(dict(reading.details))


def last_move(instance: dg.DagsterInstance, key: dg.AssetKey) -> LastMove | None:
    """Returns the position of the newest observation in Dagster's log, and its time of commit."""
    records = instance.fetch_observations(key, limit=1).records
    found = records[0].asset_observation if records else None
    if found is None or keys.LAST_COMMIT not in found.metadata:
        return None
    at_s = found.metadata[keys.LAST_COMMIT].value
    return LastMove(found.tags.get(keys.TAG_DATA_VERSION, ""), round(float(str(at_s)) * 1000))
