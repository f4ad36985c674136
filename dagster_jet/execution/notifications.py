"""Entries of the loop's queue, posted by all threads beside the loop."""

from __future__ import annotations

from dataclasses import dataclass

from dagster_jet.execution.epoch_planner import Inputs
from dagster_jet.execution.events import JobEvent
from dagster_jet.snapshot import protocol


@dataclass(frozen=True)
class Polled:
    """Result of a poll of the sources."""

    inputs: Inputs


@dataclass(frozen=True)
class Emitted:
    """A job event from a thread beside the loop."""

    event: JobEvent


@dataclass(frozen=True)
class Died:
    """An unexpected error beside the loop (an interrupt); raised again on the loop's thread."""

    error: BaseException


@dataclass(frozen=True)
class Woken:
    """A stop was requested, so the loop must poll again."""


Notification = protocol.Event | Polled | Emitted | Died | Woken
