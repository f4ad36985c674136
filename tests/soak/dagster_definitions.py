"""The soak's job as a user of Dagster has it: assets, a job, the supervisor. All at its default.

`JET_SOAK_FOLDER` and `JET_SOAK_MEMBERS` say where the world and its store are.

No ``from __future__ import annotations`` here: Dagster refuses a context annotated with text.
"""

import json
import os
from pathlib import Path

import dagster as dg

from dagster_jet import JetResource, build_jet_job, build_jet_supervisor_sensor, jet_assets
from tests.soak.driver import pipeline

FOLDER = Path(os.environ["JET_SOAK_FOLDER"])
SENSOR = "soak_supervisor"

soak = pipeline(FOLDER)


@jet_assets(pipeline=soak)
def soak_stream(context: dg.AssetExecutionContext, jet: JetResource):
    yield from jet.run(context=context)


soak_job = build_jet_job(soak_stream)

defs = dg.Definitions(
    assets=[soak_stream],
    jobs=[soak_job],
    sensors=[
        build_jet_supervisor_sensor(
            job=soak_job,
            pipeline=soak,
            name=SENSOR,
            default_status=dg.DefaultSensorStatus.RUNNING,
        )
    ],
    resources={
        "jet": JetResource(
            store=json.loads(os.environ["JET_SOAK_MEMBERS"]),
            spark_config={"spark.master": "local[2]", "spark.driver.memory": "768m"},
            work_dir=str(FOLDER / "work"),
        )
    },
)
