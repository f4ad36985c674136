"""A real job is looked at while it runs, from outside: explained, listed, and measured."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.request import urlopen

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from typer.testing import CliRunner

from dagster_jet import FindingKind, JobConfig, Pipeline, sinks, windows
from dagster_jet import aggregates as agg
from dagster_jet.cli import app
from dagster_jet.observe.metrics import provider
from tests.long import long

from . import child
from .oracle import committed
from .partitioned_log import PartitionedLog
from .test_partition_watermarks import COLUMNS, WINDOW_MS, fill_log
from .world import World, wait_until

_SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)


@contextmanager
def collector() -> Iterator[tuple[str, dict[str, set[str]]]]:
    """An OTLP/HTTP receiver: its URL, and by metric the jobs that have sent it."""
    received: dict[str, set[str]] = {}

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = ExportMetricsServiceRequest()
            sent.ParseFromString(self.rfile.read(int(self.headers["Content-Length"])))
            metrics = (m for r in sent.resource_metrics for s in r.scope_metrics for m in s.metrics)
            for metric in metrics:
                data = getattr(metric, metric.WhichOneof("data"))
                jobs = received.setdefault(metric.name, set())
                for point in data.data_points:
                    attributes = {a.key: a.value.string_value for a in point.attributes}
                    jobs.add(attributes.get("jet.job", ""))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Port of the Prometheus exporter; this process has both exporters until the fixture ends."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp,prometheus")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "200")
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_HOST", "127.0.0.1")
    monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(number))
    yield number
    made = provider._made
    assert made is not None and made[1] is not None
    provider._shut_down(made[1])
    provider._made = None


def scraped(port: int) -> dict[tuple[str, str], float]:
    """Samples as Prometheus gets them, by metric and by the values of our own labels."""
    with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    found = {}
    for name, labels, value in _SAMPLE.findall(text):
        own = re.findall(r'jet_\w+="([^"]*)"', labels)
        found[name, " ".join(filter(None, own))] = float(value)
    return found


def asked(world: World, *command: str) -> Any:
    members = [arg for member in "abc" for arg in ("-s", f"file://{world.folder}/store/{member}")]
    shown = CliRunner().invoke(app, [*command, "--json", *members])
    assert shown.exit_code == 0, shown.output
    return json.loads(shown.stdout)


@long
def test_a_job_whose_windows_a_silent_partition_holds_open(
    world: World, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = fill_log(world.folder / "in")
    p = Pipeline("log")
    rates = {"quick": 80, "slow": 60, "quiet": 5, "never": 5}
    p.read_from(PartitionedLog(f"{world.folder}/in", rates), name="log").with_timestamps(
        "ts"
    ).group_by("k").window(windows.tumbling(f"{WINDOW_MS} ms")).aggregate(
        n=agg.count(), total=agg.sum("v"), name="counts"
    ).write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    read = 240 + 60 + 6
    with collector() as (endpoint, received), world.jet() as jet:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        job = jet.submit(p, JobConfig(**child.CONFIG), on_event=world.see)

        def is_held() -> bool:
            record = jet.job("log").record()
            if record is None or record.snapshot is None:
                return False
            kinds = [finding.kind for finding in jet.job("log").explain().findings]
            return {FindingKind.WATERMARK_HELD, FindingKind.NO_INPUT} <= set(kinds)

        wait_until(is_held, "somebody says who holds the watermark")
        # From outside: why nothing comes out, and at a glance.
        (document,) = asked(world, "job", "log")
        held = next(f for f in document["findings"] if f["kind"] == "watermark held")
        assert held["subject"] == "counts" and "partition never of log" in held["text"]
        assert document["stages"]["counts"]["held_back_partition"] == "never"
        assert document["sources"]["log"]["rows_read"] == read
        assert document["sources"]["log"]["partition_lag"]["never"] == 0
        wait_until(  # now and then it asks the sources
            lambda: asked(world, "top")[0]["doing"] == "waiting for input", "it waits for input"
        )
        (row,) = asked(world, "top")
        assert (row["job"], row["status"]) == ("log", "RUNNING")
        assert row["epoch_ms"] > 0 and row["snapshot_age_ms"] >= 0
        # Measured: what Prometheus gets is what the newest snapshot has.
        wait_until(
            lambda: scraped(port).get(("dagster_jet_source_rows_total", "log log")) == read,
            "all rows are in a committed snapshot",
        )
        now = scraped(port)
        assert now["dagster_jet_job_up", "log"] == 1
        assert now["dagster_jet_stage_state_rows", "log counts"] > 0
        assert ("dagster_jet_sink_rows_total", "log out") not in now
        assert now["dagster_jet_store_members", f"reachable {jet.store.store_id[:12]}"] == 3
        phases = {
            key for name, key in now if name == "dagster_jet_epoch_phase_duration_seconds_sum"
        }
        assert {"log action", "log step counts", "log writing out"} <= phases
        wait_until(lambda: "dagster_jet.commit.duration" in received, "it was pushed as well")
        assert received["dagster_jet.source.rows"] == {"log"}
        job.complete(120)
        ended = scraped(port)
    # Every window was closed at the end: the counters have what is there, row by row.
    assert committed(world.folder / "out", COLUMNS) == expected
    assert ended["dagster_jet_sink_rows_total", "log out"] == expected.total()
    assert ended["dagster_jet_source_rows_total", "log log"] == read
    assert ("dagster_jet_job_up", "log") not in ended
