"""Dagster with the settings of `deploy/`: its storage is a real PostgreSQL server."""

from __future__ import annotations

from pathlib import Path
from shutil import copy

import dagster as dg
import pytest

from dagster_jet import Jet
from dagster_jet.core.answers import Verdict
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.instance_check import InstanceCheck
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.sensor import supervise
from dagster_jet.orchestration.supervisor import RestartPolicy
from tests.long import long
from tests.servers.postgres import postgres

from ..unit.orchestration.test_dead_runs import dead_worker
from .test_materialize import materialize, numbers
from .tiny import committed_rows, put_file

LAUNCHES = Launches("tiny", "tiny_job")


@long  # `make soak` also has hours of it: tests/soak --dagster --postgres
def test_runs_ticks_and_dead_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    copy(Path(__file__).parents[2] / "deploy" / "dagster.yaml", home)
    for name, value in postgres().dagster_variables.items():
        monkeypatch.setenv(name, value)
    with dg.DagsterInstance.from_config(str(home)) as instance:
        found = InstanceCheck(instance, streams=12).answers()
        doubts = [one.question for one in found if one.verdict is not Verdict.YES]
        assert [one for one in doubts if not one.startswith("The daemon ")] == []
        assert len(found) >= len(doubts) + 7
        for number in range(2):
            put_file(tmp_path, number)
            result = materialize(tmp_path, "drained", instance=instance)
            assert numbers(result, "copy_out")[-1][keys.DAGSTER_ROW_COUNT] == 60 * (number + 1)
        assert len(committed_rows(tmp_path / "copy")) == 120
        event = instance.get_latest_materialization_event(dg.AssetKey(["tiny", "copy_out"]))
        assert event is not None and event.asset_materialization is not None
        assert event.asset_materialization.metadata[keys.DAGSTER_ROW_COUNT].value == 120

        dead = dg.DagsterRun(job_name="tiny_job", status=dg.DagsterRunStatus.STARTED)
        instance.add_run(dead)
        instance.add_run_tags(dead.run_id, {keys.TAG_WORKER: dead_worker(dead.run_id).to_tag()})
        with (
            Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet,
            dg.build_sensor_context(instance=instance) as context,
        ):
            said = supervise(context, jet, LAUNCHES, RestartPolicy(), {}).skip_reason
        assert said is not None and "its runs end by themselves" in (said.skip_message or "")
        reported = instance.get_run_by_id(dead.run_id)
        assert reported is not None and reported.status is dg.DagsterRunStatus.FAILURE
