"""Asset checks of a pipeline: they pass while its job is healthy, and fail with reason and cure."""

# No `from __future__ import annotations`: Dagster reads the context's annotation at run time.
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import dagster as dg

from dagster_jet.core.durations import Duration, to_ms
from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import health
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_job import stream_of
from dagster_jet.orchestration.dagster_name import dagster_name, given_name
from dagster_jet.orchestration.health import Health, Limits
from dagster_jet.orchestration.opened_jet import opened_jet
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.supervisor import check_settings
from dagster_jet.orchestration.tick import required_key
from dagster_jet.ownership.lease import wall_clock_ms
from dagster_jet.ownership.supervision import read_supervision
from dagster_jet.pipeline import Pipeline
from dagster_jet.pipeline.stage_kind import StageKind

if TYPE_CHECKING:
    from dagster_jet.jet import Jet

_DESCRIPTIONS = {
    "definition": "The job runs the definition of the pipeline that is loaded here.",
    "alive": "The job is running and makes progress, or was stopped on purpose.",
    "snapshot_age": "The job has a recent snapshot, waits for input, or was stopped on purpose.",
    "committed": "All sinks have the output that the last snapshot decided.",
    "store_safe": "The store has all its members, and no copy is missing or damaged.",
    "rejected_rows": "The share of source rows that did not fit the schema is small.",
    "late_rows": "The share of the stage's rows that came late, behind the watermark, is small.",
    "watermark_lag": "Event time is not far behind the clock.",
}
_OF_SINKS = ("alive", "definition", "snapshot_age", "committed", "store_safe", "rejected_rows")
_SNAPSHOT_AGE_MS = 600_000
_WARNINGS = ("definition", "late_rows", "rejected_rows", "watermark_lag")


def build_jet_asset_checks(
    assets: dg.AssetsDefinition,
    *,
    jet: JetResource | str = "jet",
    max_snapshot_age: Duration | None = None,
    max_watermark_lag: Duration | None = None,
    max_late_ratio: float = 0.01,
    max_rejected_ratio: float = 0.01,
    stuck_after_seconds: float = 300,
    give_up_after: int = 8,
    name: str | None = None,
    automation_condition: dg.AutomationCondition[Any] | None = None,
) -> dg.AssetChecksDefinition:
    """Return the checks of a pipeline's assets. They read the store and do not start Spark.

    Checks of every sink:

    - ``alive``: the job makes progress, or is down on purpose. Fails if it is stuck, has failed,
      was given up, or was not taken up in time.
    - ``definition``: the running execution has this definition of the pipeline: expressions,
      connectors, settings and functions.
    - ``snapshot_age``: the last snapshot is recent, or the job is alive and waits for input, or it
      is down on purpose.
    - ``committed``: all sinks have the decided output.
    - ``store_safe``: no copy is missing or damaged.
    - ``rejected_rows``: few of the sources' rows became dead letters.

    Checks of every stateful stage: ``late_rows``, and ``watermark_lag`` if it has a limit.
    ``definition``, ``rejected_rows``, ``late_rows`` and ``watermark_lag`` fail as warnings, the
    others as errors.

    They run when something runs them: `build_jet_check_schedule`, or an automation condition.

    Args:
        assets: the result of `@jet_assets`.
        jet: the `JetResource`, or its key in the definitions.
        max_snapshot_age: limit for a job that has input; also the limit for a pending commit, and
            for the time that a job is down without being taken up. By default 10 minutes, but
            unlimited for snapshots of a job whose runs end by themselves.
        max_watermark_lag: maximum lag of event time behind the clock; by default unlimited.
        max_late_ratio: limit on a stage's share of late rows since the job began.
        max_rejected_ratio: limit on the sources' share of dead letters since the job began.
        stuck_after_seconds: same as for the supervisor.
        give_up_after: same as for the supervisor.
        name: name of the op; by default the pipeline's name plus ``_checks``.
        automation_condition: condition of all of these checks, for example
            ``AutomationCondition.cron_tick_passed("*/30 * * * *")``.

    Raises:
        ConfigurationError: `assets` is not from `jet_assets` or has partitions; a limit is wrong.
    """
    pipeline = stream_of(assets, "checks")
    check_settings(
        pipeline.name, stuck_after_seconds=stuck_after_seconds, give_up_after=give_up_after
    )
    age_ms = None if max_snapshot_age is None else to_ms(max_snapshot_age, "max_snapshot_age")
    limits = Limits(
        _SNAPSHOT_AGE_MS if age_ms is None else age_ms,
        None if max_watermark_lag is None else to_ms(max_watermark_lag, "max_watermark_lag"),
        _ratio(max_late_ratio, "max_late_ratio"),
        _ratio(max_rejected_ratio, "max_rejected_ratio"),
        int(stuck_after_seconds * 1000),
        give_up_after,
        age_ms,
    )
    definition = pipeline.graph.definition()
    kinds = {node.name: node.kind for node in pipeline.graph}
    checks: list[tuple[str, str, dg.AssetKey]] = []
    for key, metadata in assets.metadata_by_key.items():
        stage = metadata[keys.META_STAGE]
        if kinds[stage] is StageKind.SINK:
            checks += [(check, stage, key) for check in _OF_SINKS]
        else:
            lag = [] if limits.watermark_lag_ms is None else ["watermark_lag"]
            checks += [(check, stage, key) for check in ["late_rows", *lag]]

    def evaluate(context: dg.AssetCheckExecutionContext) -> Iterable[dg.AssetCheckResult]:
        selected = context.selected_asset_check_keys
        asked = [
            (spec.name, str((spec.metadata or {})[keys.META_STAGE]), spec.asset_key)
            for spec in context.check_specs
            if spec.key in selected
        ]
        with opened_jet(context.resources, jet) as opened:
            yield from _results(opened, pipeline, definition, limits, asked)

    return dg.multi_asset_check(
        name=given_name(name, f"{dagster_name(pipeline.name)}_checks"),
        specs=[
            dg.AssetCheckSpec(
                check,
                asset=key,
                description=_DESCRIPTIONS[check],
                automation_condition=automation_condition,
                metadata={keys.META_STAGE: stage},
            )
            for check, stage, key in checks
        ],
        can_subset=True,
        required_resource_keys=required_key(jet),
    )(evaluate)


