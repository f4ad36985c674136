"""Metric instruments with their names, units and attributes, created once per meter provider.

Names and units follow OpenTelemetry's conventions: seconds and bytes, counted objects in braces,
and no unit in a name. Attributes start with ``jet.``, because Prometheus has a label ``job`` of its
own. Their values are names from pipelines, so their number is bounded.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from opentelemetry.metrics import Counter, Histogram, MeterProvider, Observation

Attributes = dict[str, str]
Reading = tuple[float, Attributes]

COUNTERS = {
    "dagster_jet.epoch.rows": (
        "{row}",
        "Rows that epochs have read; rows that are read again after a restart count again",
    ),
    "dagster_jet.source.rows": ("{row}", "Rows of a source in committed snapshots"),
    "dagster_jet.source.lost": (
        "{item}",
        "Items that the source's system dropped before the job read them",
    ),
    "dagster_jet.stage.rows": ("{row}", "Rows into a stateful stage, in committed snapshots"),
    "dagster_jet.sink.rows": ("{row}", "Rows of a sink in committed snapshots"),
    "dagster_jet.stage.counted": (
        "{count}",
        "Counters of a stage's own functions, in committed snapshots",
    ),
    "dagster_jet.stage.recorded": (
        "{count}",
        "Numbers that histograms of a stage's own functions have recorded, up to `le`",
    ),
    "dagster_jet.stage.recorded.sum": (
        "1",
        "Sum of the numbers that histograms of a stage's own functions have recorded",
    ),
    "dagster_jet.rows.late": ("{row}", "Late rows, in committed snapshots"),
    "dagster_jet.rows.rejected": ("{row}", "Dead letters, in committed snapshots"),
    "dagster_jet.snapshot.failures": ("{snapshot}", "Snapshots that were discarded"),
    "dagster_jet.snapshot.written": ("By", "State that snapshots have written, one replica"),
    "dagster_jet.commit.retries": ("{commit}", "Attempts of a commit that failed"),
}
HISTOGRAMS = {
    "dagster_jet.epoch.duration": ("s", "An epoch, from its plan to its acks"),
    "dagster_jet.epoch.phase.duration": ("s", "A phase of an epoch"),
    "dagster_jet.snapshot.duration": ("s", "Phase 1: from the acks to the decision"),
    "dagster_jet.commit.duration": ("s", "Phase 2: from the decision until all sinks have it"),
}
READINGS = {
    "dagster_jet.restarts": (
        "{restart}",
        "Restarts: executions that followed one that ended without being asked to",
    ),
    "dagster_jet.job.up": ("{job}", "Jobs that this process runs"),
    "dagster_jet.source.lag": ("{item}", "Known backlog of a source, by unit"),
    "dagster_jet.source.available": ("{source}", "1: the source can be read; 0: it cannot"),
    "dagster_jet.source.watermark.lag": ("s", "How far a source's event time is behind the clock"),
    "dagster_jet.stage.watermark.lag": ("s", "How far a stage's watermark is behind the clock"),
    "dagster_jet.stage.state.rows": ("{row}", "Rows of a stage's state"),
    "dagster_jet.stage.gauge": ("1", "Gauges of a stage's own functions, as last set"),
    "dagster_jet.state.size": ("By", "State in the newest snapshot, one replica"),
    "dagster_jet.snapshot.age": ("s", "Age of the newest committed snapshot"),
    "dagster_jet.store.members": ("{member}", "Members of the store, by whether they answer"),
    "dagster_jet.store.partitions.under_replicated": (
        "{partition}",
        "Partitions of the store with fewer replicas than they should have",
    ),
}
"""Observable instruments, read on the collector's thread when metrics are collected."""
_MONOTONIC = {"dagster_jet.restarts"}
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Bucket boundaries of the histograms."""


class Readable(Protocol):
    """A job that runs in this process."""

    def readings(self) -> dict[str, list[Reading]]:
        """Returns the current values, by instrument; fast and without I/O."""
        ...

    def store_readings(self) -> dict[str, list[Reading]]:
        """Returns the readings of the job's store; queries its members."""
        ...


class Instruments:
    """Instruments of one meter provider."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("dagster_jet")
        self._lock = threading.Lock()
        self._jobs: list[Readable] = []
        self.counters: dict[str, Counter] = {
            name: meter.create_counter(name, unit, said) for name, (unit, said) in COUNTERS.items()
        }
        self.histograms: dict[str, Histogram] = {
            name: meter.create_histogram(
                name, unit, said, explicit_bucket_boundaries_advisory=SECONDS
            )
            for name, (unit, said) in HISTOGRAMS.items()
        }
        for name, (unit, said) in READINGS.items():
            kind = "counter" if name in _MONOTONIC else "gauge"
            create = getattr(meter, f"create_observable_{kind}")
            create(name, [self._callback(name)], unit, said)

    def add(self, job: Readable) -> None:
        """Starts observing a running job."""
        with self._lock:
            if job not in self._jobs:
                self._jobs.append(job)

    def remove(self, job: Readable) -> None:
        with self._lock:
            if job in self._jobs:
                self._jobs.remove(job)

    def _callback(self, name: str) -> Callable[[Any], Iterable[Observation]]:
        of_store = name.startswith("dagster_jet.store.")

        def observe(_: Any) -> Iterator[Observation]:
            from opentelemetry.metrics import Observation

            with self._lock:
                jobs: Sequence[Readable] = list(self._jobs)
            seen: dict[tuple[tuple[str, str], ...], float] = {}
            for job in jobs:
                readings = job.store_readings() if of_store else job.readings()
                for value, attributes in readings.get(name, ()):
                    seen[tuple(sorted(attributes.items()))] = value  # jobs may share a store
            for key, value in seen.items():
                yield Observation(value, dict(key))

        return observe


_of_providers: weakref.WeakKeyDictionary[MeterProvider, Instruments] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def instruments_of(provider: MeterProvider) -> Instruments:
    """Returns the instruments of a provider, created at the first call."""
    with _lock:
        if provider not in _of_providers:
            _of_providers[provider] = Instruments(provider)
        return _of_providers[provider]
