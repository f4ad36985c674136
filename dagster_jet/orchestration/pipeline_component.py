"""A pipeline as YAML: its assets, its job, who starts it, and its checks, in one `defs.yaml`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import dagster as dg
from dagster.components.scaffold.scaffold import scaffold_with
from pydantic import ConfigDict, Field

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration.asset_checks import build_jet_asset_checks
from dagster_jet.orchestration.asset_decorator import jet_assets
from dagster_jet.orchestration.asset_job import build_jet_job
from dagster_jet.orchestration.asset_specs import build_jet_source_assets
from dagster_jet.orchestration.control_job import build_jet_control_job
from dagster_jet.orchestration.drained_schedule import build_jet_schedule
from dagster_jet.orchestration.pipeline_scaffolder import PipelineScaffolder
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.sensor import build_jet_supervisor_sensor
from dagster_jet.orchestration.translator import DagsterJetTranslator
from dagster_jet.pipeline import Pipeline
from dagster_jet.pipeline.reference import load_pipeline, pipeline_in

_SENSOR_STATUS = {
    "stopped": dg.DefaultSensorStatus.STOPPED,
    "running": dg.DefaultSensorStatus.RUNNING,
}


@scaffold_with(PipelineScaffolder)
class JetPipelineComponent(dg.Component, dg.Model, dg.Resolvable):
    """A streaming pipeline with its assets, job, control job, supervisor or schedule, and checks.

    The pipeline itself is Python. It runs on the resource `jet` of the project, or on one that is
    defined here. Owners, tags and the like are set by Dagster's own `post_processing`.

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
            description="`package.module:name`, or `file.py:name` of a file beside this one: a "
            "Pipeline, or a function that makes one."
        ),
    ]
    arguments: Annotated[
        dict[str, Any], Field(description="What the function is called with.")
    ] = {}  # noqa: RUF012  # pydantic copies it
    supervisor: Annotated[
        Literal["stopped", "running", "off"],
        Field(
            description="The sensor that keeps the pipeline running: whether it is on when first "
            "loaded, or not there."
        ),
    ] = "stopped"
    schedule: Annotated[
        str | None,
        Field(
            description="A cron schedule of runs that read what is there and end. Such a pipeline "
            "has no supervisor."
        ),
    ] = None
    checks: Annotated[bool, Field(description="Whether it has asset checks.")] = True
    control: Annotated[
        bool,
        Field(
            description="Whether it has a job whose launchpad suspends, resumes, restarts or ends "
            "the stream, or exports a snapshot of it."
        ),
    ] = True
    group_name: Annotated[str | None, Field(description="The group of its assets.")] = None
    resource: Annotated[
        dict[str, Any] | None,
        Field(
            description="Settings of a `JetResource`, which becomes the resource `jet`. Leave it "
            "out where the project defines that one for all its pipelines."
        ),
    ] = None

    def translator(self) -> DagsterJetTranslator:
        """Return what decides keys, groups and kinds; for subclasses."""
        return DagsterJetTranslator()

    def execute(
        self, context: dg.AssetExecutionContext, jet: JetResource
    ) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
        """Run the pipeline; for subclasses."""
        yield from jet.run(context=context)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return all of its definitions.

        Raises:
            ConfigurationError: the pipeline is not there or cannot be made, or a setting is wrong.
        """
        pipeline, translator = self._pipeline(context), self.translator()

        def run(context, jet):  # type: ignore[no-untyped-def]
            yield from self.execute(context, jet)

        # Not in this module's string form: Dagster reads the classes from the function.
        run.__annotations__ = {"context": dg.AssetExecutionContext, "jet": JetResource}
        assets = jet_assets(
            pipeline=pipeline, dagster_jet_translator=translator, group_name=self.group_name
        )(run)
        job = build_jet_job(assets)
        return dg.Definitions(
            assets=[assets, *build_jet_source_assets(pipeline, translator)],
            asset_checks=[build_jet_asset_checks(assets)] if self.checks else [],
            jobs=[job, build_jet_control_job(pipeline)] if self.control else [job],
            sensors=self._supervisors(job, pipeline),
            schedules=[build_jet_schedule(assets, cron_schedule=self.schedule)]
            if self.schedule is not None
            else [],
            resources={} if self.resource is None else {"jet": JetResource(**self.resource)},
        )

    def _supervisors(self, job: Any, pipeline: Pipeline) -> list[dg.SensorDefinition]:
        if self.schedule is not None or self.supervisor == "off":
            return []
        status = _SENSOR_STATUS[self.supervisor]
        return [build_jet_supervisor_sensor(job=job, pipeline=pipeline, default_status=status)]

    def _pipeline(self, context: dg.ComponentLoadContext) -> Pipeline:
        where, _, name = self.pipeline.partition(":")
        if not where.endswith(".py"):
            return load_pipeline(self.pipeline, self.arguments)
        if not (context.path / where).is_file():
            raise ConfigurationError(
                f"pipeline: {self.pipeline!r}: there is no file {where!r} beside this component.",
                cure="Correct the name, or write package.module:name.",
            )
        module = context.load_defs_relative_python_module(Path(where))
        return pipeline_in(module, name, self.arguments)
