"""A supervisor keeps a standby beside the run that has the job: the run is killed, then its
successor makes room for the next version. Real workers; what counts are the rows."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import dagster as dg
import pytest

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.snapshot.record import StopCause
from tests.long import long

from .run_worker import Host, Worker, open_host
from .supervisor import Supervisor
from .tiny import committed_rows, put_file


def standby_run(host: Host, number: int) -> dg.DagsterRun | None:
    tags = {keys.TAG_STANDBY: str(number)}
    found = host.instance.get_runs(dg.RunsFilter(tags=tags))
    return found[0] if found else None


def waits(host: Host, number: int) -> bool:
    run = standby_run(host, number)
    if run is None:
        return False
    worker = RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run.run_id)
    return worker is not None and worker.stands_by


def copied(folder: Path) -> Counter[object]:
    return Counter(row["v"] for row in committed_rows(folder / "copy"))


def has_copied(folder: Path, files: int) -> bool:
    return len(committed_rows(folder / "copy")) == 60 * files


def has_job(worker: Worker, number: int) -> bool:
    """The run of that standby has decided a snapshot, and is a stream now."""
    lease, run = worker.record().lease, standby_run(worker_host(worker), number)
    assert run is not None
    return lease is not None and lease.run_id == run.run_id and worker.is_running()


def worker_host(worker: Worker) -> Host:
    return Host(worker.folder, worker.instance, worker.jet, {})


@long
@pytest.mark.parametrize("newer", [False, pytest.param(True, marks=long)])  # three JVMs
def test_it_takes_over_from_a_killed_run_and_from_an_older_version(
    tmp_path: Path, newer: bool
) -> None:
    put_file(tmp_path, 0)
    with open_host(tmp_path) as host, ExitStack() as workers:
        supervisor = Supervisor(host, standby=True)
        first = workers.enter_context(host.worker(tags=supervisor.requests("tiny:1")))
        first.wait_for("the first file", lambda: has_copied(tmp_path, 1))
        first.wait_for("a snapshot of its own", first.is_running)
        tags = supervisor.requests("tiny:standby:1")
        second = workers.enter_context(host.worker(tags=tags))
        second.wait_for("it stands by", lambda: waits(host, 1))
        assert supervisor.says("stands by")
        first.process.kill()
        first.process.wait()
        put_file(tmp_path, 1)
        second.wait_for("the second file", lambda: has_copied(tmp_path, 2))
        second.wait_for("it has the job", lambda: has_job(second, 1))
        run = standby_run(host, 1)
        assert run is not None and run.tags[keys.TAG_KIND] == "stream"
        assert second.record().execution_id == 2
        assert_reported_once(host)
        if not newer:
            second.instance.report_run_canceling(run)
            second.process.terminate()
            second.end()
            assert copied(tmp_path) == Counter({float(v): 2 for v in range(60)}), "each row once"
            return

        tags = supervisor.requests("tiny:standby:2", more=True)
        third = workers.enter_context(host.worker(tags=tags, TINY_MORE="1"))
        assert supervisor.says("is asked to end once its standby waits", more=True)
        third.wait_for("it stands by", lambda: waits(host, 2))
        third.wait_for(
            "the older version is asked to end",
            lambda: supervisor.says("the run was asked to end", more=True),
        )
        second.end()
        put_file(tmp_path, 2)
        third.wait_for("the third file", lambda: has_copied(tmp_path, 3))
        third.wait_for("it has the job", lambda: has_job(third, 2))
        third.wait_for("two hours", lambda: len(committed_rows(tmp_path / "per_hour")) == 6)
        assert third.record().restarts == 1, "the shutdown was asked for"

        third.instance.report_run_canceling(third.run())
        third.process.terminate()
        third.end()
        assert third.record().cause is StopCause.SHUTDOWN
    assert copied(tmp_path) == Counter({float(v): 3 for v in range(60)}), "each row once"
    hours = Counter((row["k"], row["n"]) for row in committed_rows(tmp_path / "per_hour"))
    assert hours == Counter({(f"k{k}", 20): 2 for k in range(3)}), "open: hour 2"


def assert_reported_once(host: Host) -> None:
    """No snapshot was materialized twice, and the standby was shown."""
    key = dg.AssetKey(["tiny", "copy_out"])
    wanted = dg.AssetRecordsFilter(asset_key=key)
    records = host.instance.fetch_materializations(wanted, limit=1000).records
    found = [record.asset_materialization for record in records]
    snapshots = Counter(m.metadata[keys.SNAPSHOT_ID].value for m in found if m is not None)
    assert set(snapshots.values()) == {1}, snapshots
    notes = host.instance.fetch_observations(wanted, limit=1000).records
    shown = [r.asset_observation.metadata for r in notes if r.asset_observation is not None]
    assert sum(keys.STANDS_BY_FOR in metadata for metadata in shown) == 1
