"""Defines a pipeline in one `defs.yaml`: assets, job, supervisor or schedule, and checks."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import dagster as dg
from dagster.components.scaffold.scaffold import scaffold_with
from pydantic import ConfigDict, Field

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration.asset_checks import build_jet_asset_checks
from dagster_jet.orchestration.asset_decorator import code_reference, jet_assets
from dagster_jet.orchestration.asset_job import build_jet_job
from dagster_jet.orchestration.asset_specs import build_jet_source_assets
from dagster_jet.orchestration.check_schedule import EVERY_HALF_HOUR, build_jet_check_schedule
from dagster_jet.orchestration.control_job import build_jet_control_job
from dagster_jet.orchestration.drained_schedule import build_jet_schedule
from dagster_jet.orchestration.event_iterator import JetEvent
from dagster_jet.orchestration.pipeline_scaffolder import PipelineScaffolder
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.sensor import build_jet_supervisor_sensor
from dagster_jet.orchestration.translator import DagsterJetTranslator
from dagster_jet.pipeline import Pipeline
from dagster_jet.pipeline.reference import located, pipeline_in

_SENSOR_STATUS = {
    "stopped": dg.DefaultSensorStatus.STOPPED,
    "running": dg.DefaultSensorStatus.RUNNING,
}


class SupervisorSettings(dg.Model, dg.Resolvable):
    """Settings of the supervisor sensor; defaults are those of `build_jet_supervisor_sensor`."""

    model_config = ConfigDict(extra="forbid")

    status: Annotated[
        Literal["stopped", "running"],
        Field(description="Whether the sensor is on when it is first loaded."),
    ] = "stopped"
    minimum_interval_seconds: Annotated[
        int | None, Field(description="Seconds between two ticks.")
    ] = None
    start_timeout_seconds: Annotated[
        float | None,
        Field(description="Seconds that a requested run may take until it runs the job."),
    ] = None
    backoff_initial_seconds: Annotated[
        float | None, Field(description="The first pause after a run without progress; it doubles.")
    ] = None
    backoff_max_seconds: Annotated[
        float | None, Field(description="The longest pause between two runs without progress.")
    ] = None
    give_up_after: Annotated[
        int | None,
        Field(
            description="Number of runs in a row without progress after which the supervisor "
            "gives up; the checks use it, too."
        ),
    ] = None
    stuck_after_seconds: Annotated[
        float | None,
        Field(
            description="Seconds that a job may spend in one activity before it counts as stuck; "
            "the checks use it, too."
        ),
    ] = None
    max_run_age_seconds: Annotated[
        float | None,
        Field(
            description="Maximum age of a run: an older run ends with a snapshot, and the next "
            "run continues."
        ),
    ] = None

    follow_definition: Annotated[
        Literal["off", "stages", "whole"] | None,
        Field(
            description="Which differences between the loaded pipeline and the running one end a "
            "run, so that the next one follows: none, those of the stages and their state (the "
            "default), or also those of expressions, connectors, settings and functions."
        ),
    ] = None

    def given(self, *names: str) -> dict[str, Any]:
        """Returns the settings that were given, restricted to `names` unless it is empty."""
        return self.model_dump(exclude={"status"}, include=set(names) or None, exclude_none=True)


class CheckSettings(dg.Model, dg.Resolvable):
    """Settings of the asset checks; defaults are those of `build_jet_asset_checks`."""

    model_config = ConfigDict(extra="forbid")

    schedule: Annotated[
        str | None,
        Field(
            description="A cron schedule of the checks. It is on when it is first loaded if the "
            "supervisor is, or if the pipeline has a schedule. null: no schedule."
        ),
    ] = EVERY_HALF_HOUR
    max_snapshot_age: Annotated[
        str | None, Field(description='Maximum age of the last snapshot, for example "10 minutes".')
    ] = None
    max_watermark_lag: Annotated[
        str | None, Field(description="Maximum lag of event time behind the clock.")
    ] = None
    max_late_ratio: Annotated[
        float | None,
        Field(description="Maximum share of a stage's rows that are late, behind the watermark."),
    ] = None
    max_rejected_ratio: Annotated[
        float | None,
        Field(description="Maximum share of the sources' rows that do not fit their schema."),
    ] = None

    def given(self) -> dict[str, Any]:
        """Returns the settings that were given, as arguments of `build_jet_asset_checks`."""
        return self.model_dump(exclude={"schedule"}, exclude_none=True)


@scaffold_with(PipelineScaffolder)
class JetPipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """A streaming pipeline with its assets, job, control job, supervisor or schedule, and checks.

    The pipeline itself is Python code. It runs on the project's resource `jet`, or on one that is
    defined here. Use Dagster's `post_processing` to set owners, tags and similar properties.

    Example:
        .. code-block:: yaml

            type: dagster_jet.JetPipelineComponent
            attributes:
              pipeline: pipeline.py:airport_delays
              arguments: {inbox: data/in, out: data/out}
              supervisor: running
    """

    model_config = ConfigDict(extra="forbid")

    pipeline: Annotated[
        str,
        Field(
            description="`package.module:name`, or `file.py:name` for a file in this folder: a "
            "Pipeline, or a function that returns one."
        ),
    ]
    arguments: Annotated[
        dict[str, Any], Field(description="Arguments of the function, by name.")
    ] = {}  # noqa: RUF012  # pydantic copies it
    supervisor: Annotated[
        Literal["stopped", "running", "off"] | SupervisorSettings,
        Field(
            description="The sensor that keeps the pipeline running: whether it is on when it is "
            "first loaded, or is not created; or its settings."
        ),
    ] = "stopped"
    schedule: Annotated[
        str | None,
        Field(
            description="A cron schedule of runs that read the available input and end. Such a "
            "pipeline has no supervisor."
        ),
    ] = None
    checks: Annotated[
        bool | CheckSettings,
        Field(description="Whether the assets have asset checks; or the settings of the checks."),
    ] = True
    control: Annotated[
        bool,
        Field(
            description="Whether a control job is created: its launchpad suspends, resumes, "
            "restarts or ends the stream, or exports a snapshot."
        ),
    ] = True
    group_name: Annotated[
        str | None, Field(description="The asset group of the pipeline's assets.")
    ] = None
    resource: Annotated[
        dict[str, Any] | None,
        Field(
            description="Settings of a `JetResource`, which becomes the resource `jet`. Components "
            "with equal settings share it. Leave it out if the project defines the resource `jet`."
        ),
    ] = None

    def translator(self) -> DagsterJetTranslator:
        """Return the translator of keys, groups and kinds; subclasses may override it."""
        return DagsterJetTranslator()

    def execute(self, context: dg.AssetExecutionContext, jet: JetResource) -> Iterator[JetEvent]:
        """Run the pipeline; subclasses may override it."""
        yield from jet.run(context=context)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return all definitions of the pipeline.

        Raises:
            ConfigurationError: the pipeline is missing or cannot be built, or a setting is wrong.
        """
        module, name = self._place(context)
        pipeline, translator = pipeline_in(module, name, self.arguments), self.translator()
        written = getattr(module, name)
        source = code_reference(written if inspect.isfunction(written) else module)

        def run(context, jet):  # type: ignore[no-untyped-def]
            yield from self.execute(context, jet)

        # Real classes, not this module's string annotations: Dagster reads them from the function.
        run.__annotations__ = {"context": dg.AssetExecutionContext, "jet": JetResource}
        assets = jet_assets(
            pipeline=pipeline, dagster_jet_translator=translator, group_name=self.group_name
        )(run).map_asset_specs(
            lambda spec: spec.replace_attributes(metadata={**spec.metadata, **source})
        )
        job, checks = build_jet_job(assets), self._checks(assets)
        return dg.Definitions(
            assets=[assets, *build_jet_source_assets(pipeline, translator)],
            asset_checks=checks,
            jobs=[job, build_jet_control_job(pipeline)] if self.control else [job],
            sensors=self._supervisors(job, pipeline),
            schedules=[*self._schedules(assets), *self._check_schedules(checks)],
            resources={} if self.resource is None else {"jet": _shared(self.resource)},
        )

    def _supervisors(self, job: Any, pipeline: Pipeline) -> list[dg.SensorDefinition]:
        if self.schedule is not None or self.supervisor == "off":
            return []
        asked = self.supervisor
        settings = (
            asked if isinstance(asked, SupervisorSettings) else SupervisorSettings(status=asked)
        )
        status = _SENSOR_STATUS[settings.status]
        return [
            build_jet_supervisor_sensor(
                job=job, pipeline=pipeline, default_status=status, **settings.given()
            )
        ]

    def _schedules(self, assets: dg.AssetsDefinition) -> list[dg.ScheduleDefinition]:
        if self.schedule is None:
            return []
        return [build_jet_schedule(assets, cron_schedule=self.schedule)]

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

    def _checks(self, assets: dg.AssetsDefinition) -> list[dg.AssetChecksDefinition]:
        if self.checks is False:
            return []
        settings = self.checks.given() if isinstance(self.checks, CheckSettings) else {}
        if isinstance(self.supervisor, SupervisorSettings):
            settings |= self.supervisor.given("stuck_after_seconds", "give_up_after")
        return [build_jet_asset_checks(assets, **settings)]

    def _place(self, context: dg.ComponentLoadContext) -> tuple[ModuleType, str]:
        where, _, name = self.pipeline.partition(":")
        if not where.endswith(".py"):
            return located(self.pipeline)
        if not (context.path / where).is_file():
            raise ConfigurationError(
                f"pipeline: {self.pipeline!r}: there is no file {where!r} beside this component.",
                cure="Correct the name, or write package.module:name.",
            )
        return context.load_defs_relative_python_module(Path(where)), name


_RESOURCES: dict[str, JetResource] = {}


def _shared(settings: dict[str, Any]) -> JetResource:
    """Returns one object for equal settings: Dagster refuses two objects with one resource key."""
    key = json.dumps(settings, sort_keys=True, default=repr)
    return _RESOURCES.setdefault(key, JetResource(**settings))
