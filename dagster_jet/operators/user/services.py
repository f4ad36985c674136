"""Services of a worker process: clients and models that a user's function is called with.

A process creates a service when a stage first needs it, and keeps it from task to task and from
epoch to epoch. It closes it

- when a call with it has failed for good: the next task creates another one;
- when the stage of the same name of another pipeline object needs its own, or the job has other
  parameters;
- when Spark ends the process in order: after a minute without a task, or with the session.

A process that is killed closes nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from dagster_jet.core.job_context import JobContext, Metrics, Parameters

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServiceFactory:
    """How a stage's service is created and closed."""

    pipeline: str
    """Its name."""
    stage: str
    create: Callable[[], Any]
    close: Callable[[Any], object] | None = None
    pipeline_id: str = field(default_factory=lambda: uuid4().hex, compare=False)
    """Id of the pipeline object. Its copies in tasks and in later epochs share a service."""
    job: str = field(default="", compare=False)
    """Name of the job that runs the pipeline. Jobs of a pipeline's partitions share a service."""
    parameters: Parameters = field(default_factory=Parameters, compare=False)
    """Parameters of the job; a change creates a new service."""

    @property
    def owner(self) -> tuple[str, Parameters]:
        """Whose service it is: executions with an equal owner share it."""
        return self.pipeline_id, self.parameters

    def context(self) -> JobContext:
        """The context of one call."""
        return JobContext(self.job, self.stage, self.parameters, self.metrics())

    def metrics(self) -> Metrics:
        """Returns new metrics, for one call or for all calls of a task."""
        return Metrics(self.job, self.stage)


_open: dict[tuple[str, str], tuple[ServiceFactory, Any]] = {}
"""The services of this process, by names of pipeline and stage."""


def opened(factory: ServiceFactory) -> Any:
    """Returns the stage's service, and creates it if this process has none.

    What `create` raises is passed on.
    """
    place = factory.pipeline, factory.stage
    if place in _open and _open[place][0].owner != factory.owner:
        discard(factory)
    if place not in _open:
        _close_when_the_worker_ends()
        with factory.context().entered():
            _open[place] = factory, factory.create()
    return _open[place][1]


def discard(factory: ServiceFactory) -> None:
    """Closes the service of a stage, if this process has one. Errors of `close` are logged."""
    factory, service = _open.pop((factory.pipeline, factory.stage), (factory, None))
    if service is None or factory.close is None:
        return
    try:
        factory.close(service)
    except Exception:  # noqa: BLE001 - of any client
        _log.exception("job %r, stage %r: close raised", factory.job, factory.stage)


def close_all() -> None:
    """Closes all services of this process."""
    for factory, _ in [*_open.values()]:
        discard(factory)


def _close_when_the_worker_ends() -> None:
    """Wraps the entry point that Spark calls in this process for every further task, where there is
    one: a worker ends without Python's exit handlers."""
    worker = sys.modules.get("pyspark.worker")
    if worker is not None and not isinstance(worker.main, _ClosesServices):
        worker.main = _ClosesServices(worker.main)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _ClosesServices:
    """Waits for a task and runs it; closes all services if the process ends meanwhile."""

    main: Callable[..., object]

    def __call__(self, *streams: Any) -> None:
        signal.signal(signal.SIGHUP, _end)  # Spark's daemon ends its workers with it
        try:
            self.main(*streams)
        except SystemExit:
            close_all()
            raise


def _end(*_: object) -> None:
    close_all()
    os._exit(0)
