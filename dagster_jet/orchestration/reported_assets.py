"""Collects the assets of a pipeline that one run reports on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import dagster as dg

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_reports import AssetReports
from dagster_jet.orchestration.asset_specs import own_sources, stage_specs
from dagster_jet.orchestration.defined_pipeline import DefinedPipeline, defined_in
from dagster_jet.orchestration.input_versions import InputVersions, KnownVersions, VersionsInLog
from dagster_jet.orchestration.last_reports import last_inputs, last_reports
from dagster_jet.orchestration.materialization import ReportedAsset
from dagster_jet.orchestration.table_facts import TableFacts
from dagster_jet.pipeline import Pipeline
from dagster_jet.pipeline.graph import EnrichNode, Graph


def asset_reports(
    pipeline: Pipeline,
    assets_def: dg.AssetsDefinition | None,
    instance: dg.DagsterInstance,
    partition: str | None = None,
    attempt: str = "",
    *,
    is_running: bool = True,
) -> AssetReports:
    """Return the reports of a run. Call it before the job starts, because it reads Dagster's log.

    Args:
        pipeline: the pipeline.
        assets_def: the assets as they are defined in the end, which may have other keys, freshness
            policies or code versions than `jet_assets` gave them. None: in an op, which reports on
            all stages, by the pipeline's own keys.
        instance: the Dagster instance.
        partition: partition key of a bounded run.
        attempt: computation of the partition; "" for the first.
        is_running: whether the job itself reports while it reads its inputs. Otherwise only the
            input versions of earlier reports are known.

    Raises:
        ConfigurationError: none of the assets is a stage or a sink of the pipeline.
    """
    defined = None if assets_def is None else defined_in(assets_def.metadata_by_key)
    defined = defined or DefinedPipeline.of(pipeline)
    translated = stage_specs(pipeline, defined.translator, defined.links)
    specs = translated if assets_def is None else specs_by_stage(pipeline, assets_def)
    graph = pipeline.graph
    assets = reported_assets(pipeline, specs)
    known = {key for asset in assets for key in asset.outside_inputs}
    source_keys = {n.name: _as_defined(translated[n.name].key, known) for n in graph.sources}
    own = own_sources(pipeline, defined.links)
    table_keys = {name: _as_defined(key, known) for name, key in _table_keys(graph).items()}
    inputs: InputVersions = (
        VersionsInLog(
            instance,
            {table_keys[name]: every for name, every in _refreshes(graph).items()},
            {key: name for name, key in source_keys.items() if name not in own},
        )
        if is_running
        else KnownVersions(last_inputs(instance, assets, partition))
    )
    return AssetReports(
        assets,
        last_reports(instance, assets, partition),
        inputs,
        {name: source_keys[name] for name in own},
        partition,
        attempt,
        TableFacts({**source_keys, **{a.stage: a.key for a in assets}, **table_keys}),
    )


def specs_by_stage(
    pipeline: Pipeline, assets_def: dg.AssetsDefinition
) -> Mapping[str, dg.AssetSpec]:
    """Return the specs of the assets that are stages or sinks of the pipeline, by stage.

    Raises:
        ConfigurationError: there is none.
    """
    graph = pipeline.graph
    names = {node.name for node in graph.stages} | {node.name for node in graph.sinks}
    by_stage = {str(spec.metadata.get(keys.META_STAGE)): spec for spec in assets_def.specs}
    specs = {stage: spec for stage, spec in by_stage.items() if stage in names}
    if not specs:
        raise ConfigurationError(
            f"none of the assets {', '.join(sorted(k.to_user_string() for k in assets_def.keys))} "
            "is a stage or a sink of the pipeline, so nothing would be reported.",
            job=pipeline.name,
            cure="Define them with @jet_assets(pipeline=...), and keep the metadata "
            f"{keys.META_STAGE!r} where specs are changed.",
        )
    return specs


def reported_assets(pipeline: Pipeline, specs: Mapping[str, dg.AssetSpec]) -> list[ReportedAsset]:
    """Return the assets that are stages or sinks, upstream before downstream.

    Args:
        pipeline: the pipeline.
        specs: specs by stage; sources, and stages without a spec, are not reported.
    """
    graph = pipeline.graph
    sinks = {node.name for node in graph.sinks}
    stateful = {node.name for node in graph.stages}
    shown = [node.name for node in graph if node.name in specs and node.name in sinks | stateful]
    own = {specs[name].key for name in shown}
    return [
        ReportedAsset(
            stage=name,
            key=spec.key,
            code_version=spec.code_version,
            is_sink=name in sinks,
            has_state=name in stateful,
            stage_inputs=tuple(d.asset_key for d in spec.deps if d.asset_key in own),
            outside_inputs=tuple(d.asset_key for d in spec.deps if d.asset_key not in own),
            freshness_seconds=_freshness_seconds(spec.freshness_policy),
            uri=spec.metadata.get(keys.DAGSTER_URI) if name in sinks else None,
            normal_lag_ms=max(
                (node.timestamps.allowed_lag_ms for node, _ in graph.upstream_timestamps(name)),
                default=0,
            ),
        )
        for name, spec in ((name, specs[name]) for name in shown)
    ]


def _as_defined(key: dg.AssetKey, known: Collection[dg.AssetKey]) -> dg.AssetKey:
    """Returns the key of an input as the assets name it, which may have a prefix by now."""
    if key in known:
        return key
    size = len(key.path)
    return next((each for each in known if each.path[-size:] == key.path), key)


def _refreshes(graph: Graph) -> dict[str, int | None]:
    """Returns the refresh interval in ms of the assets that rows are enriched with."""
    found = _table_keys(graph)
    nodes = [node for node in graph if isinstance(node, EnrichNode) and node.name in found]
    return {node.name: node.refresh_ms for node in nodes}


def _table_keys(graph: Graph) -> dict[str, dg.AssetKey]:
    """Returns the assets that rows are enriched with, by name of the enrichment."""
    return {
        node.name: dg.AssetKey(list(key))
        for node in graph
        if isinstance(node, EnrichNode) and (key := getattr(node.table, "asset_key", ()))
    }


def _freshness_seconds(policy: Any) -> float | None:
    """Returns the warning window of a freshness policy in seconds, or else its failure window."""
    window = getattr(policy, "warn_window", None) or getattr(policy, "fail_window", None)
    return None if window is None else float(window.to_timedelta().total_seconds())
