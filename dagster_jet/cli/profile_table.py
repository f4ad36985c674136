"""Prints a job's profile as a table."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

from rich.table import Table

from dagster_jet.cli.output import console, say
from dagster_jet.core.phases import Part

if TYPE_CHECKING:
    from dagster_jet.observe.reading.profile import JobProfile, PhaseProfile


def show_profile(profile: JobProfile) -> None:
    """Prints the phases in three sections, and the summary with the largest phase."""
    written = datetime.fromtimestamp(profile.written_at_ms / 1000, tz=timezone.utc)
    table = Table(
        title=f"Profile of {profile.job}: execution {profile.execution_id}, epochs "
        f"{profile.first_epoch_id} to {profile.last_epoch_id}, as of "
        f"{written:%Y-%m-%d %H:%M:%S} UTC",
        title_justify="left",
    )
    table.add_column("phase")
    for name in ("share", "p50 ms", "p95 ms", "max ms"):
        table.add_column(name, justify="right")
    for phase in profile.phases:
        if phase.part is not Part.SNAPSHOT:
            _add(table, phase, indent=phase.part is Part.ACTION)
    table.add_section()
    for phase in profile.phases:
        if phase.part is Part.SNAPSHOT:
            _add(table, phase, indent=phase.stage is not None)
    console().print(table)
    idle = profile.idle_ms / (profile.idle_ms + profile.busy_ms or 1)
    say(
        f"{profile.epochs} epochs, {profile.rows:,} rows, {profile.rows_per_second:,.0f} rows/s "
        f"while there was something to do; idle {idle:.0%} of the time. Below the line: "
        f"{profile.snapshots} snapshots, beside the epochs."
    )
    if profile.first_epoch_ms is None:
        say("This is the execution's first epoch, which warms up; there is no other yet.")
    else:
        took_s = profile.first_epoch_ms / 1000
        say(f"The execution's first epoch, which warms up, took {took_s:,.1f} s. It is left out.")
    say(profile.summary)


def _add(table: Table, phase: PhaseProfile, *, indent: bool) -> None:
    share = "" if phase.share is None else f"{phase.share:.1%}"
    times = (f"{ms:,.1f}" for ms in (phase.p50_ms, phase.p95_ms, phase.max_ms))
    table.add_row(f"{'  ' if indent else ''}{phase.title}", share, *times)
