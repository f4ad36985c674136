"""Checks the settings of a Dagster instance that streams depend on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

import dagster as dg

from dagster_jet.core.answers import Answer, answered
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.run_queue import RunQueue

_UNFINISHED_LOOKED_AT = 1_000
_DAEMONS = {"SENSOR": "starts streams", "QUEUED_RUN_COORDINATOR": "launches queued runs"}
_OLD_DAYS = 90
_SKIPPED_DAYS_MAX = 7
_DRAIN_SECONDS = 25
"""Default of `JetResource.drain_budget_seconds`."""


def open_instance(home: str | None) -> dg.DagsterInstance:
    """Opens the instance of a folder, or of DAGSTER_HOME.

    Raises:
        ConfigurationError: there is no folder, or its `dagster.yaml` cannot be used.
    """
    home = home or os.environ.get("DAGSTER_HOME")
    if not home:
        raise ConfigurationError(
            "DAGSTER_HOME is not set, so it is not known which Dagster instance to check.",
            cure="Set it to the folder of dagster.yaml, or give --home.",
        )
    try:
        return dg.DagsterInstance.from_config(os.path.abspath(os.path.expanduser(home)))
    except Exception as error:  # Dagster's, YAML's, or the database's; it may name a password
        raise ConfigurationError(
            f"{home}: the Dagster instance cannot be opened ({type(error).__name__}).",
            cure="See what 'dagster instance info' says; correct dagster.yaml, or start its "
            "database.",
        ) from error


def streams_of(instance: dg.DagsterInstance) -> int:
    """Returns how many streams have a run that has not ended, or that waits in the queue."""
    runs = _unfinished(instance, keys.KIND_STREAM)
    return len({run.tags.get(keys.TAG_JOB) or run.tags.get(keys.TAG_PIPELINE) for run in runs})


def standbys_of(instance: dg.DagsterInstance) -> int:
    """Returns how many runs stand by, or wait in the queue to do so."""
    return len(_unfinished(instance, keys.KIND_STANDBY))


def _unfinished(instance: dg.DagsterInstance, kind: str) -> Sequence[dg.DagsterRun]:
    status = dg.DagsterRunStatus
    return instance.get_runs(
        dg.RunsFilter(
            statuses=[status.QUEUED, status.NOT_STARTED, status.STARTING, status.STARTED],
            tags={keys.TAG_KIND: kind},
        ),
        limit=_UNFINISHED_LOOKED_AT,
    )


@dataclass(frozen=True)
class InstanceCheck:
    """Questions about an instance. "yes" is good; a cure is a setting of `dagster.yaml`.

    Attributes:
        instance: the instance.
        streams: number of streams that are to run at the same time.
        standbys: number of runs that stand by beside them.
    """

    instance: dg.DagsterInstance
    streams: int
    standbys: int = 0

    def answers(self) -> list[Answer]:
        """Returns all answers."""
        return [
            self._slots(),
            *self._monitoring(),
            *self._run_time(),
            self._retries(),
            self._threads(),
            *self._retention(),
            *self._daemons(),
        ]

    def _slots(self) -> Answer:
        queue = RunQueue.of(self.instance)
        shortage = queue.shortage(self.streams, self.standbys)
        said = "any number of runs" if queue.slots is None else f"{queue.slots} slots"
        standbys = f", {self.standbys} standbys" if self.standbys else ""
        return answered(
            "The run queue has a slot for every stream, and more",
            shortage is None,
            yes=f"{said}, {self.streams} streams{standbys}",
            no=shortage or "",
            cure=queue.cure(self.streams, self.standbys),
            needed=True,
        )

    def _monitoring(self) -> Iterator[Answer]:
        instance = self.instance
        cancel = max(60, 2 * _DRAIN_SECONDS)
        yield answered(
            "Run monitoring is on",
            instance.run_monitoring_enabled,
            no="A cancel that no process answers never ends, and a run whose worker is gone stays "
            "started, with its slot of the queue.",
            cure=f"run_monitoring: {{enabled: true, cancel_timeout_seconds: {cancel}}}",
            needed=True,
        )
        if not instance.run_monitoring_enabled:
            return
        seconds = instance.run_monitoring_cancel_timeout_seconds
        yield answered(
            "A cancelled stream has time for its terminal snapshot",
            seconds > _DRAIN_SECONDS,
            yes=f"{seconds} s; drain_budget_seconds is {_DRAIN_SECONDS} by default",
            no=f"After {seconds} s Dagster reports the run as cancelled, while it may still drain "
            f"(drain_budget_seconds is {_DRAIN_SECONDS} by default).",
            cure=f"run_monitoring: {{cancel_timeout_seconds: {cancel}}}",
            needed=True,
        )
        attempts = instance.run_monitoring_max_resume_run_attempts
        yield answered(
            "Only the supervisor restarts a run whose worker has died",
            attempts == 0,
            no=f"Dagster resumes the run up to {attempts} times; a resumed run is not cancelled "
            "cleanly.",
            cure="run_monitoring: {max_resume_run_attempts: 0}",
        )

    def _run_time(self) -> Iterator[Answer]:
        limit = self.instance.run_monitoring_max_runtime_seconds
        if self.instance.run_monitoring_enabled:
            yield answered(
                "Runs have no maximum duration",
                not limit,
                no=f"Dagster ends a run after {limit} s. Jobs of build_jet_job are exempt; a job "
                f'of your own that runs a stream needs the tag {keys.TAG_MAX_RUNTIME}: "0".',
                cure="run_monitoring: {max_runtime_seconds: 0}",
            )

    def _retries(self) -> Answer:
        instance = self.instance
        number = instance.run_retries_max_retries if instance.run_retries_enabled else 0
        return answered(
            "Dagster does not retry runs by itself",
            not number,
            no=f"Dagster retries each failed run {number} times. Jobs of build_jet_job are exempt; "
            "a job of your own that runs a stream is also restarted by its supervisor, and one of "
            f'the two runs ends at once: give it the tag {keys.TAG_MAX_RETRIES}: "0".',
            cure="run_retries: {max_retries: 0}",
        )

    def _threads(self) -> Answer:
        settings = self.instance.get_sensor_settings()
        return answered(
            "A slow tick does not delay the ticks of other sensors",
            bool(settings.get("use_threads")) or self.streams < 2,
            no="The daemon evaluates one sensor after another: a store that does not answer delays "
            "the restarts of streams in other stores.",
            cure="sensors: {use_threads: true, num_workers: 8}",
        )

    def _retention(self) -> Iterator[Answer]:
        from dagster._core.definitions.run_request import InstigatorType

        kept = self.instance.get_tick_retention_settings(InstigatorType.SENSOR)
        days = {status.value.lower(): number for status, number in kept.items()}
        yield answered(
            "Ticks that request nothing are deleted soon",
            0 <= days["skipped"] <= _SKIPPED_DAYS_MAX,
            yes=f"after {days['skipped']} days",
            no="A supervisor has some 8,600 such ticks a day.",
            cure="retention: {sensor: {purge_after_days: {skipped: 1}}}",
        )
        yield answered(
            "Failed ticks are deleted",
            days["failure"] >= 0,
            yes=f"after {days['failure']} days",
            no="Dagster keeps them for ever. While a job is stuck, most ticks of its supervisor "
            "fail.",
            cure="retention: {sensor: {purge_after_days: {failure: 30}}}",
        )
        before = datetime.now(timezone.utc) - timedelta(days=_OLD_DAYS)
        old = self.instance.get_run_records(dg.RunsFilter(created_before=before), limit=1)
        yield answered(
            "Old runs are deleted",
            not old,
            yes=f"no run is older than {_OLD_DAYS} days",
            no=f"There are runs older than {_OLD_DAYS} days. Dagster has no setting that deletes "
            "runs: each run of checks takes about 190 KB for ever.",
            cure="a scheduled job that calls instance.delete_run for runs of checks; see the page "
            "'Production instance'",
        )

    def _daemons(self) -> Iterator[Answer]:
        statuses = self.instance.get_daemon_statuses()
        for name, task in _DAEMONS.items():
            status = statuses.get(name)
            if status is None:  # the instance needs none
                continue
            beat = status.last_heartbeat
            seconds = None if beat is None else time.time() - beat.timestamp
            yield answered(
                f"The daemon {task}",
                None if seconds is None else bool(status.healthy),
                yes="it is alive",
                no=f"Its thread {name} gave no sign of life for {seconds or 0:,.0f} s.",
                unknown="No daemon has ever run with this instance.",
                cure="dagster-daemon run",
                needed=True,
            )
