"""A pandas asset behind a stream: it runs when there are new rows, and not because of a restart."""

from pathlib import Path

import dagster as dg
import pandas as pd

from dagster_jet import (
    JetResource,
    Pipeline,
    build_jet_job,
    build_jet_source_assets,
    build_jet_supervisor_sensor,
    jet_assets,
    sinks,
    sources,
)

ORDERS = dg.AssetKey(["shop", "orders_out"])


def shop(folder: str) -> Pipeline:
    """Orders as they come in, without the cancelled ones."""
    p = Pipeline("shop")
    orders = p.read_from(
        sources.files(f"{folder}/in", format="json", schema="customer string, eur double"),
        name="orders",
    )
    orders.filter("eur > 0").write_to(
        sinks.files(f"{folder}/orders", format="parquet"), name="orders_out"
    )
    return p


def definitions(folder: str) -> dg.Definitions:
    """The stream with its supervisor, and the asset behind it."""
    pipeline = shop(folder)

    @jet_assets(pipeline=pipeline)
    def shop_assets(context: dg.AssetExecutionContext, jet: JetResource):
        yield from jet.run(context=context)

    @dg.asset(deps=[ORDERS], automation_condition=dg.AutomationCondition.eager())
    def best_customers() -> dg.MaterializeResult:
        """Reads what is committed; each time all of it, so that it may run at any moment."""
        files = sorted(Path(folder, "orders").glob("part-*.parquet"))
        orders = pd.concat(pd.read_parquet(file) for file in files)
        best = orders.groupby("customer")["eur"].sum().nlargest(10)
        best.to_json(Path(folder, "best_customers.json"))
        return dg.MaterializeResult(metadata={"customers": len(best), "orders": len(orders)})

    job = build_jet_job(shop_assets)
    return dg.Definitions(
        assets=[shop_assets, best_customers, *build_jet_source_assets(pipeline)],
        jobs=[job],
        sensors=[
            build_jet_supervisor_sensor(job=job, pipeline=pipeline),
            dg.AutomationConditionSensorDefinition("automation", target=dg.AssetSelection.all()),
        ],
        resources={"jet": JetResource(store=[f"file://{folder}/store"], backup_count=0)},
    )
