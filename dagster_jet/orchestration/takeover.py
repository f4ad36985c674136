"""Takeover of a job by a run that stands by: its notes and reports in Dagster."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from dagster_jet.execution.events import StandingBy
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_reports import AssetReports
from dagster_jet.orchestration.last_reports import last_reports
from dagster_jet.orchestration.run_notes import RunNotes
from dagster_jet.orchestration.run_worker import RunWorker

_REPORTS_WITHIN_S = 10.0
"""Time for the last reports of a run that has shut down; it ends right after them."""
_LOOK_EVERY_S = 0.1


@dataclass
class Takeover:
    """Notes and reports of one run that stands by.

    Attributes:
        notes: the run's notes.
        reports: the run's reports, read from Dagster's log before it stood by.
    """

    notes: RunNotes
    reports: AssetReports
    _owner: str | None = field(default=None, init=False)
    _stood_by: bool = field(default=False, init=False)

    def stands_by(self, event: StandingBy) -> None:
        """Notes that Spark is warm, and which run has the job."""
        self._owner = event.run_id
        if not self._stood_by:
            self._stood_by = True
            self.notes.stands_by()

    def begins(self) -> None:
        """Learns what was reported since the run began, after the last reports of the owner.

        Otherwise both runs would materialize the snapshot that the owner has left.
        """
        if not self._stood_by:
            return
        self._stood_by = False
        deadline = time.monotonic() + _REPORTS_WITHIN_S
        while self._owner_may_report() and time.monotonic() < deadline:
            time.sleep(_LOOK_EVERY_S)
        instance = self.notes.context.instance
        self.reports.last = last_reports(instance, self.reports.assets)

    def _owner_may_report(self) -> bool:
        if self._owner is None:
            return False
        run = self.notes.context.instance.get_run_by_id(self._owner)
        if run is None or run.is_finished:
            return False
        worker = RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run.run_id)
        return worker is None or not worker.is_dead
