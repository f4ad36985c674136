"""A small pipeline as a user would define it; the child processes of the tests import it.

No ``from __future__ import annotations`` here: Dagster refuses a context annotated with text.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_jet import (
    JetResource,
    Pipeline,
    build_jet_job,
    build_jet_source_assets,
    jet_assets,
    sinks,
    sources,
    windows,
)
from dagster_jet import aggregates as agg

SPARK = {"spark.master": "local[2]", "spark.ui.enabled": "false"}


def tiny(folder: Path | str, window: str = "1 hour", *, more: bool = False) -> Pipeline:
    """Two sinks, or three in its next version."""
    folder, p = Path(folder), Pipeline("tiny")
    events = p.read_from(
        sources.files(str(folder / "in"), format="json", schema="k string, at timestamp, v double"),
        name="events",
    ).with_timestamps("at")
    hourly = (
        events.group_by("k")
        .window(windows.tumbling(window))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="per_hour")
    )
    hourly.write_to(sinks.files(str(folder / "per_hour"), format="json"), name="per_hour_out")
    events.write_to(sinks.files(str(folder / "copy"), format="json"), name="copy_out")
    if more:
        events.filter("v >= 30").write_to(
            sinks.files(str(folder / "more"), format="json"), name="more_out"
        )
    return p


def put_file(folder: Path, number: int, rows: int = 60) -> None:
    """Move one finished file of rows into the input: hour `number`, keys k0 to k2."""
    (folder / "in").mkdir(parents=True, exist_ok=True)
    lines = [
        json.dumps({"k": f"k{i % 3}", "at": f"2024-01-01T{number:02d}:{i % 60:02d}:00Z", "v": i})
        for i in range(rows)
    ]
    staged = folder / f"staged-{number}"
    staged.write_text("\n".join(lines) + "\n", encoding="utf-8")
    staged.rename(folder / "in" / f"{number:04d}.json")


def committed_rows(sink: Path) -> list[dict[str, object]]:
    """The rows of the files that the sink's epoch manifests list."""
    rows = []
    for manifest in sorted((sink / "_epochs").glob("[!.]*.json")):
        for file in json.loads(manifest.read_text(encoding="utf-8"))["files"]:
            text = (sink / file["name"]).read_text(encoding="utf-8")
            rows += [json.loads(line) for line in text.splitlines()]
    return rows


def settings(folder: Path) -> dict[str, Any]:
    return {
        "store": [os.environ.get("TINY_STORE", f"file://{folder}/store")],
        "backup_count": 0,
        "spark_config": SPARK,
        "work_dir": str(folder / "work"),
        "snapshot_interval": "200 ms",
        "min_report_interval_seconds": 0,
        "lease_ttl": os.environ.get("TINY_LEASE_TTL", "10 seconds"),
    }


def jet_resource(folder: Path) -> JetResource:
    return JetResource(**settings(folder))


def tiny_assets(folder: Path, window: str = "1 hour") -> dg.AssetsDefinition:
    retry_policy = dg.RetryPolicy(max_retries=3, delay=1) if "TINY_RETRIES" in os.environ else None

    pipeline = tiny(folder, window, more="TINY_MORE" in os.environ)

    @jet_assets(pipeline=pipeline, retry_policy=retry_policy)
    def tiny_stream(context: dg.AssetExecutionContext, jet: JetResource):
        yield from jet.run(context=context)

    return tiny_stream


def tiny_definitions(folder: Path) -> dg.Definitions:
    assets = tiny_assets(folder)
    return dg.Definitions(
        assets=[assets, *build_jet_source_assets(tiny(folder))],
        jobs=[build_jet_job(assets)],
        resources={"jet": jet_resource(folder)},
    )


def tiny_job() -> dg.JobDefinition:
    """Job for `reconstructable`: another process finds its folder in the environment."""
    return tiny_definitions(Path(os.environ["TINY_FOLDER"])).resolve_job_def("tiny_job")


def cancel_while_dagster_handles_an_event() -> None:
    """Cancel this run right after the event log has taken one of several materializations.

    The interrupt then meets Dagster's own code, between two events of the asset.
    """
    handle, pending = dg.DagsterInstance.handle_new_event, [2]

    def handle_and_cancel(self: dg.DagsterInstance, entry: dg.EventLogEntry, **options: Any) -> Any:
        answer = handle(self, entry, **options)
        event = entry.dagster_event
        if event is not None and event.event_type is dg.DagsterEventType.ASSET_MATERIALIZATION:
            pending[0] -= 1
            if pending[0] == 0:
                (run,) = self.get_runs()
                self.report_run_canceling(run)
                os.kill(os.getpid(), signal.SIGTERM)
        return answer

    dg.DagsterInstance.handle_new_event = handle_and_cancel


def main() -> None:
    """Run the job until somebody stops it, as a run worker does."""
    if "TINY_CANCELS_ITSELF" in os.environ:
        cancel_while_dagster_handles_an_event()
    with dg.DagsterInstance.get() as instance:
        tags = json.loads(os.environ.get("TINY_RUN_TAGS", "{}"))
        dg.execute_job(dg.reconstructable(tiny_job), instance=instance, tags=tags)


if __name__ == "__main__":
    main()
