"""A shop whose rows somebody else has written: definitions for a webserver, and what has happened.

Nothing here starts Spark or a daemon. `SHOP_LIMIT` makes another definition of the pipeline.
"""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from dagster_jet import (
    Jet,
    JetResource,
    Pipeline,
    build_jet_asset_checks,
    build_jet_check_schedule,
    build_jet_observation_sensor,
    jet_assets,
    sinks,
    sources,
)
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.record_keeper import RecordKeeper
from dagster_jet.snapshot.record import JobStatus
from tests.unit.orchestration.recorded_job import RecordedJob

DAYS = dg.StaticPartitionsDefinition(["mon", "tue"])


def shop(folder: Path, limit: int, name: str = "shop") -> Pipeline:
    p = Pipeline(name)
    rows = p.read_from(sources.files(f"{folder}/in", format="json", schema="id long"), name="rows")
    rows.filter(f"id > {limit}").write_to(sinks.files(f"{folder}/out", format="json"), name="out")
    return p


def resource(folder: Path) -> JetResource:
    return JetResource(store=[f"file://{folder}/store"], backup_count=0, lease_ttl="1 second")


def definitions(folder: Path, limit: int) -> dg.Definitions:
    # Not annotated in this module's string form: Dagster reads the class from the function.
    def stream(context, jet):
        yield from jet.run(context=context)

    stream.__annotations__["jet"] = JetResource
    live = jet_assets(pipeline=shop(folder, limit))(stream)
    by_day = jet_assets(
        pipeline=lambda day: shop(folder / day, limit, "shop_by_day"), partitions_def=DAYS
    )(stream)

    @dg.asset(deps=[*live.keys])
    def report() -> None: ...

    checks = build_jet_asset_checks(live)
    return dg.Definitions(
        assets=[live, by_day, report],
        asset_checks=[checks],
        schedules=[build_jet_check_schedule(checks)],
        sensors=[build_jet_observation_sensor(live, jet=resource(folder))],
        resources={"jet": resource(folder)},
    )


def open_the_shop(folder: Path, instance: dg.DagsterInstance) -> dict[str, str]:
    """What has happened until somebody looks: runs of the pipeline that was loaded then.

    Returns:
        Ids of runs: `behind`, of all assets while another run has the job; `again`, of a partition
        that was complete.
    """
    before, after = definitions(folder, limit=1), definitions(folder, limit=2)
    with Jet(store=[f"file://{folder}/store"], backup_count=0) as jet:
        live = RecordedJob(jet, "shop", listed=True)
        live.commits(7, {"out": 5}, reads={"rows": 9})
        (commits,) = before.sensors or ()
        assert isinstance(commits, dg.SensorDefinition)
        with dg.build_sensor_context(instance, definitions=before) as context:
            for event in commits.evaluate_tick(context).asset_events:
                instance.report_runless_asset_event(event)
        older = shop(folder, limit=1).graph.definition()
        live.is_held_by(new_lease("owner", 3_600_000, "another-run"), older)
        after.resolve_job_def("shop_checks_job").execute_in_process(
            instance=instance, raise_on_error=False
        )
        live.is_held_by(None)
        day = RecordedJob(jet, "shop_by_day@mon", listed=True)
        day.commits(3, {"out": 2}, reads={"rows": 2})
        day.has_ended(JobStatus.COMPLETED)
        owner = RecordKeeper(jet.store, "shop", 1_000, run_id="another-run")
        held = owner.claim(change=None)
        behind = dg.materialize(
            [*(before.assets or ())],
            selection=dg.AssetSelection.keys(["shop", "out"], "report"),
            resources={"jet": resource(folder)},
            instance=instance,
        )
        owner.release(held)
        again = [
            dg.materialize(
                [*(before.assets or ())],
                selection=dg.AssetSelection.keys(["shop_by_day", "out"]),
                partition_key="mon",
                resources={"jet": resource(folder)},
                instance=instance,
            )
            for _ in range(2)
        ]
    return {"behind": behind.run_id, "again": again[-1].run_id}


if "SHOP_FOLDER" in os.environ:
    defs = definitions(Path(os.environ["SHOP_FOLDER"]), int(os.environ["SHOP_LIMIT"]))
