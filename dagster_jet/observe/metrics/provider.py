"""Meter provider for metrics: the program's own, or one built from OpenTelemetry's variables.

| variable | means |
| --- | --- |
| ``OTEL_METRICS_EXPORTER`` | ``otlp``, ``prometheus``, both with a comma, or ``none`` |
| ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_EXPORTER_OTLP_METRICS_ENDPOINT`` | set: ``otlp`` |
| ``OTEL_EXPORTER_PROMETHEUS_HOST``, ``OTEL_EXPORTER_PROMETHEUS_PORT`` | localhost, 9464 |
| ``OTEL_SDK_DISABLED`` | ``true``: no metrics |

Source: https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

_logger = logging.getLogger(__name__)

_API, _PLACEHOLDERS = "opentelemetry.metrics", "opentelemetry.metrics._internal"
_LAST_EXPORT_MS = 3_000
"""Maximum wait for the last export at the end of the process; the collector may be down."""
_made_lock = threading.Lock()
_made: tuple[tuple[str, ...], MeterProvider | None] | None = None
"""Provider of this process with the exporters it was built for; None before the first job."""


def meter_provider() -> MeterProvider | None:
    """Returns the program's own meter provider, or one built from the environment.

    None: metrics are not configured, or a requirement is missing, which is logged once.
    """
    own = _set_by_the_program()
    if own is not None:
        return own
    wanted = exporters_wanted(os.environ)
    return _from_environment(wanted) if wanted else None


def exporters_wanted(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the names of the exporters; empty if metrics are not configured.

    Example:
        >>> exporters_wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
        ('otlp',)
    """
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ()
    named = environment.get("OTEL_METRICS_EXPORTER", "")
    if not named:
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
        return ("otlp",) if any(environment.get(name) for name in endpoints) else ()
    names = dict.fromkeys(name.strip().lower() for name in named.split(","))
    return tuple(name for name in names if name not in ("", "none"))


def _set_by_the_program() -> MeterProvider | None:
    """Returns None while OpenTelemetry has only its placeholder. Imports nothing."""
    if _API not in sys.modules:
        return None
    from opentelemetry.metrics import get_meter_provider

    provider = get_meter_provider()
    return None if type(provider).__module__.startswith(_PLACEHOLDERS) else provider


def _from_environment(wanted: tuple[str, ...]) -> MeterProvider | None:
    """Returns the process's provider, shared by all jobs because it owns a thread or a port."""
    global _made
    with _made_lock:
        if _made is None or _made[0] != wanted:
            if _made is not None and _made[1] is not None:
                _shut_down(_made[1])
            _made = (wanted, _make(wanted))
        return _made[1]


def _make(wanted: tuple[str, ...]) -> MeterProvider | None:
    try:
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource

        readers = [reader for name in wanted if (reader := _reader(name)) is not None]
    except ImportError as error:
        _logger.warning(
            "metrics are configured (%s), and %s is not installed: jobs run without them. "
            "Install dagster-jet[metrics].",
            ", ".join(wanted),
            error.name,
        )
        return None
    if not readers:
        return None
    provider = MeterProvider(readers, Resource.create(_resource()), shutdown_on_exit=False)
    atexit.register(_shut_down, provider)
    return provider


def _reader(name: str) -> Any:
    if name == "prometheus":
        return _prometheus_reader()
    if name != "otlp":
        _logger.warning(
            "OTEL_METRICS_EXPORTER names %r; dagster-jet exports by otlp or prometheus. Jobs run "
            "without it. A program can set a meter provider of its own.",
            name,
        )
        return None
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    exporter = _otlp_exporter()
    return None if exporter is None else PeriodicExportingMetricReader(exporter)


def _otlp_exporter() -> Any:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    if protocol != "http/protobuf":
        _logger.warning(
            "metrics are configured to be sent by %s; dagster-jet sends http/protobuf, to port "
            "4318 of most collectors: set OTEL_EXPORTER_OTLP_PROTOCOL. Jobs run without them.",
            protocol,
        )
        return None
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


def _prometheus_reader() -> Any:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import CollectorRegistry, start_http_server

    host = os.environ.get("OTEL_EXPORTER_PROMETHEUS_HOST", "localhost")
    port = os.environ.get("OTEL_EXPORTER_PROMETHEUS_PORT", "9464")
    registry = CollectorRegistry()  # our own registry, without the program's other metrics
    try:
        start_http_server(int(port), host, registry)
    except (OSError, ValueError) as error:
        _logger.warning(
            "metrics cannot be served on %s:%s (%s): jobs run without. Give every process a port "
            "of its own in OTEL_EXPORTER_PROMETHEUS_PORT, or push with OTEL_METRICS_EXPORTER=otlp.",
            host,
            port,
            error,
        )
        return None
    return PrometheusMetricReader(registry=registry)


def _resource() -> dict[str, str]:
    """Returns the resource attributes that the environment does not set."""
    own = {"service.instance.id": uuid.uuid4().hex}
    said = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name" not in said:
        own["service.name"] = "dagster_jet"
    return {name: value for name, value in own.items() if name not in said}


def _shut_down(provider: Any) -> None:
    atexit.unregister(_shut_down)  # there is one provider per process
    try:
        provider.shutdown(timeout_millis=_LAST_EXPORT_MS)
    except Exception as error:  # noqa: BLE001 - the process ends regardless of the collector
        _logger.debug("the last metrics could not be exported: %s", error)
