"""`@jet_assets`: a pipeline's stateful stages and sinks as one multi-asset."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_specs import build_jet_asset_specs, links_to
from dagster_jet.orchestration.dagster_name import dagster_name
from dagster_jet.orchestration.defined_pipeline import DefinedPipeline
from dagster_jet.orchestration.partition_job import PipelineOfPartition, sample_of
from dagster_jet.orchestration.translator import DagsterJetTranslator
from dagster_jet.pipeline import Pipeline

UNTIL = "until"
"""The run config field that says when a run ends."""
ANEW = "anew"
"""That of a partition's run which says that it does not go on with what was begun."""

_CONFIG_SCHEMA = {
    UNTIL: dg.Field(
        str,
        is_required=False,
        description='When the run ends: "stopped" (until cancelled), "drained", "completed", or a '
        'duration such as "10 minutes". By default "stopped", and "drained" where the run is of '
        'no job of its own, as after "Materialize all".',
    )
}
_PARTITION_CONFIG_SCHEMA = {
    UNTIL: dg.Field(
        str,
        default_value="completed",
        description='When the run ends: "completed" (all input of the partition is read, all '
        'windows are closed), "drained" (windows stay open for more), or a duration.',
    ),
    ANEW: dg.Field(
        bool,
        default_value=False,
        description="Compute the partition from its beginning, as another job. Remove what its "
        "sinks have before: a sink that still has rows of it refuses, or would have them twice.",
    ),
}


def jet_assets(
    *,
    pipeline: Pipeline | PipelineOfPartition,
    partitions_def: dg.PartitionsDefinition | None = None,
    sample_partition: str | None = None,
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

    With partitions each partition is a bounded job of its own, ``<pipeline>@<key>``, with a record,
    state and transactions of its own, beside the others and beside a live job. Its run ends when
    all of its input is read (`until` is "completed" by default). A run that was killed or failed is
    launched again, and goes on. A partition that is complete is not computed again, because its
    rows are in its sinks, unless the run config says `anew`. Supervisors leave such jobs alone.

    Args:
        pipeline: the pipeline; building it runs nothing. With partitions a function from a
            partition's key to its pipeline, which reads that partition's input and writes where no
            other partition does.
        partitions_def: the partitions. A backfill makes a run for each.
        sample_partition: a key to make the assets from; needed only where the partitions are
            dynamic: no key of theirs is known when definitions are loaded.
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

            @jet_assets(
                pipeline=lambda day: delays_of_day(f"data/in/{day}", f"data/out/{day}"),
                partitions_def=dg.DailyPartitionsDefinition("2024-01-01"),
            )
            def delays_by_day(context: dg.AssetExecutionContext, jet: JetResource):
                yield from jet.run(context=context)

    Raises:
        ConfigurationError: partitions without a function, or a function without partitions.
    """
    translator = dagster_jet_translator or DagsterJetTranslator()
    of_partition = None
    if isinstance(pipeline, Pipeline):
        _check_pipeline(pipeline, partitions_def)
    else:
        if partitions_def is None or not callable(pipeline):
            raise ConfigurationError(
                f"pipeline: expected a Pipeline, not {type(pipeline).__name__}: {pipeline!r:.80}",
                cure="Call the function that makes it; with partitions_def, give the function.",
            )
        of_partition = pipeline
        pipeline = sample_of(of_partition, partitions_def, sample_partition)
    defined = DefinedPipeline.of(pipeline, translator, links_to(upstream), of_partition)
    stages = build_jet_asset_specs(pipeline, translator, upstream)
    op_name = dagster_name(pipeline.name) + ("" if of_partition is None else "_partition")
    schema = _CONFIG_SCHEMA if of_partition is None else _PARTITION_CONFIG_SCHEMA

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        takes_config = "config" in inspect.signature(function).parameters
        more: dict[str, Any] = {keys.META_PIPELINE: defined, **_code_reference(function)}
        specs = [_with(spec, more, group_name, owners or (), tags or {}) for spec in stages]
        _check_inputs(pipeline.name, specs)
        return dg.multi_asset(
            specs=specs,
            name=name or op_name,
            can_subset=False,
            partitions_def=partitions_def,
            # Each partition is a job of its own.
            backfill_policy=dg.BackfillPolicy.multi_run(1) if of_partition else None,
            config_schema=None if takes_config else schema,
            pool=pool,
            op_tags=op_tags,
            retry_policy=retry_policy,
        )(function)

    return decorate


def _check_inputs(pipeline: str, specs: Sequence[dg.AssetSpec]) -> None:
    """Dagster names the op's inputs after the keys of assets upstream, and says only that."""
    own = {spec.key for spec in specs}
    for key in sorted({dep.asset_key for spec in specs for dep in spec.deps} - own):
        name = "_".join(key.path).replace("-", "_").replace(".", "_")
        if dagster_name(name) != name:
            raise ConfigurationError(
                f"the asset {key.to_user_string()!r} cannot be an input: Dagster takes ASCII "
                "letters, digits, '_', '-' and '.' there.",
                job=pipeline,
                cure="Rename the source, or give it another key in the translator.",
            )


def _check_pipeline(pipeline: Pipeline, partitions: dg.PartitionsDefinition | None) -> None:
    if partitions is not None:
        raise ConfigurationError(
            "with partitions_def each partition has a pipeline of its own, which reads its input.",
            job=pipeline.name,
            cure="Give pipeline=... a function from a partition's key to its pipeline.",
        )


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
