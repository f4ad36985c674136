"""A shop whose rows somebody else has written: definitions for a webserver, and what has happened.

Nothing here starts Spark or a daemon. `SHOP_LIMIT` makes another definition of the pipeline.
A second code location, for staging, has a pipeline of the same name on a store of its own.
"""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import dagster as dg
from dagster._core.loader import LoadingContextForTest
from dagster._daemon.freshness import FreshnessDaemon

from dagster_jet import (
    Jet,
    JetResource,
    Pipeline,
    build_jet_asset_checks,
    build_jet_check_schedule,
    build_jet_observation_sensor,
    build_jet_supervisor_sensor,
    jet_assets,
    sinks,
    sources,
)
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.launches import job_tag
from dagster_jet.orchestration.run_worker import RunWorker
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


# Not annotated in this module's string form: Dagster reads the class from the function.
def stream(context, jet):
    yield from jet.run(context=context)


stream.__annotations__["jet"] = JetResource


def definitions(folder: Path, limit: int) -> dg.Definitions:
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


def staging(folder: Path) -> dg.Definitions:
    """Keys and freshness are those that `jet_assets` did not know."""
    module: Any = ModuleType("assets")
    module.live = jet_assets(pipeline=shop(folder, 1))(stream)
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(minutes=10))
    return dg.Definitions(
        assets=dg.map_asset_specs(
            lambda spec: dg.apply_freshness_policy(spec, policy),
            dg.load_assets_from_modules([module], key_prefix="staging"),
        ),
        sensors=[build_jet_observation_sensor(module.live, jet=resource(folder))],
        resources={"jet": resource(folder)},
    )


def report_commits(instance: dg.DagsterInstance, defs: dg.Definitions) -> None:
    sensor = defs.resolve_sensor_def("shop_observations")
    with dg.build_sensor_context(instance, definitions=defs) as context:
        for event in sensor.evaluate_tick(context).asset_events:
            instance.report_runless_asset_event(event)


def evaluate_freshness(instance: dg.DagsterInstance, defs: dg.Definitions, asset: str) -> None:
    """Evaluates freshness as Dagster's daemon does."""
    node = defs.get_repository_def().asset_graph.get(dg.AssetKey.from_user_string(asset))
    asyncio.run(FreshnessDaemon()._evaluate_asset(LoadingContextForTest(instance), node))


def begin_run(instance: dg.DagsterInstance, defs: dg.Definitions, asset: str, jet: Jet) -> str:
    """A run of the stream on another host, in the job's first execution."""
    job = defs.resolve_implicit_global_asset_job_def().get_subset(
        asset_selection={dg.AssetKey.from_user_string(asset)}, asset_check_selection=set()
    )
    tags = {keys.TAG_PIPELINE: "shop", keys.TAG_JOB: job_tag(jet.store, "shop")}
    started = dg.DagsterRunStatus.STARTED
    run_id = instance.create_run_for_job(job, tags=tags, status=started).run_id
    worker = replace(RunWorker.here(run_id), host="elsewhere", execution_id=1)
    instance.add_run_tags(run_id, {keys.TAG_WORKER: worker.to_tag()})
    return run_id


def supervise(instance: dg.DagsterInstance, folder: Path) -> None:
    """Two ticks of production's supervisor: what the first one sees, the second one reports."""
    sensor = build_jet_supervisor_sensor(
        job="shop_job", pipeline="shop", jet=resource(folder), start_timeout_seconds=0
    )
    cursor = None
    for _ in range(2):
        with dg.build_sensor_context(instance, cursor=cursor) as context:
            cursor = sensor.evaluate_tick(context).cursor


def open_the_shop(folder: Path, instance: dg.DagsterInstance) -> dict[str, str]:
    """Records runs of an older pipeline before anybody opens the UI.

    Returns:
        Ids of runs: `behind`, of all assets while another run has the job; `again`, of a partition
        that was complete; `fenced`, which lost the job to another run and has not ended, and
        `staging`, which is like it but for its store.
    """
    before, after = definitions(folder, limit=1), definitions(folder, limit=2)
    with Jet(store=[f"file://{folder}/store"], backup_count=0) as jet:
        live = RecordedJob(jet, "shop", listed=True)
        live.commits(7, {"out": 5}, reads={"rows": 9})
        report_commits(instance, before)
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
        runs = {"fenced": begin_run(instance, before, "shop/out", jet)}
        there = folder / "staging"
        there.mkdir()
        with Jet(store=[f"file://{there}/store"], backup_count=0) as other:
            RecordedJob(other, "shop", listed=True).commits(3, {"out": 4}, reads={"rows": 6})
            report_commits(instance, staging(there))
            evaluate_freshness(instance, staging(there), "staging/shop/out")
            runs["staging"] = begin_run(instance, staging(there), "staging/shop/out", other)
        supervise(instance, folder)
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
    return {**runs, "behind": behind.run_id, "again": again[-1].run_id}


if "SHOP_FOLDER" in os.environ:
    folder = Path(os.environ["SHOP_FOLDER"])
    defs = definitions(folder, int(os.environ["SHOP_LIMIT"]))
    other_defs = staging(folder / "staging")
