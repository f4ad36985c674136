"""Processes with and without metrics: what is configured is global to a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from dagster_jet.observe.metrics import provider
from dagster_jet.observe.metrics.provider import exporters_wanted
from tests.long import long

ROOT = Path(__file__).parents[3]
PRELUDE = """
import logging, sys, threading
logging.basicConfig(format="%(name)s: %(message)s")
sys.path.insert(0, {root!r})
from dagster_jet.store import Store, StoreConfig
from dagster_jet.observe.metrics import open_metrics

def opened(job="shop"):
    return open_metrics(job, {{"out"}}, store, lambda: 0)

store = Store.open(StoreConfig(("file://{folder}/a",), backup_count=0))
"""


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    prelude = PRELUDE.format(root=str(ROOT), folder=folder)
    return subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script)],
        env={**clean, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_process_that_is_not_configured_imports_and_starts_nothing(tmp_path: Path) -> None:
    ran = run(
        """
        threads = threading.active_count()
        import dagster_jet.jobs.pipeline_job
        assert opened() is None
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
        assert threading.active_count() <= threads  # the store's own may end meanwhile
        """,
        tmp_path,
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c/m"}, ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/t"}, ()),
        ({"OTEL_METRICS_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, ()),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, ("prometheus",)),
        ({"OTEL_METRICS_EXPORTER": "otlp, Prometheus,otlp"}, ("otlp", "prometheus")),
        ({"OTEL_METRICS_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "TRUE"}, ()),
    ],
)
def test_the_standard_variables(environment: dict[str, str], wanted: tuple[str, ...]) -> None:
    assert exporters_wanted(environment) == wanted


def test_a_provider_of_the_program_is_used_and_the_environment_is_not(tmp_path: Path) -> None:
    ran = run(
        """
        from opentelemetry import metrics
        assert opened() is None  # the API alone has only its placeholder
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        reader = InMemoryMetricReader()
        metrics.set_meter_provider(MeterProvider([reader]))
        from dagster_jet.events import EpochCompleted
        job = opened()
        job.note(EpochCompleted("shop", 1, 1, 7, 5.0))
        (resource,) = reader.get_metrics_data().resource_metrics
        assert {m.name for m in resource.scope_metrics[0].metrics} >= {"dagster_jet.epoch.rows"}
        assert opened("other").instruments is job.instruments
        assert not [t for t in threading.enumerate() if "Otel" in t.name]
        """,
        tmp_path,
        OTEL_SDK_DISABLED="",
    )
    assert ran.returncode == 0, ran.stderr


def test_a_missing_extra_is_one_sentence(tmp_path: Path) -> None:
    ran = run(
        """
        sys.modules["opentelemetry.sdk.metrics"] = None
        assert opened() is None and opened("other") is None
        """,
        tmp_path,
        OTEL_METRICS_EXPORTER="otlp",
    )
    assert ran.returncode == 0, ran.stderr
    said = [line for line in ran.stderr.splitlines() if "dagster_jet" in line]
    assert len(said) == 1 and said[0].endswith("Install dagster-jet[metrics].")


@pytest.mark.parametrize(
    ("exporter", "variables", "says"),
    [
        ("console", {}, "names 'console'"),
        ("otlp", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "set OTEL_EXPORTER_OTLP_PROTOCOL"),
        ("prometheus", {"OTEL_EXPORTER_PROMETHEUS_PORT": "x"}, "on localhost:x"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    exporter: str,
    variables: dict[str, str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert provider._make((exporter,)) is None
    assert len(caplog.records) == 1 and says in caplog.records[0].getMessage()


def test_a_port_that_another_process_has_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_HOST", "127.0.0.1")
        monkeypatch.setenv("OTEL_EXPORTER_PROMETHEUS_PORT", str(taken.getsockname()[1]))
        assert provider._make(("prometheus",)) is None
    (said,) = caplog.records
    assert "Give every process a port of its own" in said.getMessage()


@pytest.mark.parametrize(
    "answers",
    [pytest.param(False, marks=long, id="refuses"), pytest.param(None, id="never answers")],
)
def test_a_collector_that_is_down_delays_neither_the_job_nor_the_end_of_its_process(
    tmp_path: Path, answers: bool | None
) -> None:
    """Exports go wrong all the time, in a thread that is not the job's."""
    with socket.socket() as collector:
        collector.bind(("127.0.0.1", 0))
        if answers is None:
            collector.listen()
        endpoint = f"http://127.0.0.1:{collector.getsockname()[1]}"
        ran = run(
            """
            import time
            from dagster_jet.events import EpochCompleted
            job = opened()
            slowest = 0.0
            until = time.monotonic() + 1
            while time.monotonic() < until:
                began = time.thread_time()
                job.note(EpochCompleted("shop", 1, 1, 7, 5.0))
                slowest = max(slowest, time.thread_time() - began)
            assert slowest < 0.2, slowest
            began = time.monotonic()
            from dagster_jet.observe.metrics import provider
            provider._shut_down(provider._made[1])
            print(time.monotonic() - began)
            """,
            tmp_path,
            OTEL_EXPORTER_OTLP_ENDPOINT=endpoint,
            OTEL_METRIC_EXPORT_INTERVAL="50",
        )
    assert ran.returncode == 0, ran.stderr
    took_s = float(ran.stdout.split()[0])
    assert took_s < 8, took_s  # of the 10 that the exporter would try
