"""The sensors on the store look at what real executions have left there. Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg

from dagster_jet import (
    Jet,
    JobConfig,
    build_jet_observation_sensor,
    build_jet_snapshot_sensor,
)

from .test_materialize import materialize
from .tiny import SPARK, jet_resource, put_file, tiny, tiny_assets

COPY = dg.AssetKey(["tiny", "copy_out"])


class Daemon:
    """Ticks both sensors as the daemon does."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance) -> None:
        @dg.job
        def batch() -> None: ...

        self.instance = instance
        self.cursors: dict[str, str | None] = {}
        jet, assets = jet_resource(folder), tiny_assets(folder)
        sensors = [
            build_jet_snapshot_sensor(pipeline="tiny", sinks=["copy_out"], job=batch, jet=jet),
            build_jet_observation_sensor(assets, jet=jet),
        ]
        self.repository = dg.Definitions(
            assets=[assets], jobs=[batch], sensors=sensors, resources={"jet": jet}
        ).get_repository_def()

    def tick(self, name: str) -> Any:
        with dg.build_sensor_context(
            instance=self.instance, cursor=self.cursors.get(name), repository_def=self.repository
        ) as context:
            data = self.repository.get_sensor_def(name).evaluate_tick(context)
        self.cursors[name] = data.cursor
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        return data

    def requests(self) -> int:
        return len(self.tick("tiny_snapshots").run_requests or [])

    def replays(self) -> int:
        events = self.tick("tiny_observations").asset_events
        return len([event for event in events if isinstance(event, dg.AssetMaterialization)])


def rows_known(instance: dg.DagsterInstance) -> tuple[int, Any]:
    event = instance.get_latest_materialization_event(COPY)
    assert event is not None and event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    return metadata["dagster/row_count"].value, metadata.get("replayed")


def test_runs_of_dagster_and_of_plain_python(tmp_path: Path) -> None:
    put_file(tmp_path, 0)
    with dg.DagsterInstance.ephemeral() as instance:
        daemon = Daemon(tmp_path, instance)
        assert (daemon.requests(), daemon.replays()) == (0, 0), "nothing is there"
        assert materialize(tmp_path, "drained", instance=instance).success
        assert (daemon.requests(), daemon.replays()) == (1, 0), "the run has reported it"
        assert materialize(tmp_path, "drained", instance=instance).success
        assert (daemon.requests(), daemon.replays()) == (0, 0), "a run without new rows"

        put_file(tmp_path, 1)
        with Jet(store=[f"file://{tmp_path}/store"], backup_count=0, spark=SPARK) as jet:
            jet.run(tiny(tmp_path), JobConfig(snapshot_interval="200 ms"))
        assert (daemon.requests(), daemon.replays()) == (1, 3)
        known, replayed = rows_known(instance)
        assert (known, replayed.value) == (120, True)
        assert (daemon.requests(), daemon.replays()) == (0, 0), "once"

        put_file(tmp_path, 2)
        assert materialize(tmp_path, "completed", instance=instance).success
        assert (daemon.requests(), daemon.replays()) == (1, 0)
        assert rows_known(instance) == (180, None), "a run's own report"
