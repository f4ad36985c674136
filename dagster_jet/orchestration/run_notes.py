"""Notes of a run: its worker process in a tag, and the wanted state of its job in the store."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.errors import JetError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.launches import (
    is_cancelled_by_hand,
    is_launched_by_hand,
    is_scheduled,
    job_tag,
)
from dagster_jet.orchestration.run_config import RunContext, op_context
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.ownership.supervision import Intent, read_supervision, set_intent
from dagster_jet.store import Store

if TYPE_CHECKING:
    from datetime import timedelta

    from dagster_jet.jobs.pipeline_job import PipelineJob


@dataclass(frozen=True)
class RunNotes:
    """Written by one run about one job.

    Attributes:
        context: context of the run.
        store: the job's store.
        job: name of the job.
        standby: of a run that stands by: digest of the pipeline's definition that it has. None: the
            run does not stand by.
    """

    context: RunContext
    store: Store
    job: str
    standby: str | None = None

    @property
    def _owner(self) -> str:
        return job_tag(self.store, self.job)

    @property
    def _here(self) -> RunWorker:
        return replace(RunWorker.here(self.context.run.run_id), job=self._owner)

    def worker(self, tags: Mapping[str, str]) -> None:
        """Tags the run with its worker process, so that a dead run differs from a busy one.

        Raises:
            dg.Failure: the run was cancelled, and a retry policy has restarted it.
        """
        run_id = self.context.run.run_id
        if is_cancelled_by_hand(self.context.instance, run_id):
            # A retry policy in the run's own process: Dagster answers an interrupt with a retry.
            raise dg.Failure(f"{self.job!r} was cancelled.", allow_retries=False)
        worker = replace(self._here, definition=self.standby or "").to_tag()
        kind = {} if self.standby is None else {keys.TAG_KIND: keys.KIND_STANDBY}
        self.context.instance.add_run_tags(
            run_id, {keys.TAG_WORKER: worker, keys.TAG_JOB: self._owner, **kind, **tags}
        )

    def stands_by(self) -> None:
        """Tags a run whose Spark is warm, and which waits for the job."""
        worker = replace(self._here, stands_by=True, definition=self.standby or "").to_tag()
        self.context.instance.add_run_tags(self.context.run.run_id, {keys.TAG_WORKER: worker})

    def execution(self, execution_id: int) -> None:
        """Tags the run with its execution; 0 once the job has ended while the run continues. A run
        that stood by is a stream from then on."""
        run_id = self.context.run.run_id
        worker, kind = replace(self._here, execution_id=execution_id), {}
        if self.standby is not None and execution_id:
            worker = replace(worker, took_over_at_s=time.time())
            kind = {keys.TAG_KIND: keys.KIND_STREAM}
        self.context.instance.add_run_tags(run_id, {keys.TAG_WORKER: worker.to_tag(), **kind})

    def is_wanted(self, until: str | timedelta | None) -> bool:
        """Whether this run may execute the job. A launch by hand ends a pause and resets the
        failure count. A paused job is not started by a run of a supervisor or a schedule, which may
        have waited in a queue since before the pause, nor by the retry of a run or its step. A run
        without an intent (`until` None) changes nothing."""
        run = self.context.run
        if until is None and not is_scheduled(run):
            return True
        wanted = read_supervision(self.store, self.job)
        now = Intent.ALWAYS_ON if wanted is None else wanted.intent
        is_retried = op_context(self.context).retry_number > 0
        if is_retried or not is_launched_by_hand(self.context.instance, run, self._owner):
            return now is not Intent.PAUSED
        always = until == "stopped" or now is Intent.ALWAYS_ON
        set_intent(self.store, self.job, Intent.ALWAYS_ON if always else Intent.DRAINED)
        return True

    def start(self, until: str | timedelta | None) -> None:
        """Sets the intent DRAINED: after a run that ends by itself only such a run starts the
        job."""
        if until is None or until == "stopped":
            return
        try:
            set_intent(self.store, self.job, Intent.DRAINED, unless_paused=True)
        except JetError as error:
            self.context.log.warning(
                f"The store could not save that the run of {self.job!r} ends by itself, so a "
                f"supervisor may start the job again: {error}"
            )

    def cancel(self, job: PipelineJob) -> None:
        """Sets the intent PAUSED after a user's cancel. An eviction does not pause the job, nor
        does a cancelled run that does not have the job."""
        instance, run_id = self.context.instance, self.context.run.run_id
        try:
            if not is_cancelled_by_hand(instance, run_id) or job.is_anothers:
                return
            set_intent(self.store, self.job, Intent.PAUSED)
        except JetError as error:
            self.context.log.warning(
                f"The store could not save the cancel of {self.job!r}, so a supervisor may start "
                f"it again: {error}"
            )
