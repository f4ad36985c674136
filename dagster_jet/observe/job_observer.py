"""Base of what looks at a job's events and must not end it."""

from __future__ import annotations

import logging
from typing import ClassVar

from dagster_jet.execution.events import JobEvent

_logger = logging.getLogger(__name__)


class JobObserver:
    """Notes the events of a job until one cannot be noted. The job goes on without the observer."""

    job: str
    makes: ClassVar[str]
    """Names the result, for the warning."""
    _is_broken: bool = False

    def note(self, event: JobEvent) -> None:
        """Notes an event on the job's threads; raises nothing."""
        if self._is_broken:
            return
        try:
            self._note(event)
        except Exception as error:  # noqa: BLE001 - an observer is no reason for a job to fail
            self._is_broken = True
            _logger.warning("job %r goes on without %s: %r", self.job, self.makes, error)

    def _note(self, event: JobEvent) -> None:
        raise NotImplementedError
