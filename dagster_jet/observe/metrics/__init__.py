"""OpenTelemetry metrics of running jobs, if the process is configured for them.

    events ──▶ JobMetrics ──▶ Instruments ──▶ the meter provider's readers (OTLP, Prometheus, ...)

Nothing is imported, started or counted otherwise; and a metric is never a reason for a job to fail.
"""

from dagster_jet.observe.metrics.job_metrics import JobMetrics, open_metrics

__all__ = ["JobMetrics", "open_metrics"]
