"""Two assets behind a pipeline's sinks: up to where all sinks agree, and which hours are over.

A sink's materialization says that the sink has new rows. Readers of several sinks need the epoch up
to which all of them are committed; readers of whole hours need to know that no row can follow.
"""

# No `from __future__ import annotations`: Dagster reads the context's annotation at run time.
import json
import warnings
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.core.moments import moment
from dagster_jet.dag.watermark import FINAL_WATERMARK_MS
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_job import stream_of
from dagster_jet.orchestration.committed_snapshot import (
    CommittedSnapshot,
    job_mark,
    newest_commit,
)
from dagster_jet.orchestration.dagster_name import dagster_name, given_name
from dagster_jet.orchestration.opened_jet import opened_jet
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.tick import jet_of_tick, required_key
from dagster_jet.ownership.lease import wall_clock_ms
from dagster_jet.pipeline import Pipeline
from dagster_jet.pipeline.stage_kind import StageKind

if TYPE_CHECKING:
    from dagster_jet.jet import Jet

CHECK = "sealed"
_HOURS_PER_TICK = 50
"""Two events each: a pipeline that reads years of input does not hold up the daemon."""


def build_jet_cut_assets(
    assets: dg.AssetsDefinition,
    *,
    hours: dg.TimeWindowPartitionsDefinition | None = None,
    jet: JetResource | str = "jet",
    name: str | None = None,
    minimum_interval_seconds: int = 300,
    default_status: dg.DefaultSensorStatus = dg.DefaultSensorStatus.STOPPED,
) -> dg.Definitions:
    """Return assets for readers of several sinks, or of whole hours: merge them with yours.

    - ``consistent`` is a virtual asset behind all sinks. Its data version is the epoch up to which
      all of them are committed, by their own markers (`Ledger.consistent_epoch`).
    - ``sealed``, if `hours` are given, has one partition per hour, or day. A partition is
      materialized, and its check ``sealed`` passes, once the watermark of every stateful stage of
      a committed snapshot has reached its end: all results up to there are in the sinks, and later
      rows of that hour are late. Checks of your own with the same partitions run on sealed hours
      with ``AutomationCondition.any_deps_updated().since_last_handled()``.

    A sensor reports both. It reads the store and the places of the sinks, and starts no Spark.

    Args:
        assets: the result of `@jet_assets`.
        hours: the hours or days; hours before its start are not reported.
        jet: the `JetResource`, or its key in the definitions.
        name: the sensor's name; by default the pipeline's name plus ``_cut``.
        minimum_interval_seconds: minimum time between ticks. Dagster keeps 9 KB per event for ever:
            every 300 seconds, 78 MB a month.
        default_status: status of the sensor when it is first loaded.

    Raises:
        ConfigurationError: `assets` is not from `jet_assets` or has partitions; with `hours`, the
            pipeline has no stateful stage; Dagster is older than 1.13.

    Example:
        .. code-block:: python

            hours = dg.HourlyPartitionsDefinition(start_date="2026-01-01-00:00")
            defs = dg.Definitions.merge(defs, build_jet_cut_assets(flight_assets, hours=hours))
    """
    pipeline = stream_of(assets, "assets of its cut")
    _check(pipeline, hours)
    sinks = [
        key
        for key, metadata in assets.metadata_by_key.items()
        if metadata[keys.META_STAGE_KIND] == StageKind.SINK.value
    ]
    *prefix, _ = sinks[0].path
    group = assets.specs_by_key[sinks[0]].group_name
    cut = _Cut(pipeline, dg.AssetKey([*prefix, "consistent"]), dg.AssetKey([*prefix, CHECK]), hours)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)  # both are previews in Dagster 1.13
        specs = [
            dg.AssetSpec(
                cut.consistent,
                deps=sinks,
                group_name=group,
                kinds={"jet"},
                is_virtual=True,
                description=f"The epoch up to which all sinks of `{pipeline.name}` are committed.",
            )
        ]
        if hours is not None:
            specs.append(
                dg.AssetSpec(
                    cut.sealed,
                    deps=sinks,
                    group_name=group,
                    kinds={"jet"},
                    partitions_def=hours,
                    description=f"The hours that the watermark of `{pipeline.name}` has passed.",
                )
            )
        checks = [] if hours is None else [_sealed_check(cut, hours, jet)]

    def tick(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        with jet_of_tick(jet, context) as opened:
            return look(context, opened, cut)

    sensor = dg.SensorDefinition(
        name=given_name(name, f"{dagster_name(pipeline.name)}_cut"),
        evaluation_fn=tick,
        minimum_interval_seconds=minimum_interval_seconds,
        description=f"Reports up to where all sinks of `{pipeline.name}` are committed.",
        default_status=default_status,
        required_resource_keys=required_key(jet),
    )
    return dg.Definitions(assets=specs, asset_checks=checks, sensors=[sensor])


@dataclass(frozen=True)
class _Cut:
    pipeline: Pipeline
    consistent: dg.AssetKey
    sealed: dg.AssetKey
    hours: dg.TimeWindowPartitionsDefinition | None


@dataclass(frozen=True)
class Shown:
    """Cursor: the data version of ``consistent``, the time up to which hours are reported, and the
    execution with which the job began."""

    version: str = ""
    sealed_ms: int | None = None
    first_execution_id: int = 0

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "Shown":
        """Parses a cursor; after an unreadable one all is reported once more."""
        try:
            return cls(**json.loads(cursor or "{}"))
        except (ValueError, TypeError):
            return cls()


def look(context: dg.SensorEvaluationContext, jet: "Jet", cut: _Cut) -> dg.SensorResult:
    """Evaluates one tick.

    Crash window: the daemon stores the events before the cursor; the next tick repeats them.

    Raises:
        StoreError: the store could not be read.
    """
    job, before = cut.pipeline.name, Shown.from_cursor(context.cursor)
    found = newest_commit(jet, job)
    if found is None:
        return dg.SensorResult(skip_reason=f"{job!r}: nothing is committed yet")
    events: list[dg.AssetMaterialization | dg.AssetCheckEvaluation] = []
    ledger = jet.job(job).ledger()
    first = found.record.first_execution_id
    if first != before.first_execution_id:
        before = Shown()  # the job was deleted and began anew, with all of its hours
    epoch, version = ledger.consistent_epoch, before.version
    if epoch is not None:
        version = f"{found.record.timeline}.{epoch}{job_mark(first)}"
    if version != before.version:
        entries = {sink: asdict(entry) for sink, entry in ledger.entries.items()}
        for entry in entries.values():
            del entry["output"]  # a table may be ahead of the cut by now
        facts = {keys.EPOCH: epoch, keys.DETAILS: dg.MetadataValue.json(entries)}
        tags = {keys.TAG_DATA_VERSION: version}
        events.append(dg.AssetMaterialization(cut.consistent, metadata=facts, tags=tags))
    reached_ms, sealed_ms = _reached_ms(found, cut.pipeline), before.sealed_ms
    if cut.hours is not None and reached_ms is not None:
        over, sealed_ms = _hours_over(cut.hours, before.sealed_ms, reached_ms)
        for hour in over:
            events += _sealed_events(context.instance, cut, hour, reached_ms)
    cursor = json.dumps(asdict(Shown(version, sealed_ms, first)))
    if events:
        return dg.SensorResult(asset_events=events, cursor=cursor)
    return dg.SensorResult(skip_reason=f"{job!r}: nothing new is committed", cursor=cursor)


def _hours_over(
    hours: dg.TimeWindowPartitionsDefinition, since_ms: int | None, reached_ms: int
) -> tuple[list[str], int | None]:
    """Returns the keys of hours that are over since, oldest first, and the end of the last one.

    After a rewind the end is before `since_ms`: these hours are sealed and reported once more.
    """
    if reached_ms < _ms(hours.start):
        return [], None  # it may lie before the calendar
    now_ms = wall_clock_ms()  # an hour of the future is no partition yet
    last = hours.get_prev_partition_window(_time(min(reached_ms, now_ms)))
    if last is None:
        return [], None
    since = hours.start if since_ms is None else max(_time(since_ms), hours.start)
    window = dg.TimeWindow(since, last.end)
    found = list(hours.get_partition_keys_in_time_window(window))[:_HOURS_PER_TICK]
    end = hours.time_window_for_partition_key(found[-1]).end if found else last.end
    return found, _ms(end)


def _reached_ms(found: CommittedSnapshot, pipeline: Pipeline) -> int | None:
    """Returns the time up to which all results are committed; None before the first watermark."""
    reached = found.manifest.shown_watermarks.get("reached_ms", {})
    marks = [reached.get(stage.name) for stage in pipeline.graph.stages]
    return None if None in marks else min(marks, default=None)


def _sealed_events(
    instance: dg.DagsterInstance, cut: _Cut, hour: str, reached_ms: int
) -> list[dg.AssetMaterialization | dg.AssetCheckEvaluation]:
    """Returns the events of a sealed hour. Dagster refuses a second result of a check of one hour
    without a run, so an hour that is sealed again after a rewind or a crash has only the first."""
    from dagster._core.event_api import PartitionKeyFilter  # since Dagster 1.13

    sealed = dg.AssetMaterialization(cut.sealed, partition=hour)
    known = instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(cut.sealed, CHECK), 1_000, partition_filter=PartitionKeyFilter(key=hour)
    )
    if any(not each.run_id for each in known):
        return [sealed]
    passed = dg.AssetCheckEvaluation(
        asset_key=cut.sealed,
        check_name=CHECK,
        passed=True,
        partition=hour,
        description=_said(reached_ms),
    )
    return [sealed, passed]


