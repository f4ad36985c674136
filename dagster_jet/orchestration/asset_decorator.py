"""`@jet_assets`: a pipeline's stateful stages and sinks as one multi-asset."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from functools import wraps
from types import ModuleType
from typing import Any

import dagster as dg

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_specs import build_jet_asset_specs, links_to
from dagster_jet.orchestration.dagster_name import dagster_name, given_name
from dagster_jet.orchestration.defined_pipeline import DefinedPipeline
from dagster_jet.orchestration.event_iterator import JetEvent, JetEventIterator
from dagster_jet.orchestration.job_watch import as_failure
from dagster_jet.orchestration.partition_job import PipelineOfPartition, sample_of
from dagster_jet.orchestration.run_config import PARTITION_SCHEMA, STREAM_SCHEMA
from dagster_jet.orchestration.translator import DagsterJetTranslator
from dagster_jet.pipeline import Pipeline


def jet_assets(
    *,
    pipeline: Pipeline | PipelineOfPartition,
    partitions_def: dg.PartitionsDefinition | None = None,
    sample_partition: str | None = None,
    backfill_policy: dg.BackfillPolicy | None = None,
    dagster_jet_translator: DagsterJetTranslator | None = None,
    name: str | None = None,
    description: str | None = None,
    group_name: str | None = None,
    owners: Sequence[str] | None = None,
    tags: Mapping[str, str] | None = None,
    upstream: Sequence[dg.AssetsDefinition] = (),
    pool: str | None = None,
    op_tags: Mapping[str, Any] | None = None,
    retry_policy: dg.RetryPolicy | None = None,
    hooks: Set[dg.HookDefinition] = frozenset(),
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Returns a decorator that turns a function which runs a pipeline into the pipeline's assets.

    There is one asset per stateful stage and per sink. Sources are external assets
    (`build_jet_source_assets`). All assets are outputs of one op and are materialized together,
    because one streaming job writes them at one cut.

    The run config accepts `until` and the options of one start (`initial_snapshot`,
    `repeat_output`, `accept_loss`, `refused_to_dead_letters`, `renamed`, `dropped_state`; of a
    stream also `standby`), unless the function has a `config` parameter of its own.

    With partitions, each partition is a bounded job ``<pipeline>@<key>`` with its own record, state
    and transactions. It runs beside the other partitions and beside a live job. Its run ends when
    all of its input is read (`until` defaults to "completed"). If a run was killed or failed, the
    next run continues its work. A completed partition is not computed again, because its rows are
    in its sinks, unless the run config sets `anew`, which replaces them. Supervisors ignore
    these jobs.

    Args:
        pipeline: the pipeline; building it runs nothing. With partitions, a function from a
            partition key to the pipeline of that partition. That pipeline must read the partition's
            input and write where no other partition writes.
        partitions_def: the partitions.
        backfill_policy: by default a backfill creates one run per partition, which may run beside
            each other. With ``BackfillPolicy.single_run()`` one run computes them one after
            another, on one Spark.
        sample_partition: a key to build the assets from. Needed only for dynamic partitions, which
            have no known key when definitions are loaded.
        dagster_jet_translator: determines keys, groups, kinds and other properties per stage.
        name: name of the op; by default the pipeline's.
        description: description of the op.
        group_name: overrides the translator's groups.
        owners: owners of all assets, in addition to the translator's.
        tags: tags of all assets, in addition to the translator's.
        upstream: assets of other pipelines. A source that reads what one of their sinks writes is
            replaced by that sink in the lineage.
        pool: a Dagster pool. Exclusivity does not need one: the job's lease ensures it. A killed
            run may keep its pool slot.
        op_tags: tags of the op.
        retry_policy: restarts a step process that died, within the same run. Useful with executors
            that run steps in separate processes (`build_jet_job` then chooses such an executor).
        hooks: hooks of the op, called when a run of it has succeeded or failed.

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
        ConfigurationError: partitions without a function, or a function without partitions; the
            name is empty.
    """
    translator = dagster_jet_translator or DagsterJetTranslator()
    of_partition = None
    if isinstance(pipeline, Pipeline):
        if partitions_def is not None:
            raise ConfigurationError(
                "with partitions_def each partition has a pipeline of its own, which reads its "
                "input.",
                job=pipeline.name,
                cure="Give pipeline=... a function from a partition's key to its pipeline.",
            )
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
    of_what = "" if of_partition is None else "_partition"
    op_name = given_name(name, f"{dagster_name(pipeline.name)}{of_what}")
    schema = STREAM_SCHEMA if of_partition is None else PARTITION_SCHEMA

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        takes_config = "config" in inspect.signature(function).parameters
        more: dict[str, Any] = {keys.META_PIPELINE: defined, **code_reference(function)}
        specs = [_with(spec, more, group_name, owners or (), tags or {}) for spec in stages]
        _check_inputs(pipeline.name, specs)
        return dg.multi_asset(
            specs=specs,
            name=op_name,
            description=description,
            can_subset=False,
            partitions_def=partitions_def,
            backfill_policy=backfill_policy
            or (dg.BackfillPolicy.multi_run(1) if of_partition else None),
            config_schema=None if takes_config else schema,
            pool=pool,
            op_tags=op_tags,
            retry_policy=retry_policy,
            hooks=set(hooks),
        )(_running(function, pipeline.name))

    return decorate


