"""Times inside Spark tasks. Python workers import this module, so it must stay one of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from dagster_jet.spark.tasks.fused_task import FusedTask

LOG = "JET_BENCH_TASK_LOG"


class TimedFusedTask(FusedTask):
    """A `FusedTask` that notes when it began, had its input, and ended."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        entered = time.time()
        held = list(batches)
        began = time.time()
        answer = list(super().__call__(iter(held)))
        note = {
            "epoch": self.barrier.epoch_id,
            "snapshot": self.barrier.snapshot_id is not None,
            "entered": entered,
            "began": began,
            "ended": time.time(),
        }
        self._append(note)
        yield from answer

    @staticmethod
    def _append(note: dict[str, Any]) -> None:
        with open(os.environ[LOG], "a", encoding="utf-8") as log:
            log.write(json.dumps(note) + "\n")
