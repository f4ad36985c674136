"""Dagster integration; the only package that imports Dagster. Executors never load it."""

from importlib.metadata import version

from dagster_shared.libraries import DagsterLibraryRegistry

from dagster_jet.orchestration.asset_checks import build_jet_asset_checks
from dagster_jet.orchestration.asset_decorator import jet_assets
from dagster_jet.orchestration.asset_job import build_jet_job
from dagster_jet.orchestration.asset_specs import (
    build_jet_asset_specs,
    build_jet_source_assets,
)
from dagster_jet.orchestration.check_schedule import build_jet_check_schedule
from dagster_jet.orchestration.control_job import build_jet_control_job
from dagster_jet.orchestration.cut_assets import build_jet_cut_assets
from dagster_jet.orchestration.drained_schedule import build_jet_schedule
from dagster_jet.orchestration.event_iterator import JetEventIterator
from dagster_jet.orchestration.lake_maintenance import build_jet_lake_maintenance
from dagster_jet.orchestration.observation_sensor import build_jet_observation_sensor
from dagster_jet.orchestration.openlineage_sensor import build_jet_openlineage_sensor
from dagster_jet.orchestration.outside.observed_streams_component import ObservedStreamsComponent
from dagster_jet.orchestration.pipeline_component import JetPipelineComponent
from dagster_jet.orchestration.resource import JetResource
from dagster_jet.orchestration.sensor import build_jet_supervisor_sensor
from dagster_jet.orchestration.snapshot_sensor import build_jet_snapshot_sensor
from dagster_jet.orchestration.translator import DagsterJetTranslator, JetStageData

__all__ = [
    "DagsterJetTranslator",
    "JetEventIterator",
    "JetPipelineComponent",
    "JetResource",
    "JetStageData",
    "ObservedStreamsComponent",
    "build_jet_asset_checks",
    "build_jet_asset_specs",
    "build_jet_check_schedule",
    "build_jet_control_job",
    "build_jet_cut_assets",
    "build_jet_job",
    "build_jet_lake_maintenance",
    "build_jet_observation_sensor",
    "build_jet_openlineage_sensor",
    "build_jet_schedule",
    "build_jet_snapshot_sensor",
    "build_jet_source_assets",
    "build_jet_supervisor_sensor",
    "jet_assets",
]

# Shown by Dagster with the code location. Not a Dagster package: its versions are independent.
DagsterLibraryRegistry.register("dagster-jet", version("dagster-jet"), is_dagster_package=False)
