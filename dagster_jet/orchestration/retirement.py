"""When a run that is well makes room for the next one, at a barrier: it has become too old, or the
pipeline has another definition now.

A run keeps the code that it was started with, its log grows, and so does what libraries leak. The
next run goes on from its terminal snapshot, so that retiring costs a start and not a row.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.pipeline import Pipeline
from dagster_jet.snapshot.plan import compare_plans
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


@dataclass(frozen=True)
class Retirement:
    """What makes a run retire.

    Attributes:
        max_age_seconds: by the clock of Dagster's storage; None: no age is too old.
        pipeline: as it is defined now; None: that is not known, or not looked at.
    """

    max_age_seconds: float | None = None
    pipeline: Pipeline | None = None

    def reason(
        self, jet: Jet, instance: dg.DagsterInstance, record: ExecutionRecord
    ) -> tuple[str | None, str | None]:
        """Return why the execution is to retire, and what keeps it from doing so; None if nothing.

        Only an execution that has decided a snapshot retires: one that is just recovering has work
        to do, and the record says by its snapshot which definition it runs.
        """
        newest = record.snapshot
        if record.status is not JobStatus.RUNNING or newest is None:
            return None, None
        if newest.execution_id != record.execution_id:
            return None, None
        if self.pipeline is not None and self._is_changed(record):
            # Not `Jet.plan`: it may start Spark, to compare columns as well.
            saved = jet.manifest(record.job).stage_plans()
            refused = [
                change
                for change in compare_plans(saved, self.pipeline.graph.plan())
                if change.is_refused
            ]
            if refused:
                stages = "; ".join(f"{c.stage!r}: {c.reason}" for c in refused)
                return None, (
                    "the pipeline's definition has changed and could not go on from the state of "
                    f"the running one ({stages})"
                )
            return "the pipeline's definition has changed", None
        age_s = self._age_seconds(instance, record)
        if self.max_age_seconds is not None and age_s is not None and age_s > self.max_age_seconds:
            return f"its run is {age_s / 3600:.1f} hours old", None
        return None, None

    def _is_changed(self, record: ExecutionRecord) -> bool:
        assert self.pipeline is not None
        return record.plan_fingerprint not in ("", self.pipeline.graph.fingerprint())

    def _age_seconds(self, instance: dg.DagsterInstance, record: ExecutionRecord) -> float | None:
        if self.max_age_seconds is None or record.lease is None or record.lease.run_id is None:
            return None
        found = instance.get_run_record_by_id(record.lease.run_id)
        if found is None or found.start_time is None:
            return None
        return time.time() - found.start_time


def retire(jet: Jet, record: ExecutionRecord) -> None:
    """Ask the execution for its terminal snapshot and its end; its run ends as a success.

    Raises:
        JobStateError: it has just ended.
        StoreError: the request could not be written; the next tick asks again.
    """
    jet.request(record.job, StopKind.SHUTDOWN)
