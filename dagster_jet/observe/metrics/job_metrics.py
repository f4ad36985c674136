"""Converts the events of a job into measurements."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from dagster_jet.core.measures import Distribution, Measures, distributions_of, gauges_of
from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionEnded,
    ExecutionStarted,
    ItemsLost,
    JobEvent,
    ProgressReported,
    SnapshotCommitted,
    SnapshotFailed,
    SourceAvailable,
    SourceProgress,
    SourceUnavailable,
    StageProgress,
)
from dagster_jet.observe.job_observer import JobObserver
from dagster_jet.observe.metrics.instruments import Attributes, Instruments, Reading, instruments_of
from dagster_jet.observe.metrics.provider import meter_provider
from dagster_jet.observe.metrics.store_health import StoreHealth
from dagster_jet.store import Store

_logger = logging.getLogger(__name__)


def open_metrics(
    job: str, sinks: Collection[str], store: Store, now_ms: Callable[[], int]
) -> JobMetrics | None:
    """Returns the metrics of a job that starts here; None if metrics are not configured."""
    try:
        provider = meter_provider()
        if provider is None:
            return None
        return JobMetrics(job, sinks, StoreHealth(store), now_ms, instruments_of(provider))
    except Exception as error:  # noqa: BLE001 - a metric is no reason for a job to fail
        _logger.warning("job %r runs without metrics: %r", job, error)
        return None


@dataclass(eq=False)
class JobMetrics(JobObserver):
    """Metrics of one job of this process. Events arrive on its threads, readings on another.

    Row counters count rows of committed snapshots, so no row is counted twice after a restart.
    """

    makes: ClassVar[str] = "metrics"

    job: str
    sinks: Collection[str]
    health: StoreHealth
    now_ms: Callable[[], int]
    instruments: Instruments
    _sources: Mapping[str, SourceProgress] = field(default_factory=dict)
    _stages: Mapping[str, StageProgress] = field(default_factory=dict)
    _counted: Mapping[str, StageProgress] | None = None
    """Totals already added to the counters; None before the first start."""
    _restarts: int = 0
    _state_bytes: int | None = None
    _committed_at: float | None = None
    _failures: int = 0

    def close(self) -> None:
        """Removes the job, which no longer runs in this process."""
        self.instruments.remove(self)

    def _note(self, event: JobEvent) -> None:
        """Records an event; takes microseconds."""
        match event:
            case ExecutionStarted():
                self._restarts, self._failures = event.restarts, 0
                self._count_rows(event.stages)
                self._see(event.stages, event.sources)
                self.instruments.add(self)
            case EpochCompleted():
                self._count("dagster_jet.epoch.rows", event.rows)
                self._time("dagster_jet.epoch.duration", event.duration_ms)
                for phase in event.times:
                    attributes = {"jet.phase": phase.phase.value}
                    if phase.stage:
                        attributes["jet.stage"] = phase.stage
                    self._time("dagster_jet.epoch.phase.duration", phase.ms, attributes)
            case ProgressReported():
                self._see(event.stages, event.sources)
            case SnapshotCommitted():
                self._see(event.stages, event.sources)
                self._count_rows(event.stages)
                self._state_bytes, self._committed_at = event.state_bytes, time.monotonic()
                self._count("dagster_jet.snapshot.written", event.bytes_written)
                self._time("dagster_jet.snapshot.duration", event.phase1_ms)
                self._time("dagster_jet.commit.duration", event.phase2_ms)
            case SnapshotFailed(failed_snapshots=failures):
                is_new, self._failures = failures > self._failures, failures
                name = "snapshot.failures" if is_new else "commit.retries"
                self._count(f"dagster_jet.{name}", 1)
            case ItemsLost(source=source):
                self._count("dagster_jet.source.lost", event.lost, {"jet.source": source})
            case SourceUnavailable(source=source):
                self._see_outage(source, event.since_ms, event.reason)
            case SourceAvailable(source=source):
                self._see_outage(source, None, None)
            case ExecutionEnded():
                self.close()
            case _:
                pass

    # --- counters -------------------------------------------------------------------------------

    def _count(self, name: str, number: float, more: Attributes | None = None) -> None:
        if number > 0:
            self.instruments.counters[name].add(number, {"jet.job": self.job, **(more or {})})

    def _time(self, name: str, ms: float, more: Attributes | None = None) -> None:
        self.instruments.histograms[name].record(
            max(0.0, ms / 1000), {"jet.job": self.job, **(more or {})}
        )

    def _count_rows(self, stages: Mapping[str, StageProgress]) -> None:
        """Counts rows committed since the last call. Totals below the previous ones are those of a
        restored older snapshot, from which counting continues."""
        before, self._counted = self._counted, stages
        if before is None:
            return
        for name, now in stages.items():
            then = before.get(name, StageProgress(0, 0))
            kind = "sink" if name in self.sinks else "source" if name in self._sources else "stage"
            attributes = {f"jet.{kind}": name}
            self._count(f"dagster_jet.{kind}.rows", now.rows_in - then.rows_in, attributes)
            of_stage = {"jet.stage": name}
            self._count("dagster_jet.rows.late", now.late - then.late, of_stage)
            self._count("dagster_jet.rows.rejected", now.rejected - then.rejected, of_stage)
            for counter, number in now.counted.items():
                since = number - then.counted.get(counter, 0)
                of_counter = {**of_stage, "jet.counter": counter}
                self._count("dagster_jet.stage.counted", since, of_counter)
            self._count_recorded(now.measured, then.measured, of_stage)

    def _count_recorded(self, now: Measures, then: Measures, of_stage: Attributes) -> None:
        """Counts what histograms of users' own have recorded since the last call."""
        before = distributions_of(then)
        for name, recorded in distributions_of(now).items():
            known = before.get(name, Distribution(0, 0.0, {}))
            its = {**of_stage, "jet.histogram": name}
            if recorded.count <= known.count:
                continue  # nothing new, or an older snapshot was restored
            self._count("dagster_jet.stage.recorded.sum", recorded.sum - known.sum, its)
            since = 0
            for bound, number in recorded.buckets.items():
                since += number - known.buckets.get(bound, 0)
                self._count("dagster_jet.stage.recorded", since, {**its, "le": _le(bound)})

    # --- readings -------------------------------------------------------------------------------

    def _see(
        self, stages: Mapping[str, StageProgress], sources: Mapping[str, SourceProgress]
    ) -> None:
        self._stages, self._sources = stages, sources

    def _see_outage(self, source: str, since_ms: int | None, reason: str | None) -> None:
        known = self._sources.get(source)
        if known is not None:
            changed = replace(known, unavailable_since_ms=since_ms, unavailable=reason)
            self._sources = {**self._sources, source: changed}

    def readings(self) -> dict[str, list[Reading]]:
        """Returns the current values, by instrument."""
        job = {"jet.job": self.job}
        found: dict[str, list[Reading]] = {
            "dagster_jet.restarts": [(self._restarts, job)],
            "dagster_jet.job.up": [(1, job)],
        }
        if self._state_bytes is not None:
            found["dagster_jet.state.size"] = [(self._state_bytes, job)]
        if self._committed_at is not None:
            age_s = time.monotonic() - self._committed_at
            found["dagster_jet.snapshot.age"] = [(age_s, job)]
        for name, source in self._sources.items():
            its = {**job, "jet.source": name}
            lags = found.setdefault("dagster_jet.source.lag", [])
            lags += [(number, {**its, "jet.unit": unit}) for unit, number in source.lag.items()]
            available = 0 if source.unavailable_since_ms is not None else 1
            found.setdefault("dagster_jet.source.available", []).append((available, its))
            self._add_lag(found, "source", source.watermark_ms, its)
        for name, stage in self._stages.items():
            if name in self._sources or name in self.sinks:
                continue
            its = {**job, "jet.stage": name}
            found.setdefault("dagster_jet.stage.state.rows", []).append((stage.state_rows, its))
            gauges = found.setdefault("dagster_jet.stage.gauge", [])
            gauges += [(v, {**its, "jet.gauge": g}) for g, v in gauges_of(stage.measured).items()]
            self._add_lag(found, "stage", stage.watermark_ms, its)
        return found

    def _add_lag(
        self,
        found: dict[str, list[Reading]],
        kind: str,
        watermark_ms: int | None,
        attributes: Attributes,
    ) -> None:
        """Adds no reading before the first watermark or after the end of the inputs."""
        if watermark_ms is not None and watermark_ms < FINAL_WATERMARK_MS:
            lag_s = (self.now_ms() - watermark_ms) / 1000
            found.setdefault(f"dagster_jet.{kind}.watermark.lag", []).append((lag_s, attributes))

    def store_readings(self) -> dict[str, list[Reading]]:
        """Returns the store's readings; queries its members."""
        status = self.health.status()
        store = {"jet.store": self.health.store.store_id[:12]}
        reachable = sum(member.reachable for member in status.members)
        return {
            "dagster_jet.store.members": [
                (reachable, {**store, "jet.state": "reachable"}),
                (len(status.members) - reachable, {**store, "jet.state": "unreachable"}),
            ],
            "dagster_jet.store.partitions.under_replicated": [
                (len(status.under_replicated), store)
            ],
        }


def _le(bound: float) -> str:
    return "+Inf" if bound == math.inf else str(bound)
