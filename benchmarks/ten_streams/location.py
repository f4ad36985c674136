"""One code location with as many streams as `JET_STREAMS` says, from files to files, at defaults.

`JET_STREAMS_FOLDER` holds the input, the output and the store.

No ``from __future__ import annotations`` here: Dagster refuses a context annotated with text.
"""

import os
from pathlib import Path

import dagster as dg

from benchmarks.ten_streams.names import FOLDER, STREAMS, name_of
from dagster_jet import (
    JetResource,
    Pipeline,
    build_jet_asset_checks,
    build_jet_check_schedule,
    build_jet_job,
    build_jet_source_assets,
    build_jet_supervisor_sensor,
    jet_assets,
    sinks,
    sources,
    windows,
)
from dagster_jet import aggregates as agg

_SCHEMA = "k string, at timestamp, v double"


def _definitions(folder: Path, number: int) -> dg.Definitions:
    name = name_of(number)
    p = Pipeline(name)
    events = p.read_from(
        sources.files(str(folder / "in" / name), format="json", schema=_SCHEMA), name="events"
    ).with_timestamps("at", allowed_lag="1 second")
    totals = events.group_by("k").window(windows.tumbling("10 seconds"))
    counted = totals.aggregate(n=agg.count(), total=agg.sum("v"), name="totals")
    counted.write_to(sinks.files(str(folder / "out" / name), format="json"), name="totals_out")

    @jet_assets(pipeline=p)
    def assets(context: dg.AssetExecutionContext, jet: JetResource):
        yield from jet.run(context=context)

    job, checks = build_jet_job(assets), build_jet_asset_checks(assets)
    supervisor = build_jet_supervisor_sensor(
        job=job, pipeline=p, default_status=dg.DefaultSensorStatus.RUNNING
    )
    return dg.Definitions(
        assets=[assets, *build_jet_source_assets(p)],
        asset_checks=[checks],
        jobs=[job],
        schedules=[build_jet_check_schedule(checks)],
        sensors=[supervisor],
    )


@dg.definitions
def defs() -> dg.Definitions:
    folder = Path(os.environ[FOLDER])
    store = [f"file://{folder}/store/{member}" for member in "abc"]
    streams = [_definitions(folder, number) for number in range(int(os.environ[STREAMS]))]
    resources = dg.Definitions(resources={"jet": JetResource(store=store)})
    return dg.Definitions.merge(*streams, resources)
