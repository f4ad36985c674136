"""Run workers as pods have them: process 1 of a PID namespace, one host name, a store beside.

What evicts a pod sends SIGTERM to its process 1, and SIGKILL when the grace period is over.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import dagster as dg
import pytest

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.ownership.lease import is_owner_alive
from dagster_jet.ownership.supervision import Intent, read_supervision
from dagster_jet.snapshot.record import JobStatus
from tests.long import long
from tests.servers.members import RedisServer

from .run_worker import Worker, open_host
from .tiny import committed_rows, put_file

LEASE_SECONDS = 5.0


def has_copied(folder: Path, files: int) -> bool:
    return len(committed_rows(folder / "copy")) == 60 * files


def assert_let_go(pod: Worker, execution_id: int) -> None:
    """Drained: a terminal snapshot, no lease, and no word of a pause."""
    assert pod.run().status is dg.DagsterRunStatus.FAILURE, "nobody asked Dagster for its end"
    record = pod.record()
    assert (record.execution_id, record.status) == (execution_id, JobStatus.NOT_RUNNING)
    assert record.lease is None
    assert record.snapshot is not None and record.snapshot.committed
    assert record.snapshot.execution_id == execution_id
    wanted = read_supervision(pod.jet.store, "tiny")
    assert wanted is not None and wanted.intent is Intent.ALWAYS_ON


def noted_worker(pod: Worker) -> RunWorker | None:
    run = pod.run()
    return RunWorker.from_tag(run.tags.get(keys.TAG_WORKER), run.run_id)


@long
def test_killed_and_then_evicted_with_retries(tmp_path: Path) -> None:
    for number in range(2):
        put_file(tmp_path, number)
    frozen = tmp_path / "frozen.log"
    lease = {"TINY_LEASE_TTL": f"{LEASE_SECONDS:g} seconds"}
    with RedisServer() as server, open_host(tmp_path, server.url) as host:
        # Not in time: a sink's writer hangs, and the grace period is shorter than the drain budget.
        hang = "files.prepare.before=freeze"
        rules = {"JET_FAIL_POINTS": hang, "JET_FAIL_POINT_LOG": str(frozen)}
        with host.pod(**lease, **rules) as first:
            first.wait_for("a writer that hangs", frozen.exists)
            process = first.inside()
            held = first.record().lease
            assert held is not None and held.pid == 1
            assert is_owner_alive(held) is None, "our process 1 is not its process 1"
            # The number of a namespace that is gone is given to the next one, which then knows that
            # all of the old one's processes are dead. A pod on another node does not.
            held_open = os.open(f"/proc/{process.pid}/ns/pid", os.O_RDONLY)
            process.send_signal(signal.SIGTERM)
            first.wait_for("it drains", lambda: "terminal snapshot" in log_of(first))
            with pytest.raises(subprocess.TimeoutExpired):
                first.process.wait(1)
            process.kill()
            first.end()
            assert first.record().lease is not None and first.record().execution_id == 1
            assert has_copied(tmp_path, 0), "what hangs has decided nothing"
            killed_run = first.run().run_id

        # The next one has the same host name and id; with a retry policy its step is a process.
        with host.pod(**lease, TINY_RETRIES="1") as second:
            second.wait_for("another run", lambda: second.run().run_id != killed_run)
            second.wait_for("it begins", lambda: bool(noted_worker(second)))
            began_at = time.monotonic()
            second.wait_for("it has the job", lambda: second.record().execution_id > 1)
            assert time.monotonic() - began_at >= LEASE_SECONDS / 2, "it watched the lease"
            put_file(tmp_path, 2)
            second.wait_for("three files", lambda: has_copied(tmp_path, 3))
            second.wait_for("two hours", lambda: len(committed_rows(tmp_path / "per_hour")) == 6)
            step = noted_worker(second)
            assert step is not None and step.pid != 1 and step.parent_pid == 0
            second.inside().send_signal(signal.SIGTERM)
            second.end()
            os.close(held_open)
            assert_let_go(second, 2)
            # Dagster's log has a request for a retry, which the run worker does not carry out.
            restarted = {dg.DagsterEventType.STEP_RESTARTED}
            assert not host.instance.all_logs(second.run().run_id, of_type=restarted), "it is dying"
    copied = Counter(row["v"] for row in committed_rows(tmp_path / "copy"))
    assert copied == Counter({float(v): 3 for v in range(60)}), "each row once"
    hours = Counter(row["n"] for row in committed_rows(tmp_path / "per_hour"))
    assert hours == Counter({20: 6}), "two hours are over, three keys each"


def log_of(pod: Worker) -> str:
    entries = pod.instance.all_logs(pod.run().run_id)
    return "\n".join(entry.user_message for entry in entries)
