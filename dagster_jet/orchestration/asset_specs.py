"""All assets of a pipeline as specs: what the decorator materializes, and what is external."""

from __future__ import annotations

from collections.abc import Mapping

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.translator import DagsterJetTranslator, JetStageData, stage_data
from dagster_jet.pipeline import Pipeline

CODE_VERSION_PREFIX = "jet-"


def stage_specs(
    pipeline: Pipeline, translator: DagsterJetTranslator | None = None
) -> Mapping[str, dg.AssetSpec]:
    """Return the spec of every named stage by stage name; dependencies are the pipeline's edges.

    Raises:
        PipelineError: the pipeline reads or writes nothing.
    """
    translator = translator or DagsterJetTranslator()
    graph = pipeline.graph
    names = [node.name for node in graph if graph.is_named(node.name)]
    data = {name: stage_data(pipeline.name, graph, name) for name in names}
    specs = {name: translator.get_asset_spec(data[name]) for name in names}
    version = CODE_VERSION_PREFIX + graph.fingerprint()
    return {name: _with_edges(spec, data[name], specs, version) for name, spec in specs.items()}


def build_jet_asset_specs(
    pipeline: Pipeline, dagster_jet_translator: DagsterJetTranslator | None = None
) -> list[dg.AssetSpec]:
    """Return the stateful stages and sinks as specs: for `jet_assets`, or as external assets.

    Use them as external assets in a deployment that shows a pipeline it does not run.

    Args:
        pipeline: the pipeline.
        dagster_jet_translator: decides keys, groups, kinds and the rest.
    """
    sources = {node.name for node in pipeline.graph.sources}
    specs = stage_specs(pipeline, dagster_jet_translator)
    return [spec for name, spec in specs.items() if name not in sources]


def build_jet_source_assets(
    pipeline: Pipeline, dagster_jet_translator: DagsterJetTranslator | None = None
) -> list[dg.AssetSpec]:
    """Return the pipeline's sources as external assets, for the lineage to begin somewhere.

    Args:
        pipeline: the pipeline.
        dagster_jet_translator: the same as given to `jet_assets`.
    """
    sources = {node.name for node in pipeline.graph.sources}
    specs = stage_specs(pipeline, dagster_jet_translator)
    # An external asset is never materialized by us: it has neither code nor outputs to skip.
    return [
        spec.replace_attributes(skippable=False, code_version=None)
        for name, spec in specs.items()
        if name in sources
    ]


def _with_edges(
    spec: dg.AssetSpec, data: JetStageData, specs: Mapping[str, dg.AssetSpec], version: str
) -> dg.AssetSpec:
    upstream = [specs[name].key for name in data.upstream]
    upstream += [dg.AssetKey(list(key)) for key in data.tables]
    own = [dep for dep in spec.deps if dep.asset_key not in upstream]
    return spec.replace_attributes(
        deps=[*upstream, *own],
        # Nothing is owed at the end of a stream's run: outputs come at snapshots, if any.
        skippable=True,
        code_version=spec.code_version or version,
        metadata={
            **spec.metadata,
            keys.META_STAGE: data.stage,
            keys.META_STAGE_KIND: data.kind.value,
        },
    )
