"""``dagster-jet jobs`` and ``job``: what is shown of living and of dead jobs; no Spark."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import CliRunner

from dagster_jet.cli import app, output
from dagster_jet.jobs.requests import StopRequest
from dagster_jet.ownership.lease import new_lease, wall_clock_ms
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, record_register
from dagster_jet.snapshot.protocol import StopKind
from dagster_jet.snapshot.record import (
    Activity,
    Doing,
    ExecutionRecord,
    JobStatus,
    Lease,
    StopCause,
)
from dagster_jet.store import Store, StoreConfig

from .job_in_store import StoredJob

DEAD_PID = 2**22 + 1
"""Process id above the kernel's largest one."""
COMMITTING = Activity(Doing.COMMITTING, 400_000, "out (/o): disk full")
HERE = new_lease("o", 1_000, "run-1", COMMITTING)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreConfig((f"file://{tmp_path}/a",), backup_count=0)) as store:
        yield store


def left_by(store: Store, lease: Lease) -> None:
    record = ExecutionRecord("shop", 4, JobStatus.RUNNING, lease=lease)
    directory = store.map(JOB_DIRECTORY)
    directory.put_all({directory.key("shop"): b""})
    store.register(record_register("shop")).claim(4, "owner").write(record.to_bytes())


def run(tmp_path: Path, *arguments: str) -> Any:
    environment = {"DAGSTER_JET_STORE": f"file://{tmp_path}/a", "COLUMNS": "200"}
    return CliRunner().invoke(app, list(arguments), env=environment)


