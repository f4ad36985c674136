"""Three drained runs continue one another exactly; a changed definition is noticed. Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg

from dagster_jet import Jet, Pipeline, sinks, sources
from dagster_jet.jobs.supervision import Intent, read_supervision
from dagster_jet.orchestration.launches import Launches
from dagster_jet.orchestration.retirement import Retirement
from dagster_jet.orchestration.sensor import supervise
from dagster_jet.orchestration.supervisor import RestartPolicy
from dagster_jet.ownership.lease import new_lease
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, StopCause

from .test_materialize import materialize
from .tiny import committed_rows, put_file, tiny


def follows(jet: Jet, instance: dg.DagsterInstance, record: ExecutionRecord, folder: Path) -> None:
    """If it were running: another sink is a reason to retire, a lost stage an obstacle."""
    lives = replace(record, status=JobStatus.RUNNING, lease=new_lease("o", 60_000, None))
    assert Retirement(pipeline=tiny(folder)).reason(jet, instance, lives) == (None, None)
    more = tiny(folder)
    rows = more.read_from(
        sources.files(str(folder / "more"), format="json", schema="v double"), name="more"
    )
    rows.write_to(sinks.files(str(folder / "out"), format="json"), name="more_out")
    why, obstacle = Retirement(pipeline=more).reason(jet, instance, lives)
    assert why is not None and obstacle is None
    less = Pipeline("tiny")
    events = less.read_from(
        sources.files(str(folder / "in"), format="json", schema="k string"), name="events"
    )
    events.write_to(sinks.files(str(folder / "copy"), format="json"), name="copy_out")
    why, obstacle = Retirement(pipeline=less).reason(jet, instance, lives)
    assert why is None and obstacle is not None and "per_hour" in obstacle


def test_three_drained_runs(tmp_path: Path) -> None:
    tags = {"dagster/schedule_name": "tiny_schedule"}
    with dg.DagsterInstance.ephemeral() as instance:
        for number in range(3):
            put_file(tmp_path, number)
            assert materialize(tmp_path, "drained", instance=instance, tags=tags).success
            assert len(committed_rows(tmp_path / "copy")) == 60 * (number + 1)
            with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
                record = jet.record("tiny")
                assert record is not None
                assert (record.status, record.cause) == (JobStatus.NOT_RUNNING, StopCause.SHUTDOWN)
                assert record.execution_id == number + 1
                # What a run has saved is of today's definition.
                assert record.plan_fingerprint == tiny(tmp_path).graph.fingerprint()
                wanted = read_supervision(jet.store, "tiny")
                assert wanted is not None and wanted.intent is Intent.DRAINED
                with dg.build_sensor_context(instance=instance) as context:
                    result = supervise(
                        context,
                        jet,
                        Launches("tiny", "tiny_job"),
                        RestartPolicy(),
                        {},
                        retirement=Retirement(pipeline=tiny(tmp_path)),
                    )
                assert not result.run_requests, "it stays down in between"
                follows(jet, instance, record, tmp_path)
    rows = sorted(row["v"] for row in committed_rows(tmp_path / "copy"))  # type: ignore[type-var]
    assert rows == sorted(float(v) for v in range(60) for _ in range(3)), "each row once"
