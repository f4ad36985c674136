"""Defines a pipeline in one `defs.yaml`: assets, job, supervisor or schedule, and checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import dagster as dg
from dagster.components.resolved.core_models import (
    DailyPartitionsDefinitionModel,
    HourlyPartitionsDefinitionModel,
    OpSpec,
    StaticPartitionsDefinitionModel,
    TimeWindowPartitionsDefinitionModel,
    WeeklyPartitionsDefinitionModel,
    resolve_partitions_def,
)
from dagster.components.scaffold.scaffold import scaffold_with
from dagster.components.utils.translation import ResolvedTranslationFn
from pydantic import ConfigDict

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration.asset_checks import build_jet_asset_checks
from dagster_jet.orchestration.asset_decorator import code_reference, jet_assets
from dagster_jet.orchestration.asset_job import build_jet_job
from dagster_jet.orchestration.asset_specs import build_jet_source_assets
from dagster_jet.orchestration.check_schedule import EVERY_HALF_HOUR, build_jet_check_schedule
from dagster_jet.orchestration.component_settings import (
    CheckSettings,
    FreshnessSettings,
    RetrySettings,
    SupervisorSettings,
    described,
    resolved_arguments,
    resolved_resource,
)
from dagster_jet.orchestration.control_job import build_jet_control_job
from dagster_jet.orchestration.dagster_name import dagster_name
from dagster_jet.orchestration.demo_mode import in_demo_mode
from dagster_jet.orchestration.drained_schedule import build_jet_schedule
from dagster_jet.orchestration.event_iterator import JetEvent
from dagster_jet.orchestration.lake_maintenance import build_jet_lake_maintenance
from dagster_jet.orchestration.partition_job import job_of_partition, sample_of
from dagster_jet.orchestration.pipeline_scaffolder import PipelineScaffolder
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.sensor import build_jet_supervisor_sensor
from dagster_jet.orchestration.translator import DagsterJetTranslator, JetStageData
from dagster_jet.pipeline import Pipeline
from dagster_jet.pipeline.reference import located, pipeline_in

_PARTITIONS = (
    HourlyPartitionsDefinitionModel
    | DailyPartitionsDefinitionModel
    | WeeklyPartitionsDefinitionModel
    | TimeWindowPartitionsDefinitionModel
    | StaticPartitionsDefinitionModel
)


class _Translator(DagsterJetTranslator):
    """Asks a component, whose subclass may change the specs."""

    def __init__(self, component: JetPipelineComponent) -> None:
        self._component = component

    def get_asset_spec(self, data: JetStageData) -> dg.AssetSpec:
        return self._component.get_asset_spec(data)


@scaffold_with(PipelineScaffolder)
class JetPipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """A streaming pipeline with its assets, job, control job, supervisor or schedule, and checks.

    The pipeline itself is Python code. It runs on the project's resource `jet`, or on a resource of
    its own that is defined here. `translation` sets keys, owners, tags and similar properties of
    each asset.

    Example:
        .. code-block:: yaml

            type: dagster_jet.JetPipelineComponent
            attributes:
              pipeline: pipeline.py:airport_delays
              arguments: {inbox: data/in, out: data/out}
              supervisor: running
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)

    pipeline: Annotated[
        str,
        described(
            "`package.module:name`, or `file.py:name` for a file in this folder: a Pipeline, or a "
            "function that returns one. With `partitions` the function's first argument is the key "
            "of a partition.",
            "pipeline.py:airport_delays",
        ),
    ]
    arguments: Annotated[
        dict[str, Any],
        dg.Resolver(
            resolved_arguments,
            model_field_type=dict[str, Any],
            description="Arguments of the function, by name. `{{ env.NAME }}` is the value of a "
            "variable of the environment; `{{ secret.NAME }}` is a `Secret`, which is read where "
            "it is used.",
            examples=[{"inbox": "data/in", "password": "{{ secret.KAFKA_PASSWORD }}"}],
        ),
    ] = {}  # noqa: RUF012  # pydantic copies it
    supervisor: Annotated[
        Literal["stopped", "running", "off", False] | SupervisorSettings,  # YAML: off is False
        described(
            "The sensor that keeps the pipeline running: whether it is on when it is first loaded, "
            "or is not created; or its settings.",
            "running",
            {"status": "running", "minimum_interval_seconds": 30},
        ),
    ] = "stopped"
    schedule: Annotated[
        str | None,
        described(
            "A cron schedule of runs that read the available input and end. Such a pipeline has no "
            "supervisor.",
            "*/15 * * * *",
        ),
    ] = None
    partitions: Annotated[
        dg.PartitionsDefinition | None,
        dg.Resolver(
            resolve_partitions_def,
            model_field_type=_PARTITIONS,
            description="Each partition is a bounded job of its own. There is no supervisor, and "
            "there are no checks.",
            examples=[{"type": "daily", "start_date": "2026-01-01"}],
        ),
    ] = None
    checks: Annotated[
        bool | CheckSettings,
        described(
            "Whether the assets have asset checks; or the settings of the checks.",
            {"max_snapshot_age": "1 hour"},
        ),
    ] = True
    lake_maintenance: Annotated[
        str | None,
        described(
            "A cron schedule of the maintenance of tables of Delta Lake and Iceberg, beside the "
            "stream: compaction, expiry, removal of old files. It is on when it is first loaded.",
            "0 3 * * *",
        ),
    ] = None
    control: Annotated[
        bool,
        described(
            "Whether a control job is created: its launchpad suspends, resumes, restarts or ends "
            "the stream, or exports a snapshot.",
            False,
        ),
    ] = True
    group_name: Annotated[
        str | None, described("The asset group of the pipeline's assets.", "flights")
    ] = None
    translation: Annotated[
        ResolvedTranslationFn[JetStageData],
        described(
            "Changes of each asset: `data` is the stage, `spec` its asset by default.",
            {"key_prefix": "flights", "description": "{{ data.stage }}"},
        ),
    ] = None
    automation_condition: Annotated[
        dg.AutomationCondition[Any] | None,
        described(
            "The condition that launches runs of all assets.",
            "{{ automation_condition.on_cron('@daily') }}",
            type=str | None,
        ),
    ] = None
    freshness_policy: Annotated[
        FreshnessSettings | None,
        described(
            "A freshness policy of all assets.",
            {"fail_window": "1 hour", "warn_window": "30 minutes"},
        ),
    ] = None
    op: Annotated[
        OpSpec | None,
        described(
            "Properties of the op: name, tags, pool, description, backfill policy.",
            {"tags": {"dagster-k8s/config": {}}, "pool": "spark"},
        ),
    ] = None
    retry_policy: Annotated[
        RetrySettings | None,
        described(
            "Restarts a step process that died, within the same run.",
            {"max_retries": 10, "delay": 1},
        ),
    ] = None
    hooks: Annotated[
        list[str],
        described(
            "Hooks of the op: `package.module:name`, or `file.py:name` for a file in this folder.",
            ["alerts.py:tell_us"],
        ),
    ] = []  # noqa: RUF012
    resource: Annotated[
        dict[str, Any] | None,
        dg.Resolver(
            resolved_resource,
            model_field_type=dict[str, Any] | None,
            description="Settings of a `JetResource` of this pipeline alone, which becomes the "
            "resource `jet_<pipeline>`, or `jet_<pipeline>_partition`. Leave it out to use the "
            "project's resource `jet`. `{{ env.NAME }}` is read in the run and by "
            "workers; the UI shows the name.",
            examples=[{"store": ["{{ env.JET_STORE }}"], "backup_count": 0}],
        ),
    ] = None
    demo_mode: Annotated[
        bool,
        described(
            "Run the pipeline on generated rows, into JSON files and a store below `demo/` of the "
            "project, without any server; `resource` is not used.",
            True,
        ),
    ] = False

    def get_asset_spec(self, data: JetStageData) -> dg.AssetSpec:
        """Return the asset of one stage; subclasses may override it.

        Args:
            data: the stage.
        """
        spec = DagsterJetTranslator().get_asset_spec(data)
        return spec if self.translation is None else self.translation(spec, data)

    def execute(self, context: dg.AssetExecutionContext, jet: JetResource) -> Iterator[JetEvent]:
        """Run the pipeline; subclasses may override it."""
        yield from jet.run(context=context)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return all definitions of the pipeline.

        Raises:
            ConfigurationError: the pipeline is missing or cannot be built, a setting is wrong, or
                another component has a pipeline of the same name.
        """
        self._check()
        module, name = self._place(context, self.pipeline)
        demo = context.project_root / "demo"
        pipeline, translator = self._pipeline(module, name, demo), _Translator(self)
        own_name = self._own_name(context, pipeline)
        resources = self._resources(own_name, demo)
        (jet,) = resources or ("jet",)
        written = getattr(module, name)
        source = code_reference(written if inspect.isfunction(written) else module)

        op, retries = self.op or OpSpec(), self.retry_policy
        assets = jet_assets(
            pipeline=pipeline,
            partitions_def=self.partitions,
            dagster_jet_translator=translator,
            group_name=self.group_name,
            name=op.name,
            description=op.description,
            op_tags=op.tags,
            pool=op.pool,
            backfill_policy=op.backfill_policy,
            retry_policy=None if retries is None else retries.policy(),
            hooks={self._hook(context, each) for each in self.hooks},
        )(self._run(jet)).map_asset_specs(lambda spec: self._with_conditions(spec, source))
        job = build_jet_job(assets)
        if not isinstance(pipeline, Pipeline):
            return dg.Definitions(assets=[assets], jobs=[job], resources=resources)
        checks = self._checks(assets, jet)
        made = dg.Definitions(
            assets=[assets, *build_jet_source_assets(pipeline, translator)],
            asset_checks=checks,
            jobs=[job, build_jet_control_job(pipeline, jet=jet)] if self.control else [job],
            sensors=self._supervisors(job, pipeline, jet),
            schedules=[*self._schedules(assets, jet), *self._check_schedules(checks)],
            resources=resources,
        )
        cron = self.lake_maintenance
        if cron is None or self.demo_mode:  # the demo has files only
            return made
        return dg.Definitions.merge(
            made, build_jet_lake_maintenance(assets, jet=jet, cron_schedule=cron)
        )

    def _own_name(
        self, context: dg.ComponentLoadContext, pipeline: Pipeline | Callable[[str], Pipeline]
    ) -> str:
        """Returns the name from which those of the op and the resource are made.

        Raises:
            ConfigurationError: another component of the code location has it.
        """
        if isinstance(pipeline, Pipeline):
            name = own = pipeline.name
        else:
            assert self.partitions is not None
            name = sample_of(pipeline, self.partitions, None).name
            own = f"{name}_partition"  # a stream may have the same pipeline
        _check_name(context, name, dagster_name(own))
        return dagster_name(own)

    def _run(self, jet: str) -> Callable[..., Iterator[JetEvent]]:
        """Returns the function of the assets; its second parameter is named like the resource."""

        def run(context, **resources):  # type: ignore[no-untyped-def]
            yield from self.execute(context, resources[jet])

        # Real classes, not this module's string annotations: Dagster reads them from the function.
        types = {"context": dg.AssetExecutionContext, jet: JetResource}
        run.__annotations__ = types
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind, annotation=t) for name, t in types.items()]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return run

    def _check(self) -> None:
        """Refuses settings of streams beside partitions."""
        if self.partitions is not None and self.schedule is not None:
            raise ConfigurationError(
                "schedule: a schedule of drained runs is for a stream, and each partition is a job "
                "of its own.",
                cure="Give an automation_condition, for example "
                "{{ automation_condition.on_cron('@daily') }}.",
            )
        if self.partitions is not None and self.lake_maintenance is not None:
            raise ConfigurationError(
                "lake_maintenance: it is for tables of a stream, and each partition is a job of "
                "its own.",
                cure="Maintain the tables by an asset of your own.",
            )

    def _pipeline(
        self, module: ModuleType, name: str, demo: Path
    ) -> Pipeline | Callable[[str], Pipeline]:
        def of(*key: str) -> Pipeline:
            found = pipeline_in(module, name, self.arguments, key)
            if not self.demo_mode:
                return found
            if not key:
                return in_demo_mode(found, str(demo / found.name))
            # The job of a partition ends when it has read the rows that are there.
            return in_demo_mode(found, str(demo / job_of_partition(found.name, *key)), rate=None)

        return of() if self.partitions is None else of

    def _with_conditions(self, spec: dg.AssetSpec, source: dict[str, Any]) -> dg.AssetSpec:
        changed = spec.replace_attributes(metadata={**spec.metadata, **source})
        if self.automation_condition is not None:
            changed = changed.replace_attributes(automation_condition=self.automation_condition)
        if self.freshness_policy is not None:
            changed = changed.replace_attributes(freshness_policy=self.freshness_policy.policy())
        return changed

    def _hook(self, context: dg.ComponentLoadContext, reference: str) -> dg.HookDefinition:
        module, name = self._place(context, reference)
        found = getattr(module, name, None)
        if not isinstance(found, dg.HookDefinition):
            raise ConfigurationError(f"hooks: {reference!r} is not a hook of Dagster.")
        return found

    def _resources(self, own_name: str, demo: Path) -> dict[str, JetResource]:
        """Returns the resource of this pipeline alone, or nothing: then it has the project's."""
        settings = self.resource
        if self.demo_mode:
            demo.mkdir(exist_ok=True)  # a store is never created below a missing folder
            spark = {"spark.master": "local[2]"}
            store = [(demo / "store").as_uri()]
            settings = {"store": store, "backup_count": 0, "spark_config": spark}
        return {} if settings is None else {f"jet_{own_name}": JetResource(**settings)}

    def _supervisors(self, job: Any, pipeline: Pipeline, jet: str) -> list[dg.SensorDefinition]:
        asked = self.supervisor
        if self.schedule is not None or asked is False or asked == "off":
            return []
        settings = (
            asked if isinstance(asked, SupervisorSettings) else SupervisorSettings(status=asked)
        )
        status = dg.DefaultSensorStatus[settings.status.upper()]
        return [
            build_jet_supervisor_sensor(
                job=job,
                pipeline=pipeline,
                jet=jet,
                default_status=status,
                **settings.given(),
            )
        ]

    def _schedules(self, assets: dg.AssetsDefinition, jet: str) -> list[dg.ScheduleDefinition]:
        if self.schedule is None:
            return []
        return [build_jet_schedule(assets, cron_schedule=self.schedule, jet=jet)]

    def _check_schedules(
        self, checks: list[dg.AssetChecksDefinition]
    ) -> list[dg.ScheduleDefinition]:
        cron = self.checks.schedule if isinstance(self.checks, CheckSettings) else EVERY_HALF_HOUR
        if cron is None:
            return []
        asked = self.supervisor
        status = asked.status if isinstance(asked, SupervisorSettings) else asked
        is_on = self.schedule is not None or status == "running"
        on, off = dg.DefaultScheduleStatus.RUNNING, dg.DefaultScheduleStatus.STOPPED
        return [
            build_jet_check_schedule(each, cron_schedule=cron, default_status=on if is_on else off)
            for each in checks
        ]

    def _checks(self, assets: dg.AssetsDefinition, jet: str) -> list[dg.AssetChecksDefinition]:
        if self.checks is False:
            return []
        settings = self.checks.given() if isinstance(self.checks, CheckSettings) else {}
        if isinstance(self.supervisor, SupervisorSettings):
            settings |= self.supervisor.given("stuck_after_seconds", "give_up_after")
        return [build_jet_asset_checks(assets, jet=jet, **settings)]

    @staticmethod
    def _place(context: dg.ComponentLoadContext, reference: str) -> tuple[ModuleType, str]:
        """Returns the module and the name that a reference in YAML means."""
        where, _, name = reference.partition(":")
        if not where.endswith(".py"):
            return located(reference)
        if not (context.path / where).is_file():
            raise ConfigurationError(
                f"{reference!r}: there is no file {where!r} beside this component.",
                cure="Correct the name, or write package.module:name.",
            )
        return context.load_defs_relative_python_module(Path(where)), name


def _check_name(context: dg.ComponentLoadContext, pipeline: str, in_dagster: str) -> None:
    """Refuses a pipeline whose jobs and sensors are named like those of another component.

    Dagster says "duplicate definition" much later, and names no component. The names are kept with
    the tree of components, which is made anew when a code location is loaded.
    """
    here = context.component_path.get_relative_key(context.defs_module_path)
    names = vars(context.component_tree).setdefault("dagster_jet_pipelines", {})
    other, there = names.setdefault(in_dagster, (pipeline, here))
    if here != there:
        raise ConfigurationError(
            f"the component {there!r} defines the pipeline {other!r}, and the component {here!r} "
            f"defines {pipeline!r}: both have the name {in_dagster!r} in Dagster, so "
            "their jobs and sensors would be defined twice.",
            job=pipeline,
            cure="Give one of the two pipelines another name: Pipeline(name).",
        )
