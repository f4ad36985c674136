"""Prints one job: its record, its progress, and why it produces no output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dagster_jet.cli.output import say, show, show_json, show_one
from dagster_jet.core.moments import moment

if TYPE_CHECKING:
    from dagster_jet.execution.events import SourceProgress, StageProgress
    from dagster_jet.observe.reading.explanation import Explanation

_PARTITIONS_SHOWN = 5


def show_job(row: Mapping[str, Any], explanation: Explanation, *, as_json: bool) -> None:
    """Prints the record's row, tables of sources and stages, and the findings.

    JSON output is a list with one document, like that of `jobs`: the row and the explanation.
    """
    if as_json:
        show_json([{**row, **explanation.to_json(), "status": row["status"]}])
        return
    show_one(row, title=f"Job {explanation.job}")
    if explanation.sources:
        rows = [_source_row(*source) for source in explanation.sources.items()]
        show(rows, title="Sources", as_json=False)
    if explanation.stages:
        rows = [_stage_row(*stage) for stage in explanation.stages.items()]
        show(rows, title="Stages and sinks", as_json=False)
    say(explanation.text)


def _source_row(name: str, source: SourceProgress) -> dict[str, Any]:
    from dagster_jet.observe.reading.run_progress import count

    lag = ", ".join(f"{count(number)} {unit}" for unit, number in source.lag.items())
    most = sorted(source.partition_lag.items(), key=lambda item: -item[1])
    partitions = ", ".join(f"{p}: {count(n)}" for p, n in most[:_PARTITIONS_SHOWN] if n)
    return {
        "source": name,
        "rows": f"{source.rows_read:,}",
        "waiting": lag or None,
        "most_in_partitions": partitions or None,
        "watermark": None if source.watermark_ms is None else moment(source.watermark_ms),
        "state": "unavailable" if source.unavailable else "idle" if source.idle else "active",
    }


def _stage_row(name: str, stage: StageProgress) -> dict[str, Any]:
    held = stage.held_back_by
    if held is not None and stage.held_back_partition is not None:
        held = f"{held}, partition {stage.held_back_partition}"
    return {
        "stage": name,
        "rows_in": f"{stage.rows_in:,}" if stage.rows_in or not stage.counted else None,
        "late": f"{stage.late:,}" if stage.late else None,
        "rejected": f"{stage.rejected:,}" if stage.rejected else None,
        "counted": ", ".join(f"{n}: {c:,}" for n, c in sorted(stage.counted.items())) or None,
        "state_rows": f"{stage.state_rows:,}" if stage.state_rows else None,
        "watermark": None if stage.watermark_ms is None else moment(stage.watermark_ms),
        "held_back_by": held,
        "next_due": None if stage.next_due_ms is None else moment(stage.next_due_ms),
    }
