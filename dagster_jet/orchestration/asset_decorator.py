"""`@jet_assets`: a pipeline's stateful stages and sinks as one multi-asset."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_specs import build_jet_asset_specs, links_to
from dagster_jet.orchestration.dagster_name import dagster_name
from dagster_jet.orchestration.defined_pipeline import DefinedPipeline
from dagster_jet.orchestration.translator import DagsterJetTranslator
from dagster_jet.pipeline import Pipeline

UNTIL = "until"
"""The run config field that says when a run ends."""

_CONFIG_SCHEMA = {
    UNTIL: dg.Field(
        str,
        is_required=False,
        description='When the run ends: "stopped" (until cancelled), "drained", "completed", or a '
        'duration such as "10 minutes". By default "stopped", and "drained" where the run is of '
        'no job of its own, as after "Materialize all".',
    )
}


def jet_assets(
    *,
    pipeline: Pipeline,
    dagster_jet_translator: DagsterJetTranslator | None = None,
    name: str | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    upstream: Sequence[dg.AssetsDefinition] = (),
    pool: str | None = None,
    op_tags: Mapping[str, Any] | None = None,
    retry_policy: dg.RetryPolicy | None = None,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Make the assets of a pipeline from a function that runs it.

    One asset per stateful stage and sink; sources are external assets (`build_jet_source_assets`).
    All of them are outputs of one op, because one streaming job writes them at one cut: they are
    materialized together.

    The run config may say `until`, unless the function takes a `config` of its own.

    Args:
        pipeline: the pipeline; building it runs nothing.
        dagster_jet_translator: decides keys, groups, kinds and the rest, stage by stage.
        name: the op's name; the pipeline's by default.
        group_name: overrides the translator's groups.
        owners: of all assets, besides the translator's.
        tags: of all assets, besides the translator's.
        upstream: assets of other pipelines. A source that reads where a sink of theirs writes
            stands for that sink in the lineage.
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
    translator = dagster_jet_translator or DagsterJetTranslator()
    defined = DefinedPipeline.of(pipeline, translator, links_to(upstream))
    stages = build_jet_asset_specs(pipeline, translator, upstream)

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        takes_config = "config" in inspect.signature(function).parameters
        more: dict[str, Any] = {keys.META_PIPELINE: defined, **_code_reference(function)}
        specs = [_with(spec, more, group_name, owners or (), tags or {}) for spec in stages]
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


def _with(
    spec: dg.AssetSpec,
    more: Mapping[str, Any],
    group_name: str | None,
    owners: Sequence[str],
    tags: Mapping[str, str],
) -> dg.AssetSpec:
    """What the translator says of a stage wins, but for the group."""
    changed = spec.replace_attributes(
        metadata={**more, **spec.metadata, keys.META_PIPELINE: more[keys.META_PIPELINE]},
        owners=list(dict.fromkeys([*spec.owners, *owners])),
        tags={**tags, **spec.tags},
    )
    return changed if group_name is None else changed.replace_attributes(group_name=group_name)


def _code_reference(function: Callable[..., Any]) -> dict[str, Any]:
    """Where the function is written: the UI leads from an asset to it."""
    try:
        file = inspect.getsourcefile(function)
        line = inspect.getsourcelines(function)[1]
    except (OSError, TypeError):  # typed into a console
        return {}
    if file is None:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is beta: nobody's build should end because of it
        here = dg.LocalFileCodeReference(file_path=file, line_number=line, label=function.__name__)
        references = dg.CodeReferencesMetadataValue(code_references=[here])
    return {keys.DAGSTER_CODE_REFERENCES: references}
