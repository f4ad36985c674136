"""OpenLineage events of a streaming job, through the real client into a file; no Spark."""

import builtins
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import pytest
from openlineage.client import OpenLineageClient

from dagster_jet import Jet, JetResource, Pipeline, build_jet_openlineage_sensor, jet_assets
from dagster_jet.errors import ConfigurationError
from dagster_jet.ownership.lease import new_lease
from dagster_jet.snapshot.record import JobStatus

from .recorded_job import RecordedJob


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        yield jet


class Backend:
    """Ticks the sensor, and reads what its client has written."""

    def __init__(self, pipeline: Pipeline, folder: Path, *, has_client: bool = True) -> None:
        @jet_assets(pipeline=pipeline)
        def stream():
            yield from ()

        self.file, self.cursor = folder / "events.jsonl", None
        transport = {"type": "file", "log_file_path": str(self.file), "append": True}
        client = OpenLineageClient(config={"transport": transport})
        self.sensor = build_jet_openlineage_sensor(stream, client=client if has_client else None)
        self.resource = JetResource(store=[f"file://{folder}/store"], backup_count=0)

    def tick(self) -> list[dict[str, Any]]:
        """The new events."""
        self.file.write_text("")
        with dg.build_sensor_context(cursor=self.cursor, resources={"jet": self.resource}) as one:
            self.cursor = self.sensor.evaluate_tick(one).cursor
        return [json.loads(line) for line in self.file.read_text().splitlines()]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["eventType"] for event in events]


def rows(number: int) -> dict[str, int]:
    return {"revenue_out": number, "large_out": number, "bad_orders": 0}


def test_a_run_of_a_stream_from_start_to_end(jet: Jet, pipeline: Pipeline, tmp_path: Path) -> None:
    job, backend = RecordedJob(jet), Backend(pipeline, tmp_path)
    assert backend.tick() == []
    job.is_held_by(new_lease("o", 10_000, None))
    job.commits(1, rows(1))
    start, running = backend.tick()
    assert kinds([start, running]) == ["START", "RUNNING"]
    assert start["eventTime"] <= running["eventTime"], "failed before: a start was now"
    assert running["job"]["name"] == "shop"
    assert running["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert [(one["namespace"], one["name"]) for one in running["inputs"]] == [
        ("file", "/in/orders")
    ]
    written = {
        one["name"]: one["facets"]["version"]["datasetVersion"] for one in running["outputs"]
    }
    assert written == {"/out/bad": "1", "/out/large": "1", "/out/revenue": "1"}
    assert backend.tick() == [], "nothing is emitted twice"
    job.commits(2, rows(2))
    (next_one,) = backend.tick()
    assert (next_one["eventType"], next_one["run"]) == ("RUNNING", start["run"])
    job.has_ended(JobStatus.COMPLETED)
    assert kinds(backend.tick()) == ["COMPLETE"]
    assert backend.tick() == []


def test_rows_that_a_start_commits_are_told(jet: Jet, pipeline: Pipeline, tmp_path: Path) -> None:
    """Failed before: the snapshot was known by its id, though sinks had new rows."""
    job, backend = RecordedJob(jet), Backend(pipeline, tmp_path)
    job.is_held_by(new_lease("o", 10_000, None))
    job.commits(1, rows(3), held={"large_out": 2})
    assert kinds(backend.tick()) == ["START", "RUNNING"]
    job.commits_what_it_holds()
    assert kinds(backend.tick()) == ["RUNNING"]
    assert backend.tick() == []


def test_no_event_of_a_run_follows_its_end(jet: Jet, pipeline: Pipeline, tmp_path: Path) -> None:
    """Failed before: the next execution committed what the dead one had decided, and the backend
    got RUNNING after ABORT, and never an end again."""
    job, backend = RecordedJob(jet), Backend(pipeline, tmp_path)
    job.is_held_by(new_lease("o", 10_000, None))
    job.commits(1, rows(1))
    started = [event["run"]["runId"] for event in backend.tick()]
    job.commits(2, rows(2), committed=False)
    job.is_held_by(None)
    assert kinds(backend.tick()) == ["ABORT"]
    job.starts_execution(2, new_lease("p", 10_000, None))
    job.commits_what_it_holds()
    assert backend.tick() == []
    job.commits(3, rows(3))
    events = backend.tick()
    assert kinds(events) == ["START", "RUNNING"]
    assert not {event["run"]["runId"] for event in events} & {*started}


def test_a_job_that_was_deleted_and_ran_again_is_told(
    jet: Jet, pipeline: Pipeline, tmp_path: Path
) -> None:
    """Failed before: its ids begin again, so its snapshot was known, and its version, too."""
    backend, versions = Backend(pipeline, tmp_path), []
    for execution_id in (1, 50):
        job = RecordedJob(jet, listed=True, execution_id=execution_id)
        job.is_held_by(new_lease("o", 10_000, None))
        job.commits(2, rows(2))
        start, *more = backend.tick()
        assert kinds([start, *more]) == ["START", "RUNNING"]
        versions += [more[0]["outputs"][0]["facets"]["version"]["datasetVersion"]]
        job.has_ended(JobStatus.COMPLETED)
        assert kinds(backend.tick()) == ["COMPLETE"]
        jet.job("shop").delete(release_sinks=False)
    assert versions == ["2", "2.50"]


class Collector(BaseHTTPRequestHandler):
    """A backend that answers slowly, and keeps what it has answered."""

    received: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        time.sleep(0.3)
        self.received.append(event["eventType"])
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def test_a_tick_ends_when_a_transport_with_a_queue_has_delivered(
    jet: Jet, pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: each tick left a thread, and the cursor was ahead of the backend."""
    job = RecordedJob(jet)
    job.is_held_by(new_lease("o", 10_000, None))
    job.commits(1, rows(1))
    backend = Backend(pipeline, tmp_path, has_client=False)
    Collector.received.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__TYPE", "async_http")
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OPENLINEAGE__TRANSPORT__URL", url)
        backend.tick()
        received, before = [*Collector.received], threading.active_count()
        for _ in range(3):
            backend.tick()
        assert threading.active_count() <= before
        server.shutdown()
    assert sorted(received) == ["RUNNING", "START"]
    assert Collector.received == received, "nothing is emitted twice"


def test_without_the_extra_the_cure_is_named(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("openlineage"):
            raise ModuleNotFoundError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"dagster-jet\[openlineage\]"):

        @jet_assets(pipeline=pipeline)
        def stream():
            yield from ()

        build_jet_openlineage_sensor(stream)
