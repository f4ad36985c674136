"""Collects the assets of a pipeline that one run reports on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg

from dagster_jet.orchestration.asset_reports import AssetReports
from dagster_jet.orchestration.asset_specs import own_sources, stage_specs
from dagster_jet.orchestration.defined_pipeline import (
    DefinedPipeline,
    MetadataByKey,
    defined_in,
)
from dagster_jet.orchestration.input_versions import InputVersions, KnownVersions, VersionsInLog
from dagster_jet.orchestration.last_reports import last_inputs, last_reports
from dagster_jet.orchestration.materialization import ReportedAsset
from dagster_jet.orchestration.table_facts import TableFacts
from dagster_jet.pipeline import Pipeline
from dagster_jet.pipeline.graph import EnrichNode, Graph


def asset_reports(
    pipeline: Pipeline,
    metadata_by_key: MetadataByKey,
    instance: dg.DagsterInstance,
    partition: str | None = None,
    *,
    is_running: bool = True,
) -> AssetReports:
    """Return the reports of a run. Call it before the job starts, because it reads Dagster's log.

    Args:
        pipeline: the pipeline.
        metadata_by_key: metadata of the run's assets; empty in an op, which reports on all stages.
        instance: the Dagster instance.
        partition: partition key of a bounded run.
        is_running: whether the job itself reports while it reads its inputs. Otherwise only the
            input versions of earlier reports are known.
    """
    defined = defined_in(metadata_by_key) or DefinedPipeline.of(pipeline)
    translator, links = defined.translator, defined.links
    graph = pipeline.graph
    specs = stage_specs(pipeline, translator, links)
    assets = reported_assets(pipeline, specs, metadata_by_key)
    own = own_sources(pipeline, links)
    outside = {specs[n.name].key: n.name for n in graph.sources if n.name not in own}
    inputs: InputVersions = (
        VersionsInLog(instance, _tables(graph), outside)
        if is_running
        else KnownVersions(last_inputs(instance, assets, partition))
    )
    return AssetReports(
        assets,
        last_reports(instance, assets, partition),
        inputs,
        {name: specs[name].key for name in own},
        partition,
        TableFacts({**{name: spec.key for name, spec in specs.items()}, **_table_keys(graph)}),
    )


def reported_assets(
    pipeline: Pipeline, specs: Mapping[str, dg.AssetSpec], metadata_by_key: MetadataByKey
) -> list[ReportedAsset]:
    """Return the run's assets that are stages or sinks; if the run has no assets, all of them."""
    graph = pipeline.graph
    source_keys = {specs[node.name].key for node in graph.sources}
    stage_keys = {spec.key for spec in specs.values()} - source_keys
    sinks = {node.name for node in graph.sinks}
    stateful = {node.name for node in graph.stages}
    return [
        ReportedAsset(
            stage=name,
            key=spec.key,
            code_version=spec.code_version,
            is_sink=name in sinks,
            has_state=name in stateful,
            stage_inputs=tuple(d.asset_key for d in spec.deps if d.asset_key in stage_keys),
            outside_inputs=tuple(d.asset_key for d in spec.deps if d.asset_key not in stage_keys),
            freshness_seconds=_freshness_seconds(spec.freshness_policy),
        )
        for name, spec in specs.items()
        if name in sinks | stateful and (not metadata_by_key or spec.key in metadata_by_key)
    ]


def _tables(graph: Graph) -> dict[dg.AssetKey, int | None]:
    """Returns the assets that rows are enriched with, and their refresh interval in ms."""
    found = _table_keys(graph)
    nodes = [node for node in graph if isinstance(node, EnrichNode) and node.name in found]
    return {found[node.name]: node.refresh_ms for node in nodes}


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
