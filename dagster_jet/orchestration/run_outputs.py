"""Outputs of a run: they let the checks and assets behind a stream's assets run in the same run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_reports import AssetReports
from dagster_jet.orchestration.committed_snapshot import newest_commit, nothing_committed
from dagster_jet.orchestration.event_iterator import JetEvent
from dagster_jet.orchestration.run_config import RunContext, op_context
from dagster_jet.pipeline import Pipeline
from dagster_jet.snapshot.record import JobStatus

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


def outputs(
    context: RunContext,
    jet: Jet,
    pipeline: Pipeline,
    reports: AssetReports,
    *,
    report: bool = False,
) -> Iterator[JetEvent]:
    """Yields an output for each of the run's assets of which rows are committed.

    Dagster records an output only in the run: reports say what is new. A backfill, however, waits
    for a materialization of every asset. A run of a backfill without news reports the newest commit
    once more, with the data version that it had.

    Args:
        context: context of the run.
        jet: gives access to the store.
        pipeline: the pipeline, with the name of the job.
        reports: the run's reports.
        report: report the newest commit once more if the run had no news, as in a backfill.

    Raises:
        StoreError: the store could not be read.
    """
    record, found = jet.job(pipeline.name).record(), newest_commit(jet, pipeline.name)
    is_completed = record is not None and record.status is JobStatus.COMPLETED
    is_committed = found is not None or is_completed
    is_due = report or keys.DAGSTER_BACKFILL in context.run.tags
    if is_committed and is_due and not reports.has_materialized:
        graph = pipeline.graph
        newest = found.as_restored(graph) if found else nothing_committed(pipeline.name, graph)
        yield from reports.missed(newest, time.time_ns() // 1_000_000, again=True)
    if not op_context(context).has_assets_def:
        return
    for asset in reports.assets:
        if is_committed or asset.stage in reports.last:
            yield dg.MaterializeResult(
                asset_key=asset.key, metadata={keys.DAGSTER_NO_ASSET_EVENT: True}
            )