def _running(function: Callable[..., Any], pipeline: str) -> Callable[..., Any]:
    """Returns the function with a check that it runs something: without ``yield from`` it would
    return None, and its step would be green."""
    is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
    if is_generator or inspect.iscoroutinefunction(function):
        return function

    @wraps(function)
    def checked(*arguments: Any, **more: Any) -> Any:
        events = function(*arguments, **more)
        if events is None:
            raise as_failure(
                ConfigurationError(
                    f"the function {function.__name__!r} of its assets returned no events, so the "
                    "pipeline did not run.",
                    job=pipeline,
                    cure="Write: yield from jet.run(context=context).",
                )
            )
        return _generator(events) if isinstance(events, JetEventIterator) else events

    return checked


def _generator(events: JetEventIterator) -> Generator[JetEvent, None, None]:
    """Dagster iterates over no other kind of iterator that a function returns."""
    yield from events


def _check_inputs(pipeline: str, specs: Sequence[dg.AssetSpec]) -> None:
    """Refuses upstream keys that are not valid as input names, with a clearer error than
    Dagster's."""
    own = {spec.key for spec in specs}
    for key in sorted({dep.asset_key for spec in specs for dep in spec.deps} - own):
        name = "_".join(key.path).replace("-", "_").replace(".", "_")
        if dagster_name(name) != name:
            raise ConfigurationError(
                f"the asset {key.to_user_string()!r} cannot be an input: its key may contain "
                "only ASCII letters, digits, '_', '-' and '.'.",
                job=pipeline,
                cure="Rename the source, or give it another key in the translator.",
            )


def _with(
    spec: dg.AssetSpec,
    more: Mapping[str, Any],
    group_name: str | None,
    owners: Sequence[str],
    tags: Mapping[str, str],
) -> dg.AssetSpec:
    """Merges stage properties: the translator's win, except for the group."""
    changed = spec.replace_attributes(
        metadata={**more, **spec.metadata, keys.META_PIPELINE: more[keys.META_PIPELINE]},
        owners=list(dict.fromkeys([*spec.owners, *owners])),
        tags={**tags, **spec.tags},
    )
    return changed if group_name is None else changed.replace_attributes(group_name=group_name)


def code_reference(function: Callable[..., Any] | ModuleType) -> dict[str, Any]:
    """Returns metadata with the source location of a function, which the UI links to."""
    try:
        file = inspect.getsourcefile(function)
        line = inspect.getsourcelines(function)[1] or 1  # 0 for a module
    except (OSError, TypeError):  # typed into a console
        return {}
    if file is None:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a beta API; its warning must not fail a build
        here = dg.LocalFileCodeReference(file_path=file, line_number=line, label=function.__name__)
        references = dg.CodeReferencesMetadataValue(code_references=[here])
    return {keys.DAGSTER_CODE_REFERENCES: references}
