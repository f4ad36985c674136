"""Runs that are well make room for the next one: too old, or of a definition that has changed.

Real workers, started as the supervisor's tick asks for them; what counts are the rows.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from dagster_jet.ownership.supervision import Intent, read_supervision
from dagster_jet.snapshot.record import JobStatus, StopCause
from tests.long import long

from .run_worker import Worker, open_host
from .supervisor import Supervisor
from .tiny import committed_rows, put_file


class Retiring(Supervisor):
    """Asks runs that are well to make room."""

    def retires(
        self, worker: Worker, why: str, max_age: float | None = None, *, more: bool = False
    ) -> None:
        """A tick asks the run to make room, and it ends as one that is well does."""

        def is_asked() -> bool:
            said = self.tick(max_age, more=more).skip_reason
            assert said is not None and said.skip_message is not None
            assert said.skip_message.startswith("adopt"), said.skip_message
            return why in said.skip_message and "asked to end" in said.skip_message

        worker.wait_for(f"a tick that says: {why}", is_asked)
        worker.end()
        assert worker.run().status is dg.DagsterRunStatus.SUCCESS
        record = worker.record()
        assert (record.status, record.cause) == (JobStatus.NOT_RUNNING, StopCause.SHUTDOWN)
        assert record.lease is None
        wanted = read_supervision(worker.jet.store, "tiny")
        assert wanted is not None and wanted.intent is Intent.ALWAYS_ON


def has_copied(folder: Path, files: int) -> bool:
    return len(committed_rows(folder / "copy")) == 60 * files


@pytest.mark.parametrize(
    ("why", "asked"),
    [
        # With a standby, which is asked for in the same way: `test_standby_runs.py`.
        pytest.param("the pipeline's definition has changed", {"more": True}, marks=long),
        pytest.param("hours old", {"max_age": 0.5}, marks=long),
    ],
)
def test_it_makes_room_for_the_next_version(
    tmp_path: Path, why: str, asked: dict[str, Any]
) -> None:
    put_file(tmp_path, 0)
    with open_host(tmp_path) as host:
        supervisor = Retiring(host)
        with host.worker(tags=supervisor.requests("tiny:1")) as first:
            first.wait_for("the first file", lambda: has_copied(tmp_path, 1))
            first.wait_for("a snapshot of its own", first.is_running)
            put_file(tmp_path, 1)  # it comes while the run is asked to end, or is left to the next
            supervisor.retires(first, why, **asked)
        with host.worker(tags=supervisor.requests("tiny:2"), TINY_MORE="1") as second:
            put_file(tmp_path, 2)  # the first run may have read all that came before
            second.wait_for("it has the job", second.is_running)
            second.wait_for("three files", lambda: has_copied(tmp_path, 3))
            second.wait_for("two hours", lambda: len(committed_rows(tmp_path / "per_hour")) == 6)
            assert second.record().execution_id == 2
            said = supervisor.tick(max_age=3600, more=True).skip_reason
            assert said is not None and "asked to end" not in (said.skip_message or "")
        statuses = Counter(run.status for run in host.instance.get_runs())
        assert statuses[dg.DagsterRunStatus.SUCCESS] == 1
    copied = Counter(row["v"] for row in committed_rows(tmp_path / "copy"))
    assert copied == Counter({float(v): 3 for v in range(60)}), "each row once"
    added = Counter(row["v"] for row in committed_rows(tmp_path / "more"))
    kept, rest = divmod(sum(added.values()), 30)
    assert rest == 0 and added == Counter({float(v): kept for v in range(30, 60)})
    assert kept in (1, 2), "what came since it is there"
    rows = committed_rows(tmp_path / "per_hour")
    hours = Counter((row["k"], row["n"], row["total"]) for row in rows)
    totals = {f"k{k}": float(sum(range(k, 60, 3))) for k in range(3)}
    assert hours == Counter({(k, 20, total): 2 for k, total in totals.items()}), "open: hour 2"
