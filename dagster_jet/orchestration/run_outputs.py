"""Outputs of a run: they let the checks and assets behind a stream's assets run in the same run."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_reports import AssetReports
from dagster_jet.orchestration.committed_snapshot import newest_commit, nothing_committed
from dagster_jet.orchestration.event_iterator import JetEvent
from dagster_jet.orchestration.materialization import ReportedAsset
from dagster_jet.orchestration.run_config import RunContext, op_context
from dagster_jet.ownership.lease import wall_clock_ms
from dagster_jet.pipeline import Pipeline
from dagster_jet.snapshot.record import JobStatus

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


def reported_again(
    context: RunContext,
    jet: Jet,
    pipeline: Pipeline,
    reports: AssetReports,
    *,
    always: bool = False,
) -> Generator[JetEvent, None, bool]:
    """Reports the newest commit once more if a backfill waits for it and the run had no news.

    A backfill waits for a materialization of every asset. It gets one with the old data version.

    Args:
        context: context of the run.
        jet: gives access to the store.
        pipeline: the pipeline, with the name of the job.
        reports: the run's reports.
        always: report it outside of backfills, too.

    Returns:
        Whether anything is committed.

    Raises:
        StoreError: the store could not be read.
    """
    record, found = jet.job(pipeline.name).record(), newest_commit(jet, pipeline.name)
    is_completed = record is not None and record.status is JobStatus.COMPLETED
    if found is None and not is_completed:
        return False
    is_due = always or keys.DAGSTER_BACKFILL in context.run.tags
    if is_due and not reports.has_materialized:
        graph = pipeline.graph
        newest = found.as_restored(graph) if found else nothing_committed(pipeline.name, graph)
        yield from reports.missed(newest, wall_clock_ms(), again=True)
    return True


def outputs(context: RunContext, assets: Iterable[ReportedAsset]) -> Iterator[JetEvent]:
    """Yields an output for each of these assets; none in an op.

    Dagster records them only in the run: reports say what is new of an asset.
    """
    if op_context(context).has_assets_def:
        for asset in assets:
            yield dg.MaterializeResult(
                asset_key=asset.key, metadata={keys.DAGSTER_NO_ASSET_EVENT: True}
            )