def _results(
    jet: "Jet",
    pipeline: Pipeline,
    definition: str,
    limits: Limits,
    asked: Iterable[tuple[str, str, dg.AssetKey]],
) -> Iterator[dg.AssetCheckResult]:
    """Evaluates the checks; the store is read once, regardless of the number of checks."""
    now_ms = wall_clock_ms()
    job = jet.job(pipeline.name)
    record, supervision = job.record(), read_supervision(jet.store, pipeline.name)
    has_snapshot = record is not None and record.snapshot is not None
    manifest = job.manifest() if has_snapshot else None
    counters = {} if manifest is None else manifest.counters
    marks = {} if manifest is None else manifest.watermarks
    reached, held = marks.get("reached_ms", {}), marks.get("held_back_by", {})
    sources = {node.name for node in pipeline.graph.sources}
    of_pipeline: dict[str, Callable[[], Health]] = {
        "alive": partial(health.alive, record, supervision, now_ms, limits),
        "definition": partial(health.definition, record, definition),
        "snapshot_age": partial(health.snapshot_age, record, supervision, now_ms, limits),
        "committed": partial(health.committed, record, now_ms, limits),
        "store_safe": lambda: health.store_safe(jet.store.status()),
        "rejected_rows": partial(
            health.rejected_rows, {n: c for n, c in counters.items() if n in sources}, limits
        ),
    }
    known: dict[str, Health] = {}
    for check, stage, key in asked:
        if check in of_pipeline:
            found = known.get(check) or known.setdefault(check, of_pipeline[check]())
        elif check == "late_rows":
            found = health.late_rows(counters.get(stage), limits)
        else:
            by = (held.get(stage) or {}).get("source")
            found = health.watermark_lag(reached.get(stage), by, now_ms, limits)
        yield dg.AssetCheckResult(
            passed=found.is_well,
            check_name=check,
            asset_key=key,
            description=found.why,
            severity=_severity(check),
            metadata=dict(found.numbers),
        )


def _severity(check: str) -> dg.AssetCheckSeverity:
    is_warning = check in _WARNINGS
    return dg.AssetCheckSeverity.WARN if is_warning else dg.AssetCheckSeverity.ERROR


def _ratio(value: float, field: str) -> float:
    if not 0 <= value <= 1:
        raise ConfigurationError(f"{field}: {value} is not between 0 and 1.")
    return value