def _sealed_check(
    cut: _Cut, hours: dg.TimeWindowPartitionsDefinition, jet: JetResource | str
) -> dg.AssetChecksDefinition:
    """Returns the check for "Execute" in the UI; the sensor reports it by itself."""

    @dg.asset_check(
        asset=cut.sealed,
        name=CHECK,
        partitions_def=hours,
        required_resource_keys=required_key(jet),
        description="The watermark has passed the end of the hour.",
    )
    def sealed(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        end_ms = _ms(hours.time_window_for_partition_key(context.partition_key).end)
        with opened_jet(context.resources, jet) as opened:
            found = newest_commit(opened, cut.pipeline.name)
        reached_ms = None if found is None else _reached_ms(found, cut.pipeline)
        return dg.AssetCheckResult(
            passed=reached_ms is not None and reached_ms >= end_ms, description=_said(reached_ms)
        )

    return sealed


def _said(reached_ms: int | None) -> str:
    if reached_ms is None:
        return "No watermark is committed yet."
    if reached_ms >= FINAL_WATERMARK_MS:
        return "All input is read, and all results are committed."
    return f"Results up to {moment(reached_ms, ' UTC')} are committed."


def _check(pipeline: Pipeline, hours: dg.TimeWindowPartitionsDefinition | None) -> None:
    if hours is not None and not pipeline.graph.stages:
        raise ConfigurationError(
            "hours: the pipeline has no stateful stage, so it has no watermark.",
            job=pipeline.name,
            cure="Leave hours out.",
        )
    if not hasattr(dg.AssetCheckSpec, "partitions_def") or not hasattr(dg.AssetSpec, "is_virtual"):
        raise ConfigurationError(
            f"Dagster {dg.__version__} has no virtual assets and no checks of partitions.",
            job=pipeline.name,
            cure="Install Dagster 1.13.",
        )


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, timezone.utc)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1000)
