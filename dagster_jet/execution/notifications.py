"""What the loop hears: everything that runs beside it posts into its one queue."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.execution.epoch_planner import Inputs
from dagster_jet.execution.events import JobEvent
from dagster_jet.snapshot import protocol


@dataclass(frozen=True)
class Looked:
    """The sources have been looked at."""

    inputs: Inputs


@dataclass(frozen=True)
class Emitted:
    """Something for whoever watches the job, from a thread beside the loop."""

    event: JobEvent


@dataclass(frozen=True)
class Died:
    """What nobody expects beside the loop (an interrupt); raised again on the loop's thread."""

    error: BaseException


@dataclass(frozen=True)
class Woken:
    """Look again: a stop was asked for."""


Notification = protocol.Event | Looked | Emitted | Died | Woken
