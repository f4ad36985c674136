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


def test_evicted_killed_and_evicted_with_retries(tmp_path: Path) -> None:
    put_file(tmp_path, 0)
    frozen = tmp_path / "frozen.log"
    lease = {"TINY_LEASE_TTL": f"{LEASE_SECONDS:g} seconds"}
    with RedisServer() as server, open_host(tmp_path, server.url) as host:
        # In time: the next pod need not wait.
        with host.pod(**lease) as first:
            first.wait_for("the first file", lambda: has_copied(tmp_path, 1))
            held = first.record().lease
            assert held is not None and held.pid == 1
            assert is_owner_alive(held) is None, "our process 1 is not its process 1"
            first.inside().send_signal(signal.SIGTERM)
            first.end()
            assert_let_go(first, 1)

        # Not in time: a sink's writer hangs, and the grace period is shorter than the drain budget.
        put_file(tmp_path, 1)
        hang = "files.prepare.before=freeze"
        rules = {"JET_FAIL_POINTS": hang, "JET_FAIL_POINT_LOG": str(frozen)}
        with host.pod(**lease, **rules) as second:
            second.wait_for("a writer that hangs", frozen.exists)
            process = second.inside()
            # The number of a namespace that is gone is given to the next one, which then knows that
            # all of the old one's processes are dead. A pod on another node does not.
            held_open = os.open(f"/proc/{process.pid}/ns/pid", os.O_RDONLY)
            process.send_signal(signal.SIGTERM)
            second.wait_for("it drains", lambda: "terminal snapshot" in log_of(second))
            with pytest.raises(subprocess.TimeoutExpired):
                second.process.wait(1)
            process.kill()
            second.end()
            held = second.record().lease
            assert held is not None and held.pid == 1 and second.record().execution_id == 2
            assert has_copied(tmp_path, 1), "what hangs has decided nothing"
            killed_run = second.run().run_id

        # The next one has the same host name and id; with a retry policy its step is a process.
        with host.pod(**lease, TINY_RETRIES="1") as third:
            third.wait_for(
                "it begins", lambda: third.run().run_id != killed_run and bool(noted_worker(third))
            )
            began_at = time.monotonic()
            third.wait_for("it has the job", lambda: third.record().execution_id > 2)
            assert time.monotonic() - began_at >= LEASE_SECONDS / 2, "it watched the lease"
            put_file(tmp_path, 2)
            third.wait_for("three files", lambda: has_copied(tmp_path, 3))
            third.wait_for("two hours", lambda: len(committed_rows(tmp_path / "per_hour")) == 6)
            step = noted_worker(third)
            assert step is not None and step.pid != 1 and step.parent_pid == 0
            third.inside().send_signal(signal.SIGTERM)
            third.end()
            os.close(held_open)
            assert_let_go(third, 3)
            # Dagster's log has a request for a retry, which the run worker does not carry out.
            restarted = {dg.DagsterEventType.STEP_RESTARTED}
            assert not host.instance.all_logs(third.run().run_id, of_type=restarted), "it is dying"
    copied = Counter(row["v"] for row in committed_rows(tmp_path / "copy"))
    assert copied == Counter({float(v): 3 for v in range(60)}), "each row once"
    hours = Counter(row["n"] for row in committed_rows(tmp_path / "per_hour"))
    assert hours == Counter({20: 6}), "two hours are over, three keys each"


def log_of(pod: Worker) -> str:
    entries = pod.instance.all_logs(pod.run().run_id)
    return "\n".join(entry.user_message for entry in entries)
