"""Decides when a healthy run is ended at a barrier and replaced by a new one.

A run retires when it is too old, or when the pipeline's definition has changed. A run keeps the
code it was started with, and its log and its libraries' memory leaks grow. The next run continues
from the terminal snapshot, so a retirement costs one start and no rows.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.pipeline import Pipeline
from dagster_jet.snapshot.plan import compare_plans
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus

if TYPE_CHECKING:
    from dagster_jet.jet import Jet

Follows: TypeAlias = Literal["off", "stages", "whole"]


@dataclass(frozen=True)
class Retirement:
    """Conditions under which a run retires.

    Attributes:
        max_age_seconds: limit on the run's age, by the clock of Dagster's storage; None: no limit.
            The age of a standby counts from its takeover.
        pipeline: current definition of the pipeline; None: definitions are not compared.
        follows: which differences from the running definition end a run.
        definition: digest of `pipeline` as it was loaded; empty without a pipeline.
    """

    max_age_seconds: float | None = None
    pipeline: Pipeline | None = None
    follows: Follows = "stages"
    definition: str = field(init=False)

    def __post_init__(self) -> None:
        # Now: later the files may have other code than this process has loaded.
        found = "" if self.pipeline is None else self.pipeline.graph.definition()
        object.__setattr__(self, "definition", found)

    def is_outdated(self, record: ExecutionRecord) -> bool:
        """Whether the newest execution runs another definition than the one that is loaded."""
        return "" not in (self.definition, record.definition) and (
            record.definition != self.definition
        )

    def reason(
        self, jet: Jet, instance: dg.DagsterInstance, record: ExecutionRecord
    ) -> tuple[str | None, str | None]:
        """Return the reason to retire and the obstacle to it; each is None if there is none.

        Only an execution that has decided a snapshot retires. Before that it is still recovering,
        and the record does not yet name the definition that it runs.
        """
        newest = record.snapshot
        if record.status is not JobStatus.RUNNING or newest is None:
            return None, None
        if newest.execution_id != record.execution_id:
            return None, None
        if self.pipeline is not None and self.is_to_follow(record):
            refused = self._refused(jet, self.pipeline, record)
            if refused:
                return None, (
                    "the pipeline's definition has changed, and cannot continue from the state "
                    f"of the running one ({refused})"
                )
            return "the pipeline's definition has changed", None
        age_s = self._age_seconds(instance, record)
        if self.max_age_seconds is not None and age_s is not None and age_s > self.max_age_seconds:
            return f"its run is {age_s / 3600:.1f} hours old", None
        return None, None

    def is_to_follow(self, record: ExecutionRecord) -> bool:
        """Whether the definitions differ in a way that ends a run."""
        if self.pipeline is None or self.follows == "off":
            return False
        if self.follows == "whole" and self.is_outdated(record):
            return True
        return self._has_other_stages(self.pipeline, record)

    def _has_other_stages(self, pipeline: Pipeline, record: ExecutionRecord) -> bool:
        return record.plan_fingerprint not in ("", pipeline.graph.fingerprint())

    def _refused(self, jet: Jet, pipeline: Pipeline, record: ExecutionRecord) -> str:
        """Returns what of the saved state the pipeline cannot continue from; mostly nothing.

        `Jet.plan` is not used: it also compares columns, for which it may start Spark.
        """
        if not self._has_other_stages(pipeline, record):
            return ""
        changes = compare_plans(jet.job(record.job).manifest().plan, pipeline.graph.plan())
        return "; ".join(f"{c.stage!r}: {c.reason}" for c in changes if c.is_refused)

    def _age_seconds(self, instance: dg.DagsterInstance, record: ExecutionRecord) -> float | None:
        if self.max_age_seconds is None or record.lease is None or record.lease.run_id is None:
            return None
        found = instance.get_run_record_by_id(record.lease.run_id)
        if found is None or found.start_time is None:
            return None
        worker = RunWorker.from_tag(
            found.dagster_run.tags.get(keys.TAG_WORKER), record.lease.run_id
        )
        took_over_at_s = 0 if worker is None else worker.took_over_at_s
        return time.time() - max(found.start_time, took_over_at_s)


def retire(jet: Jet, record: ExecutionRecord) -> None:
    """Request a terminal snapshot and the end of the execution; its Dagster run succeeds.

    Raises:
        JobStateError: the execution has just ended.
        StoreError: the request could not be written; the next tick repeats it.
    """
    jet.job(record.job).request_stop(StopKind.SHUTDOWN)
