"""`dagster dev` with the repository's own definitions: start, kill, restart, cancel, resume."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from dagster_jet import Jet
from dagster_jet.jobs.supervision import read_supervision
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus
from demo.dagster_process import DagsterProcess, graphql
from demo.observer import DAGSTER_JOB, PIPELINE, Observer

TIMEOUT_SECONDS = 300

TERMINATE = """
mutation Terminate($run: String!) { terminateRun(runId: $run) { __typename } }
"""
LAUNCH = """
mutation Launch($job: String!) {
  launchRun(executionParams: {
    selector: {
      repositoryName: "__repository__", repositoryLocationName: "jet", pipelineName: $job
    }
    runConfigData: {}
  }) { __typename }
}
"""
RE_EXECUTE = """
mutation ReExecute($run: String!) {
  launchRunReexecution(reexecutionParams: {parentRunId: $run, strategy: ALL_STEPS}) { __typename }
}
"""
LAST_TICK = """
query Tick($sensor: String!) {
  sensorOrError(sensorSelector: {
    repositoryName: "__repository__", repositoryLocationName: "jet", sensorName: $sensor
  }) { ... on Sensor { sensorState { ticks(limit: 1) { status skipReason } } } }
}
"""


@dataclass
class World:
    """A running Dagster, the store its job uses, and the folder its input comes from."""

    data: Path
    dagster: DagsterProcess
    jet: Jet

    @property
    def observer(self) -> Observer:
        return Observer(self.dagster.url, self.jet)

    def record(self) -> ExecutionRecord:
        record = self.jet.record(PIPELINE)
        assert record is not None
        return record

    def wait_for(self, what: str, happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not happened():
            assert time.monotonic() < deadline, f"in vain: {what}\n{self.dagster.log_tail(60)}"
            time.sleep(0.1)

    def put_flights(self, number: int, count: int = 50) -> None:
        """One file of flights, an hour per file, half of them badly delayed."""
        flight = {"carrier": "UA", "origin": "EWR", "dest": "IAH", "tailnum": None}
        lines = [
            json.dumps(
                {
                    **flight,
                    "at": f"2013-01-{number + 1:02d}T10:{i:02d}:00Z",
                    "flight": i,
                    "delay": 90.0 * (i % 2),
                }
            )
            for i in range(count)
        ]
        staged = self.data / f"staged-{number}"
        staged.write_text("\n".join(lines) + "\n", encoding="utf-8")
        staged.rename(self.data / "inbox" / f"{number:04d}.json")

    def feed(self) -> int:
        """Rows committed to the feed of badly delayed flights."""
        manifests = (self.data / "out" / "badly_delayed" / "_epochs").glob("[!.]*.json")
        return sum(
            file["rows"]
            for manifest in manifests
            for file in json.loads(manifest.read_text(encoding="utf-8"))["files"]
        )

    def is_running(self, since: int = 0) -> bool:
        record = self.jet.record(PIPELINE)
        return (
            record is not None
            and record.execution_id > since
            and record.status is JobStatus.RUNNING
        )

    def last_skip_reason(self) -> str:
        answer = graphql(self.dagster.url, LAST_TICK, {"sensor": f"{PIPELINE}_supervisor"})
        ticks = answer["sensorOrError"]["sensorState"]["ticks"]
        return (ticks[0]["skipReason"] or "") if ticks else ""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    data = tmp_path / "data"
    (data / "inbox").mkdir(parents=True)
    (data / "reference").mkdir()
    (data / "reference" / "airlines.csv").write_text("carrier,airline\nUA,United\n")
    (data / "reference" / "weather.csv").write_text("origin,hour,temp,wind_speed,precip,visib\n")
    environment = {
        "JET_DATA": str(data),
        "JET_REPORT_INTERVAL_SECONDS": "0",
        "JET_SUPERVISOR_SECONDS": "5",
    }
    dagster = DagsterProcess(tmp_path / "home", environment)
    dagster.start()
    try:
        dagster.wait_until_up()
        (data / "store").mkdir(exist_ok=True)
        store = [f"file://{data}/store/{member}" for member in ("a", "b", "c")]
        with Jet(store=store, backup_count=1) as jet:
            yield World(data, dagster, jet)
    finally:
        dagster.stop()


@pytest.mark.timeout(900)
def test_a_stream_under_dagster(world: World) -> None:
    world.put_flights(0)
    world.wait_for("the sensor starts the job", world.is_running)
    world.wait_for("the first file is committed", lambda: world.feed() == 25)

    # Killed: the sensor finds the process gone and requests the next generation.
    first = world.record()
    assert first.lease is not None
    assert world.dagster.is_ours(first.lease.pid)
    psutil.Process(first.lease.pid).send_signal(signal.SIGKILL)
    world.put_flights(1)
    world.wait_for("it is running again", lambda: world.is_running(first.execution_id))
    world.wait_for("the second file is committed", lambda: world.feed() == 50)
    assert [run.status for run in world.observer.runs()] == ["FAILURE", "STARTED"]
    assert world.record().restarts == 1

    # Cancelled in the UI: drains, and stays down although the sensor is on.
    second = world.observer.runs()[-1].run_id
    graphql(world.dagster.url, TERMINATE, {"run": second})
    world.wait_for("the run is cancelled", lambda: world.observer.runs()[-1].status == "CANCELED")
    record = world.record()
    assert record.status is JobStatus.NOT_RUNNING
    assert record.lease is None
    supervision = read_supervision(world.jet.store, PIPELINE)
    assert supervision is not None
    assert (supervision.intent, supervision.generation) == ("paused", 2)
    world.wait_for("the sensor says why", lambda: "paused" in world.last_skip_reason())
    assert len(world.observer.runs()) == 2

    # Re-executed by hand, with the tags of the sensor's run: goes on where it was, and is
    # supervised again. Until it has its lease the sensor requests nothing beside it.
    world.put_flights(2)
    graphql(world.dagster.url, RE_EXECUTE, {"run": second})
    world.wait_for("the third file is committed", lambda: world.feed() == 75)
    resumed = read_supervision(world.jet.store, PIPELINE)
    assert resumed is not None and resumed.intent == "always-on"
    world.wait_for("the sensor adopts it", lambda: "adopt" in world.last_skip_reason())
    assert [run.status for run in world.observer.runs()] == ["FAILURE", "CANCELED", "STARTED"]

    # Launched once more beside it: ends softly, and the stream runs on.
    third = world.record()
    graphql(world.dagster.url, LAUNCH, {"job": DAGSTER_JOB})
    world.wait_for(
        "the surplus run has ended",
        lambda: [run.status for run in world.observer.runs()][3:] == ["SUCCESS"],
    )
    world.put_flights(3)
    world.wait_for("the fourth file is committed", lambda: world.feed() == 100)
    assert world.record().execution_id == third.execution_id
