"""Asset specs of a pipeline: those of `jet_assets`, and those of external assets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.defined_pipeline import DefinedPipeline
from dagster_jet.orchestration.translator import (
    DagsterJetTranslator,
    JetStageData,
    place_of,
    stage_data,
)
from dagster_jet.pipeline import Pipeline
from dagster_jet.pipeline.stage_kind import StageKind

CODE_VERSION_PREFIX = "jet-"


Links = Mapping[str, tuple[str, ...]]
"""Asset keys of sinks, by the place they write to."""


def stage_specs(
    pipeline: Pipeline,
    translator: DagsterJetTranslator | None = None,
    links: Links | None = None,
) -> Mapping[str, dg.AssetSpec]:
    """Return the spec of every named stage, by stage name; dependencies are the pipeline's edges.

    Raises:
        PipelineError: the pipeline has no source or no sink.
    """
    translator = translator or DagsterJetTranslator()
    graph = pipeline.graph
    names = [node.name for node in graph if graph.is_named(node.name)]
    data = {name: stage_data(pipeline.name, graph, name, links) for name in names}
    specs = {name: translator.get_asset_spec(data[name]) for name in names}
    return {
        name: _with_edges(spec, data[name], specs, CODE_VERSION_PREFIX + graph.definition(name))
        for name, spec in specs.items()
    }


def build_jet_asset_specs(
    pipeline: Pipeline,
    dagster_jet_translator: DagsterJetTranslator | None = None,
    upstream: Sequence[dg.AssetsDefinition] = (),
) -> list[dg.AssetSpec]:
    """Return the specs of stateful stages and sinks, for `jet_assets` or as external assets.

    Use them as external assets in a deployment that shows a pipeline without running it.

    Args:
        pipeline: the pipeline.
        dagster_jet_translator: determines keys, groups, kinds and other properties.
        upstream: assets of the pipelines whose sinks this one reads.
    """
    sources = {node.name for node in pipeline.graph.sources}
    specs = stage_specs(pipeline, dagster_jet_translator, links_to(upstream))
    return [spec for name, spec in specs.items() if name not in sources]


def build_jet_source_assets(
    pipeline: Pipeline,
    dagster_jet_translator: DagsterJetTranslator | None = None,
    upstream: Sequence[dg.AssetsDefinition] = (),
) -> list[dg.AssetSpec]:
    """Return the pipeline's sources as external assets, as the roots of the lineage.

    Sources that are assets already are left out: those of `sources.files(asset=...)` and the like,
    and those that read sinks of `upstream`.

    Args:
        pipeline: the pipeline.
        dagster_jet_translator: the same as given to `jet_assets`.
        upstream: the same as given to `jet_assets`.
    """
    links = links_to(upstream)
    specs = stage_specs(pipeline, dagster_jet_translator, links)
    # We never materialize an external asset: it has no code version and no outputs to skip.
    return [
        specs[name].replace_attributes(skippable=False, code_version=None)
        for name in own_sources(pipeline, links)
    ]


def own_sources(pipeline: Pipeline, links: Links) -> list[str]:
    """Return the names of the sources that no other asset represents."""
    graph = pipeline.graph
    names = [node.name for node in graph.sources]
    return [name for name in names if not stage_data(pipeline.name, graph, name, links).asset]


def links_to(upstream: Sequence[dg.AssetsDefinition]) -> Links:
    """Return the asset keys of other pipelines' sinks, by the place they write to."""
    links: dict[str, tuple[str, ...]] = {}
    for assets in upstream:
        for key, metadata in assets.metadata_by_key.items():
            defined, stage = metadata.get(keys.META_PIPELINE), metadata.get(keys.META_STAGE)
            if not isinstance(defined, DefinedPipeline) or not isinstance(stage, str):
                continue
            data = stage_data(defined, defined.pipeline.graph, stage)
            place = place_of(data.description)
            if data.kind is StageKind.SINK and place is not None:
                links[place] = tuple(key.path)
    return links


def _with_edges(
    spec: dg.AssetSpec, data: JetStageData, specs: Mapping[str, dg.AssetSpec], version: str
) -> dg.AssetSpec:
    upstream = [specs[name].key for name in data.upstream]
    upstream += [dg.AssetKey(list(key)) for key in data.tables]
    own = [dep for dep in spec.deps if dep.asset_key not in upstream]
    return spec.replace_attributes(
        deps=[*upstream, *own],
        # A stream's run owes no outputs at its end: they come at snapshots, if any.
        skippable=True,
        code_version=spec.code_version or version,
        metadata={
            **spec.metadata,
            keys.META_STAGE: data.stage,
            keys.META_STAGE_KIND: data.kind.value,
        },
    )
