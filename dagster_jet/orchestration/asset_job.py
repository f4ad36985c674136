"""The Dagster job that runs a streaming pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.dagster_name import dagster_name, given_name
from dagster_jet.orchestration.defined_pipeline import defined_in
from dagster_jet.pipeline import Pipeline

if TYPE_CHECKING:
    from dagster._core.definitions.unresolved_asset_job_definition import (
        UnresolvedAssetJobDefinition,
    )


def build_jet_job(
    assets: dg.AssetsDefinition,
    *,
    name: str | None = None,
    description: str | None = None,
    tags: Mapping[str, str] | None = None,
    config: dg.RunConfig | None = None,
    executor_def: dg.ExecutorDefinition | None = None,
) -> UnresolvedAssetJobDefinition:
    """Return a job for assets made by `jet_assets`, suited to runs that last for days.

    It runs in the run's own process. That saves a process, and Dagster notices when the job's
    process dies. Dagster's run-time limit and run retries are off: a stream has no maximum
    duration, and the supervisor sensor restarts it.

    Assets with `jet_assets(retry_policy=...)` run in a step process instead, by the multiprocess
    executor. If that process dies, the run worker restarts the step within seconds, in the same
    run. The supervisor is the second layer; whichever of the two comes second finds the job taken.
    A retry policy is refused with the in-process executor: the process that would restart the step
    dies with it, and Dagster would answer a cancel with a retry.

    Args:
        assets: the result of `@jet_assets`.
        name: the job's name; by default the pipeline's name plus ``_job``, or plus
            ``_partitions_job`` if the assets have partitions.
        description: the job's description; by default it says when a run ends, and for a stream
            which condition launches the assets behind it.
        tags: additional run tags.
        config: run config, for example `until`.
        executor_def: by default the in-process one, or with a retry policy the multiprocess one.

    Raises:
        ConfigurationError: `assets` was not made by `jet_assets`, or has a retry policy that the
            in-process executor would run.
    """
    pipeline = pipeline_of(assets)
    base = dagster_name(pipeline.name)
    # Runs of partitions must not match the supervisor of a live job of the same pipeline.
    drives = pipeline.name if assets.partitions_def is None else f"{pipeline.name}@*"
    by_default = f"{base}_job" if assets.partitions_def is None else f"{base}_partitions_job"
    kind = keys.KIND_STREAM if assets.partitions_def is None else keys.KIND_PARTITION
    retries = assets.op.retry_policy is not None
    if retries and executor_def is not None and executor_def.name == dg.in_process_executor.name:
        raise ConfigurationError(
            "a retry policy does not work with the in-process executor: Dagster would retry a "
            "cancelled run, and would not restart a process that dies.",
            job=pipeline.name,
            cure="Leave out executor_def, or the retry_policy of @jet_assets.",
        )
    executor_def = executor_def or (dg.multiprocess_executor if retries else dg.in_process_executor)
    return dg.define_asset_job(
        name=given_name(name, by_default),
        description=description or _description(pipeline.name, assets),
        selection=dg.AssetSelection.assets(assets).without_checks(),
        executor_def=executor_def,
        tags={
            keys.TAG_MAX_RUNTIME: "0",
            keys.TAG_MAX_RETRIES: "0",
            keys.TAG_PIPELINE: drives,
            keys.TAG_KIND: kind,
            **(tags or {}),
        },
        config=config,
    )


def _description(pipeline: str, assets: dg.AssetsDefinition) -> str:
    if assets.partitions_def is not None:
        return f"Computes a partition of `{pipeline}`: the run ends when its input is read."
    return (
        f"Runs the streaming job `{pipeline}` until it is stopped. Such a run does not end, so no "
        "asset or check behind the stream can run in it. Give these a condition of their own, such "
        "as `AutomationCondition.any_deps_match(AutomationCondition.data_version_changed())"
        ".since_last_handled()`, or launch them by `build_jet_snapshot_sensor`."
    )


def stream_of(assets: dg.AssetsDefinition, what: str) -> Pipeline:
    """Return the pipeline of assets that a single streaming job writes.

    Args:
        assets: the result of `@jet_assets`.
        what: object to be built for them, with its article, for the error message.

    Raises:
        ConfigurationError: `assets` was not made by `jet_assets`, or has partitions.
    """
    pipeline = pipeline_of(assets)
    if assets.partitions_def is not None:
        raise ConfigurationError(
            f"assets with partitions cannot have {what}: each partition is a job of its own, which "
            "ends.",
            job=pipeline.name,
            cure="Launch them by a backfill, or by dg.build_schedule_from_partitioned_job().",
        )
    return pipeline


def pipeline_of(assets: dg.AssetsDefinition) -> Pipeline:
    """Return the pipeline that `jet_assets` was given.

    Raises:
        ConfigurationError: `assets` was not made by `jet_assets`.
    """
    if not isinstance(assets, dg.AssetsDefinition):
        raise ConfigurationError(
            f"expected what @jet_assets made, not {type(assets).__name__}: {assets!r:.80}",
            cure="Pass the decorated function itself, one per call.",
        )
    defined = defined_in(assets.metadata_by_key)
    if defined is None:
        raise ConfigurationError(
            "these assets carry no pipeline.", cure="Define them with @jet_assets(pipeline=...)."
        )
    return defined.pipeline
