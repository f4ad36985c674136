"""Maintenance of a pipeline's tables of Delta Lake and Iceberg, as assets with a schedule."""

# No `from __future__ import annotations`: Dagster reads the context's annotation at run time.
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_jet.connectors.lake import TARGET_FILE_BYTES
from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.errors import ConfigurationError, JetError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_job import stream_of
from dagster_jet.orchestration.dagster_name import dagster_name, given_name
from dagster_jet.orchestration.opened_jet import opened_jet
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.tick import required_key

if TYPE_CHECKING:
    from dagster_jet.connectors.lake.lake_sink import LakeSink
    from dagster_jet.connectors.lake.table_maintenance import SmallFiles

EVERY_NIGHT = "0 3 * * *"
_CHECK = "small_files"


def build_jet_lake_maintenance(
    assets: dg.AssetsDefinition,
    *,
    jet: JetResource | str = "jet",
    cron_schedule: str = EVERY_NIGHT,
    longest_outage: Duration = "1 day",
    target_file_bytes: int = TARGET_FILE_BYTES,
    max_small_files: int = 100,
    severity: dg.AssetCheckSeverity = dg.AssetCheckSeverity.WARN,
    name: str | None = None,
    execution_timezone: str | None = None,
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.RUNNING,
) -> dg.Definitions:
    """Return the maintenance of a pipeline's lake tables: merge it with your definitions.

    Each asset of `sinks.delta` or `sinks.iceberg` gets an asset behind it, ``<asset>_maintenance``,
    and a check ``small_files``. A job with a schedule materializes the first and then evaluates
    the second. It runs beside the stream and starts no Spark.

    - Delta Lake: small files are compacted, files that no version needs within the table's
      ``delta.deletedFileRetentionDuration`` are removed, a checkpoint is written.
    - Iceberg: small files are compacted in this process, snapshots older than
      ``history.expire.max-snapshot-age-ms`` expire, and files are removed that only they need, or
      snapshots of this age that the sink has let expire.

    Files that the stream has staged and not committed yet are never removed. A commit that is lost
    to the stream is made again.

    Args:
        assets: the result of `@jet_assets`.
        jet: the `JetResource`, or its key in the definitions.
        cron_schedule: cron expression, as for Dagster.
        longest_outage: a table that keeps files of the past for less time is not maintained: jobs
            that read it would not find their next files after an outage. At least once.
        target_file_bytes: size of compacted files. A file of less than a quarter of it is small.
        max_small_files: number of small files with which ``small_files`` still passes. When it
            fails, it says what to do.
        severity: how ``small_files`` fails. By default as a warning, as checks of Dagster's own
            builders do: the rows are right, and queries are slow. ``AssetCheckSeverity.ERROR``
            turns the asset red.
        name: name of the Dagster job; by default the pipeline's name plus ``_lake_maintenance``.
            The schedule's is that plus ``_schedule``.
        execution_timezone: time zone of `cron_schedule`; by default UTC.
        default_status: status of the schedule when it is first loaded.

    Raises:
        ConfigurationError: `assets` is not from `jet_assets`, has partitions, or has no such table.

    Example:
        ``defs = dg.Definitions.merge(defs, build_jet_lake_maintenance(flight_assets))``
    """
    from dagster_jet.connectors.lake.lake_sink import LakeSink

    pipeline = stream_of(assets, "maintenance of tables")
    outage_ms = to_ms(longest_outage, "longest_outage")
    by_name = {node.name: node.sink for node in pipeline.graph.sinks}
    tables = [
        _Table(assets.specs_by_key[key], pipeline.name, stage, sink, target_file_bytes)
        for key, metadata in assets.metadata_by_key.items()
        if isinstance(sink := by_name.get(stage := str(metadata[keys.META_STAGE])), LakeSink)
    ]
    if not tables:
        raise ConfigurationError(
            "no sink of the pipeline is a table of Delta Lake or Iceberg.", job=pipeline.name
        )
    base = given_name(name, f"{dagster_name(pipeline.name)}_lake_maintenance")
    made = [_maintained(one, jet, outage_ms) for one in tables]
    checks = [_checked(one, max_small_files, severity) for one in tables]
    job = dg.define_asset_job(
        base,
        selection=dg.AssetSelection.assets(*made) | dg.AssetSelection.checks(*checks),
        executor_def=dg.in_process_executor,
        description=f"Maintains the lake tables of `{pipeline.name}`, beside the stream.",
    )
    schedule = dg.ScheduleDefinition(
        name=f"{base}_schedule",
        job=job,
        cron_schedule=cron_schedule,
        execution_timezone=execution_timezone,
        default_status=default_status,
    )
    return dg.Definitions(assets=made, asset_checks=checks, jobs=[job], schedules=[schedule])


@dataclass(frozen=True)
class _Table:
    spec: dg.AssetSpec
    job: str
    stage: str
    sink: "LakeSink"
    target_bytes: int

    @property
    def maintenance_key(self) -> dg.AssetKey:
        *prefix, last = self.spec.key.path
        return dg.AssetKey([*prefix, f"{last}_maintenance"])


def _maintained(table: _Table, jet: JetResource | str, outage_ms: int) -> dg.AssetsDefinition:
    job, stage = table.job, table.stage

    @dg.asset(
        key=table.maintenance_key,
        deps=[table.spec.key],
        group_name=table.spec.group_name,
        kinds=table.spec.kinds - {"spark"},
        description=f"Maintenance of the table of `{stage}`, beside the stream `{job}`.",
        required_resource_keys=required_key(jet),
    )
    def maintained(context: dg.AssetExecutionContext) -> dg.MaterializeResult[Any]:
        with opened_jet(context.resources, jet) as opened:
            maintenance = table.sink.with_store(opened.store).maintenance(job, stage)
        with _failures_named():
            done = maintenance.run(outage_ms, table.target_bytes)
        return dg.MaterializeResult(metadata=dict(done))

    return maintained


def _checked(table: _Table, most: int, severity: dg.AssetCheckSeverity) -> dg.AssetChecksDefinition:
    @dg.asset_check(
        asset=table.spec.key,
        name=_CHECK,
        additional_deps=[table.maintenance_key],
        description="Readers of the table need not open many small files.",
    )
    def small_files() -> dg.AssetCheckResult:
        maintenance = table.sink.maintenance(table.job, table.stage)
        with _failures_named():
            found = maintenance.small_files(table.target_bytes)
        return dg.AssetCheckResult(
            passed=found.small <= most,
            severity=severity,
            description=_said(found, most, maintenance.compacts),
            metadata={"files": found.files, _CHECK: found.small},
        )

    return small_files


@contextmanager
def _failures_named() -> Iterator[None]:
    """Ends the step with the sentence of an error, without its stack."""
    try:
        yield
    except JetError as error:
        raise dg.Failure(description=str(error), allow_retries=False) from error


def _said(found: "SmallFiles", most: int, cure: str) -> str:
    mb = found.below_bytes >> 20
    text = f"{found.small} of {found.files} files are smaller than {mb} MB and could be fewer"
    if found.small <= most:
        return f"{text}."
    return (
        f"{text}: each query opens all of them. {cure} To write fewer, let the job commit less "
        "often: JobConfig(snapshot_interval=...), or partition the table by fewer values."
    )
