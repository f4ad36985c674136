"""The code location of the image: put your own pipelines here."""

import os

import dagster as dg

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

OUTPUT = os.environ.get("JET_OUTPUT", "/data")

auctions = Pipeline("auctions")
events = auctions.read_from(sources.nexmark(count=10_000_000, rate=1_000), name="events")
bids = events.with_timestamps("date_time", allowed_lag="1 second").filter("event_type = 2")
prices = bids.select("date_time", "bid.price").window(windows.tumbling("10 seconds"))
highest = prices.aggregate(bids=agg.count(), highest=agg.max("price"), name="highest")
highest.write_to(sinks.files(f"{OUTPUT}/highest", format="json"), name="highest_out")


@jet_assets(pipeline=auctions)
def auction_assets(context: dg.AssetExecutionContext, jet: JetResource):
    yield from jet.run(context=context)


job, checks = build_jet_job(auction_assets), build_jet_asset_checks(auction_assets)
defs = dg.Definitions(
    assets=[auction_assets, *build_jet_source_assets(auctions)],
    asset_checks=[checks],
    jobs=[job],
    schedules=[build_jet_check_schedule(checks)],
    sensors=[
        build_jet_supervisor_sensor(
            job=job, pipeline=auctions, default_status=dg.DefaultSensorStatus.RUNNING
        )
    ],
    resources={
        "jet": JetResource(
            store=os.environ["JET_STORE"].split(),
            backup_count=1,
            spark_config={"spark.master": "local[2]", "spark.driver.memory": "1g"},
        )
    },
)
