"""`dagster-jet plan`: what would become of the state, told before anything stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from dagster_jet import sinks
from dagster_jet.cli import app
from dagster_jet.connectors.reopening import destination_of
from dagster_jet.ownership.record_keeper import record_register
from dagster_jet.snapshot.manifest import Manifest, checksum
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef
from dagster_jet.store import Store, StoreConfig

Run = Callable[..., Result]

MODULE = """
from dagster_jet import Pipeline, aggregates, sinks, sources, windows


def flights(hours=1, key="origin", name="hourly", sink="out", guarantee="exactly-once"):
    p = Pipeline("flights")
    schema = "origin string, carrier string, at timestamp"
    rows = p.read_from(sources.files("in", format="json", schema=schema), name="flights")
    window = windows.sliding(f"{hours} hours", "1 hour")
    keyed = rows.with_timestamps("at").group_by(key).window(window)
    counts = keyed.aggregate(n=aggregates.count(), name=name)
    counts.write_to(sinks.files("out", format="json", guarantee=guarantee), name=sink)
    return p


def weaker():
    return flights(guarantee="at-least-once")


def wider():
    return flights(hours=3)


def by_carrier():
    return flights(key="carrier")


def renamed():
    return flights(name="per hour")


def other_sink():
    return flights(sink="results")


def needs(something):
    return flights()


made = flights()
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "planned_pipelines"
    (tmp_path / f"{name}.py").write_text(MODULE, "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/store"
    Store.open(StoreConfig((url,), backup_count=0, partition_count=7)).close()
    return url


@pytest.fixture
def run(store: str, module: str) -> Run:
    def run(name: str, *options: str) -> Result:
        environment = {"DAGSTER_JET_STORE": store, "COLUMNS": "200"}
        reference = name if name.startswith("!") else f"{module}:{name}"
        arguments = ["plan", reference.removeprefix("!"), *options]
        return CliRunner().invoke(app, arguments, env=environment)

    return run


@pytest.fixture
def snapshot(store: str) -> None:
    """The job's last snapshot, as the pipeline `flights` took it, and an older one, taken when it
    was by carrier."""
    manifest = Manifest(
        job="flights",
        snapshot_id=3,
        epoch_id=9,
        execution_id=1,
        timeline=1,
        plan_fingerprint="",
        partition_count=7,
        sources={},
        watermarks={},
        shards={"flights": ((),), "hourly": ((), ())},
        artifacts=(),
        sinks={"out": destination_of(sinks.files("out", format="json"))},
        plan={
            "flights": {"kind": "source"},
            "hourly": {
                "kind": "aggregate",
                "format": 1,
                "keys": ["origin"],
                "frames": [3_600_000, 0],
                "partials": ["__count()"],
            },
        },
    )
    by_carrier = {**manifest.plan["hourly"], "keys": ["carrier"]}
    older = replace(manifest, snapshot_id=2, plan={**manifest.plan, "hourly": by_carrier})
    refs = tuple(
        SnapshotRef(m.snapshot_id, 9, 1, m.name, checksum(m.to_bytes()), 0, 0, committed=True)
        for m in (manifest, older)
    )
    with Store.open(StoreConfig((store,), backup_count=0, partition_count=7)) as opened:
        state = opened.map("jobs/flights/state")
        state.put_all({state.key(m.name): m.to_bytes() for m in (manifest, older)})
        record = ExecutionRecord("flights", 1, JobStatus.SUSPENDED, snapshots=refs)
        opened.register(record_register("flights")).claim(1, "me").write(record.to_bytes())


def states(shown: Result) -> dict[str, str]:
    return {row["stage"]: row["state"] for row in json.loads(shown.stdout) if row["state"]}


def test_a_job_that_never_ran_begins_with_everything_new(run: Run) -> None:
    shown = run("flights")
    assert shown.exit_code == 0, shown.stderr
    assert "Plan of flights" in shown.stdout
    assert states(run("flights", "--json")) == {"flights": "new", "hourly": "new"}


@pytest.mark.usefixtures("snapshot")
@pytest.mark.parametrize("name", ["flights", "wider", "made"])
def test_what_can_go_on_is_kept(run: Run, name: str) -> None:
    shown = run(name, "--json")
    assert shown.exit_code == 0, shown.stderr
    assert states(shown) == {"flights": "kept", "hourly": "kept"}


@pytest.mark.usefixtures("snapshot")
def test_what_could_not_go_on_is_told_with_its_reason_and_exit_code_1(run: Run) -> None:
    shown = run("by_carrier")
    assert shown.exit_code == 1
    (line,) = [line for line in shown.stdout.splitlines() if "│ hourly" in line]
    assert "incompatible" in line and "keys was ['origin'], is ['carrier']" in line
    document = run("by_carrier", "--json")
    assert document.exit_code == 1
    assert json.loads(document.stdout)[1] == {
        "stage": "hourly",
        "kind": "aggregate",
        "state": "incompatible",
        "reason": "keys was ['origin'], is ['carrier']",
        "guarantee": None,
    }


def test_what_sources_and_sinks_guarantee_is_told(run: Run) -> None:
    rows = json.loads(run("weaker", "--json").stdout)
    assert {row["stage"]: row["guarantee"] for row in rows} == {
        "flights": "exactly-once",
        "hourly": None,
        "out": "at-least-once",
    }


@pytest.mark.usefixtures("snapshot")
def test_an_older_snapshot_can_be_asked_about(run: Run) -> None:
    assert states(run("by_carrier", "--snapshot", "2", "--json"))["hourly"] == "kept"
    shown = run("flights", "--snapshot", "2")
    assert shown.exit_code == 1 and "keys was ['carrier'], is ['origin']" in shown.stdout
    shown = run("flights", "--snapshot", "9")
    assert shown.exit_code == 2
    assert "snapshot 9 is not retained; there are: 3, 2." in shown.stderr


@pytest.mark.usefixtures("snapshot")
def test_a_renamed_stage_is_a_new_one_and_a_lost_one(run: Run) -> None:
    shown = run("renamed", "--json")
    assert shown.exit_code == 1
    assert states(shown) == {"flights": "kept", "per hour": "new", "hourly": "dropped"}


def test_what_is_no_pipeline_is_a_sentence_and_exit_code_2(run: Run, module: str) -> None:
    for name, said in (
        ("!flights", "is not a valid pipeline reference"),
        ("missing", f"'{module}:missing' does not exist"),
        ("!no.such.module:flights", "cannot be imported"),
        ("number", "is a int, not a Pipeline"),
        ("needs", "cannot be called without arguments"),
    ):
        shown = run(name)
        assert shown.exit_code == 2, shown.stdout
        assert said in shown.stderr
        assert "Traceback" not in shown.stderr


def test_a_change_that_is_refused_is_shown_with_the_command_that_starts_it(
    run: Run, snapshot: None, module: str
) -> None:
    shown = run("renamed")
    assert shown.exit_code == 1
    assert f"    dagster-jet run {module}:renamed --renamed 'hourly=per hour'\n" in shown.stdout
    assert run("renamed", "--renamed", "hourly=per hour").exit_code == 0
    shown = run("by_carrier")
    assert f"    dagster-jet run {module}:by_carrier --dropped-state hourly\n" in shown.stdout
    assert states(run("by_carrier", "--dropped-state", "hourly", "--json"))["hourly"] == "new"
    shown = run("other_sink")
    assert f"    dagster-jet run {module}:other_sink --renamed out=results\n" in shown.stdout
    wrong = run("renamed", "--renamed", "hourly")
    assert wrong.exit_code == 2 and "expected FORMER=PRESENT" in wrong.stderr
