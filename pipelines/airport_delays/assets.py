"""The pipeline in Dagster: assets, the job that runs them, the sensor that keeps it running."""

import os
from collections.abc import Iterator

import dagster as dg

from dagster_jet import (
    JetResource,
    Secret,
    build_jet_asset_checks,
    build_jet_check_schedule,
    build_jet_control_job,
    build_jet_job,
    build_jet_source_assets,
    build_jet_supervisor_sensor,
    jet_assets,
)
from pipelines.airport_delays.into_lake import airport_delays_into_lake
from pipelines.airport_delays.pipeline import airport_delays
from pipelines.airport_delays.through_kafka import airport_delays_through_kafka
from resources.jet import DATA

INBOX = DATA / "inbox"
INBOX.mkdir(parents=True, exist_ok=True)
KAFKA = os.environ.get("JET_KAFKA")
"""host:port of a broker: flights come from there, not from the inbox (`make demo KAFKA=1`)."""
LAKE = os.environ.get("JET_LAKE")
"""Folder of tables of Delta Lake and Iceberg, instead of files (`make demo LAKE=1`)."""

REFERENCE, OUT = str(DATA / "reference"), str(DATA / "out")
if KAFKA:
    database = Secret("JET_DATABASE_URL")
    pipeline = airport_delays_through_kafka(KAFKA, database, REFERENCE, OUT)
elif LAKE:
    pipeline = airport_delays_into_lake(str(INBOX), REFERENCE, OUT, LAKE)
else:
    pipeline = airport_delays(str(INBOX), REFERENCE, OUT)


@jet_assets(pipeline=pipeline)
def airport_delays_assets(
    context: dg.AssetExecutionContext, jet: JetResource
) -> Iterator[dg.AssetMaterialization]:
    yield from jet.run(context=context)


airport_delays_job = build_jet_job(airport_delays_assets)

airport_delays_control = build_jet_control_job(pipeline)

airport_delays_supervisor = build_jet_supervisor_sensor(
    job=airport_delays_job,
    pipeline=pipeline,
    minimum_interval_seconds=int(os.environ.get("JET_SUPERVISOR_SECONDS", "10")),
    default_status=dg.DefaultSensorStatus.RUNNING,
)

airport_delays_checks = build_jet_asset_checks(airport_delays_assets)

airport_delays_check_schedule = build_jet_check_schedule(airport_delays_checks)

airport_delays_sources = build_jet_source_assets(pipeline)

# The tables that the flights are enriched with: nothing here writes them, so they are external.
reference_tables = [
    dg.AssetSpec(["reference", table], group_name=pipeline.name, kinds={"csv"})
    for table in ("airlines", "weather")
]
