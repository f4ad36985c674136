"""`@jet_assets`: a pipeline's stateful stages and sinks as one multi-asset."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_specs import build_jet_asset_specs
from dagster_jet.orchestration.dagster_name import dagster_name
from dagster_jet.orchestration.translator import DagsterJetTranslator
from dagster_jet.pipeline import Pipeline

UNTIL = "until"
"""The run config field that says when a run ends."""

_CONFIG_SCHEMA = {
    UNTIL: dg.Field(
        str,
        is_required=False,
        description='When the run ends: "stopped" (until cancelled), "drained", "completed", or a '
        'duration such as "10 minutes".',
    )
}


def jet_assets(
    *,
    pipeline: Pipeline,
    dagster_jet_translator: DagsterJetTranslator | None = None,
    name: str | None = None,
    group_name: str | None = None,
    pool: str | None = None,
    op_tags: Mapping[str, Any] | None = None,
    retry_policy: dg.RetryPolicy | None = None,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Make the assets of a pipeline from a function that runs it.

    One asset per stateful stage and sink; sources are external assets (`build_jet_source_assets`).
    All of them are outputs of one op, because one streaming job writes them at one cut.

    The run config may say `until`, unless the function takes a `config` of its own.

    Args:
        pipeline: the pipeline; building it runs nothing.
        dagster_jet_translator: decides keys, groups, kinds and the rest.
        name: the op's name; the pipeline's by default.
        group_name: overrides the translator's groups.
        pool: a Dagster pool. Not needed for exclusivity: the job's lease sees to it, while a
            killed run may keep its pool slot.
        op_tags: tags of the op.
        retry_policy: a step's process that dies is begun anew in the same run; of use with
            executors that run steps in processes of their own (`build_jet_job` chooses such a one).

    Example:
        .. code-block:: python

            @jet_assets(pipeline=airport_delays("data/in", "data/out"))
            def airport_delays_assets(context: dg.AssetExecutionContext, jet: JetResource):
                yield from jet.run(context=context)
    """
    specs = [
        _for_this_pipeline(spec, pipeline, dagster_jet_translator, group_name)
        for spec in build_jet_asset_specs(pipeline, dagster_jet_translator)
    ]

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        takes_config = "config" in inspect.signature(function).parameters
        return dg.multi_asset(
            specs=specs,
            name=name or dagster_name(pipeline.name),
            can_subset=False,
            config_schema=None if takes_config else _CONFIG_SCHEMA,
            pool=pool,
            op_tags=op_tags,
            retry_policy=retry_policy,
        )(function)

    return decorate


def _for_this_pipeline(
    spec: dg.AssetSpec,
    pipeline: Pipeline,
    translator: DagsterJetTranslator | None,
    group_name: str | None,
) -> dg.AssetSpec:
    """Store in the spec what `JetResource.run` needs, so that the context is enough."""
    metadata = {
        **spec.metadata,
        keys.META_PIPELINE: pipeline,
        keys.META_TRANSLATOR: translator or DagsterJetTranslator(),
    }
    if group_name is None:
        return spec.replace_attributes(metadata=metadata)
    return spec.replace_attributes(metadata=metadata, group_name=group_name)
