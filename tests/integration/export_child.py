"""The process that is killed while it exports a snapshot, begins with one, or deletes one."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

from dagster_jet import JobConfig
from dagster_jet.execution.events import EpochCompleted, JobEvent

from . import child

EPOCHS_BEFORE = 2
"""Epochs before the export is requested, so that there is something in it."""


def main(folder: Path, order: dict[str, Any]) -> int:
    if "delete" in order:
        with child.open_jet(folder) as jet:
            jet.delete_export(order["delete"])
        return 0
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        child.attach()
    has_begun = threading.Event()

    def see(event: JobEvent) -> None:
        print(event, flush=True)
        if isinstance(event, EpochCompleted) and event.epoch_id >= EPOCHS_BEFORE:
            has_begun.set()

    with child.open_jet(folder) as jet:
        job = jet.submit(
            child.crash_pipeline(folder, **order.get("pipeline", {})),
            JobConfig(**{**child.CONFIG, **order.get("config", {})}),
            on_event=see,
            **order.get("start", {}),
        )
        if "export" in order:
            has_begun.wait()
            print(job.export_snapshot(order["export"], timeout=240), flush=True)
        job.result()
    return 0