def test_a_living_job_is_listed_with_what_it_is_at(store: Store, tmp_path: Path) -> None:
    left_by(store, replace(HERE, ttl_ms=60_000, renewed_at_ms=wall_clock_ms()))
    (row,) = json.loads(run(tmp_path, "jobs", "--json").stdout)
    assert (row["status"], row["cause"]) == ("RUNNING", None)
    assert row["doing"] == "committing a snapshot for 400 s: out (/o): disk full"
    assert row["owner"] == f"{HERE.host}:{HERE.pid}"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_narrow_place_cuts_no_value(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failed before: "s…" and "N…" on a terminal; then one box for each row also in a pipe."""
    monkeypatch.setattr(output, "_PIPED_WIDTH", 40)
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    names = [letter * 50 for letter in "xy"]
    output.show([{"job": n, "status": "NOT_RUNNING"} for n in names], title="", as_json=False)
    shown = capsys.readouterr().out
    assert shown.count("job") == (2 if is_terminal else 1)
    assert [shown.count(n[0]) for n in names] == [50, 50]
    assert (max(map(len, shown.splitlines())) <= 40) is is_terminal
    output.show([{"file": n} for n in names], title="", as_json=False)
    shown = capsys.readouterr().out
    assert shown.count("file") == 1 and [shown.count(n[0]) for n in names] == [50, 50]
    assert (names[0] in shown) is not is_terminal
    output.show_one({"file": names[0]}, title="")
    assert capsys.readouterr().out.count("x") == 50


def test_a_dead_one_is_not_running_and_lost(store: Store, tmp_path: Path) -> None:
    left_by(store, replace(HERE, pid=DEAD_PID))
    (row,) = json.loads(run(tmp_path, "jobs", "--json").stdout)
    assert (row["status"], row["cause"], row["owner"]) == ("NOT_RUNNING", "lost", None)
    refused = run(tmp_path, "job", "shop", "cancel")
    assert refused.exit_code == 2 and "cannot cancel: the job is NOT_RUNNING" in refused.stderr


def test_a_request_that_a_dying_job_does_not_carry_out_is_an_error(
    store: Store, tmp_path: Path
) -> None:
    """The job's owner is on another host: its lease looks fresh, and is no longer renewed."""
    left_by(store, replace(new_lease("o", 1_000, "run-1"), host="elsewhere"))
    asked = run(tmp_path, "job", "shop", "suspend")
    assert asked.exit_code == 2, asked.stdout
    assert (
        "it was not carried out: execution 4 is dead" in asked.stderr
        or "NOT_RUNNING" in asked.stderr
    )


def test_a_job_that_has_died_is_suspended(store: Store, tmp_path: Path) -> None:
    """Failed before: it was paused, and the command said that it was not carried out."""
    left_by(store, replace(HERE, pid=DEAD_PID))
    asked = run(tmp_path, "job", "shop", "suspend", "--json")
    assert asked.exit_code == 0, asked.stderr
    (row,) = json.loads(asked.stdout)
    assert (row["status"], row["intent"]) == ("NOT_RUNNING", "paused")


@pytest.mark.parametrize("action", ["suspend", "cancel", "complete", "export", "cancel_and_export"])
def test_zero_seconds_do_not_wait(store: Store, tmp_path: Path, action: str) -> None:
    """Failed before: the request was in the store, and the command ended with 2."""
    left_by(store, replace(HERE, ttl_ms=60_000, renewed_at_ms=wall_clock_ms()))
    asked = run(tmp_path, "job", "shop", action, "--wait", "0", "--name", "kept", "--json")
    assert asked.exit_code == 0, asked.stderr
    if "export" in action:
        assert [(row["export"], row["state"]) for row in json.loads(asked.stdout)] == [
            ("kept", "asked")
        ]
    else:
        value = store.register("jobs/shop/request").read()
        assert value is not None and StopRequest.from_bytes(value.value) == StopRequest(
            StopKind(action), 4
        )
        assert '"RUNNING"' in asked.stdout
    late = run(tmp_path, "job", "shop", action, "--wait", "0.01", "--name", "again")
    assert late.exit_code == 2 and "the request is" in late.stderr
    negative = run(tmp_path, "job", "shop", action, "--wait", "-1", "--name", "third")
    assert negative.exit_code == 2 and "Invalid value" in negative.stderr


def test_a_cancel_that_was_carried_out_is_a_success(store: Store, tmp_path: Path) -> None:
    """Failed before: the job is FAILED then, and the command ended with 1."""
    job = StoredJob(store, "shop", 4)
    job.is_at(JobStatus.RUNNING)
    owner = Thread(target=carry_out_a_cancel, args=(store, job))
    owner.start()
    asked = run(tmp_path, "job", "shop", "cancel", "--wait", "30", "--json")
    owner.join()
    assert asked.exit_code == 0, asked.stderr
    assert '"FAILED"' in asked.stdout
    assert run(tmp_path, "job", "shop").exit_code == 1, "shown later: the job does not run"


def carry_out_a_cancel(store: Store, job: StoredJob) -> None:
    """Acts as the owner of the job does, in another process."""
    while store.register("jobs/shop/request").read() is None:
        time.sleep(0.01)
    job.is_at(JobStatus.FAILED, cause=StopCause.CANCEL, failure="it was cancelled")


def test_a_job_is_deleted_once_it_does_not_run(store: Store, tmp_path: Path) -> None:
    left_by(store, replace(HERE, ttl_ms=60_000, renewed_at_ms=wall_clock_ms(), pid=DEAD_PID))
    deleted = run(tmp_path, "job", "shop", "delete", "--json")
    assert deleted.exit_code == 0, deleted.stderr
    assert json.loads(deleted.stdout) == [{"job": "shop", "entries": 0, "released": "", "kept": ""}]
    assert json.loads(run(tmp_path, "jobs", "--json").stdout) == []
    again = run(tmp_path, "job", "shop", "delete")
    assert again.exit_code == 2 and "no job of this name exists" in again.stderr


@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(
    "command",
    [
        ("job", "shopp"),
        ("ledger", "shopp"),
        ("consumed", "shopp", "rows"),
        ("watermarks", "shopp"),
        ("job", "shopp", "suspend"),
        ("profile", "shopp"),
        ("snapshots", "shopp"),
        ("snapshots", "shopp", "show", "7"),
        ("snapshots", "shopp", "delete", "kept"),
    ],
)
def test_a_mistyped_name_is_an_error_that_names_the_jobs(
    store: Store, tmp_path: Path, command: tuple[str, ...], form: tuple[str, ...]
) -> None:
    left_by(store, replace(HERE, pid=DEAD_PID))
    refused = run(tmp_path, *command, *form)
    assert refused.exit_code == 2, "was 0 before with ledger, consumed and snapshots"
    assert refused.stdout == ""
    assert "job 'shopp': no job of this name exists in namespace 'default'" in refused.stderr
    assert "there are: shop." in refused.stderr
