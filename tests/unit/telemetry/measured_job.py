"""A job's events, as an execution emits them, and what an exporter makes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, MetricReader

from dagster_jet.core.phases import Phase, PhaseTime
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionStarted,
    ItemsLost,
    JobEvent,
    ProgressReported,
    SnapshotCommitted,
    SnapshotFailed,
    SourceProgress,
    StageProgress,
)
from dagster_jet.observe.metrics import JobMetrics
from dagster_jet.observe.metrics.instruments import Instruments
from dagster_jet.observe.metrics.store_health import StoreHealth
from dagster_jet.store import Store, StoreConfig

NOW = 1_700_000_000_000
Points = dict[tuple[str, ...], Any]


def stages(
    read: int, *, late: int = 0, rejected: int = 0, written: int | None = None
) -> dict[str, StageProgress]:
    return {
        "orders": StageProgress(read, read - rejected, rejected=rejected),
        "hourly": StageProgress(
            *(read - rejected, 3, late),
            watermark_ms=NOW - 90_000,
            state_rows=40,
            counted={"bad_rows": read // 10},
            measured={
                "version": {"gauge": 7.5},
                "seconds": {"sum": read / 4, "le": {"0.5": read // 2, "2.0": 0, "inf": read // 4}},
            },
        ),
        "out": StageProgress(read // 2 if written is None else written, 0),
    }


def sources(read: int, *, waiting: int = 0) -> dict[str, SourceProgress]:
    lag: dict[str, int | float] = {"files": waiting, "bytes": waiting * 1_000}
    return {"orders": SourceProgress(read, {}, lag, watermark_ms=NOW - 30_000)}


def started(read: int = 0, restarts: int = 0) -> ExecutionStarted:
    return ExecutionStarted("shop", 4, restarts, None, None, 10, stages(read), sources(read))


def epoch(rows: int = 10, ms: float = 80.0) -> EpochCompleted:
    times = (PhaseTime(Phase.ACTION, 60.0), PhaseTime(Phase.STEP, 20.0, "hourly"))
    return EpochCompleted("shop", 4, 1, rows, ms, times)


def progress(read: int, waiting: int) -> ProgressReported:
    return ProgressReported("shop", 4, stages(read), sources(read, waiting=waiting))


def committed(read: int, **rows: Any) -> SnapshotCommitted:
    return SnapshotCommitted(
        "shop", 4, 9, 20, 0, 50.0, 250.0, 4_096, 10_000, 0, stages(read, **rows), sources(read)
    )


def failed(failures: int) -> SnapshotFailed:
    return SnapshotFailed("shop", 4, "disk full", failures)


def everything() -> list[JobEvent]:
    """Events behind which every instrument has a value."""
    return [
        started(),
        epoch(),
        progress(10, 2),
        committed(100, late=4, rejected=6),
        failed(1),
        failed(1),
        ItemsLost("shop", 4, "orders", 3, 3),
    ]


@contextmanager
def measured(
    folder: Path, reader: MetricReader, members: str = "ab"
) -> Iterator[tuple[JobMetrics, Store]]:
    """A job's metrics, and its store of two members."""
    config = StoreConfig(tuple(f"file://{folder}/{m}" for m in members), backup_count=1)
    provider = MeterProvider([reader])
    try:
        with Store.open(config) as store:
            health = StoreHealth(store)
            job = JobMetrics("shop", {"out"}, health, lambda: NOW, Instruments(provider))
            yield job, store
    finally:
        provider.shutdown()


def points(reader: InMemoryMetricReader) -> dict[str, Points]:
    """Values of each instrument, by the values of their attributes, sorted by attribute."""
    data = reader.get_metrics_data()
    found: dict[str, Points] = {}
    for resource in data.resource_metrics if data is not None else ():
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                found[metric.name] = {
                    _key(point.attributes): _value(point) for point in metric.data.data_points
                }
    return found


def _key(attributes: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(attributes[name]) for name in sorted(attributes))


def _value(point: Any) -> Any:
    return point.value if hasattr(point, "value") else (point.count, point.sum)
