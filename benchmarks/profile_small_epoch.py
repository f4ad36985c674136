"""Time of a small epoch by phase: the engine's own calls, timed from outside.

Indented phases are parts of the one above. JVM phases come from Spark's query tracker and status
store, task phases from inside the Python worker.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql.classic.dataframe import DataFrame
from rich.console import Console
from rich.table import Table

from benchmarks import jet_query, task_timer, thread_cpu
from benchmarks.data import Dataset
from dagster_jet.execution.epoch_accounting import EpochAccounting
from dagster_jet.execution.epoch_driver import EpochDriver
from dagster_jet.execution.events import EpochCompleted, JobEvent
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.ownership.record_keeper import RecordKeeper
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.spark.epoch import EpochRunner
from dagster_jet.spark.frames import fusion_frames
from dagster_jet.spark.frames.epoch_frames import EpochFrames
from dagster_jet.spark.frames.prepared_frames import PreparedFrames

WARM_UP = 40
EPOCH = "epoch, wall between two ends"
PHASES = (
    EPOCH,
    "look around (poll, lag)",
    "run epoch",
    "  stage inputs, delete runs",
    "  runner",
    "    write parameters",
    "    build frames (py4j)",
    "    collect",
    "      before the job is submitted",
    "        Catalyst analysis",
    "        Catalyst optimization",
    "        Catalyst planning",
    "      job submitted -> collect returns",
    "        collect called -> Python task entered",
    "        Python task waits for its input",
    "        Python task works",
    "        Python task ended -> collect returns",
    "    read observations",
    "    release",
    "  account",
    "(journal write, beside)",
    "(manifest write, beside)",
    "(record write, beside)",
    "(phase 2, beside)",
    "(garbage, beside)",
)

CALLS: tuple[tuple[type, str, str], ...] = (
    (EpochDriver, "poll", "look around (poll, lag)"),
    (EpochDriver, "run", "run epoch"),
    (EpochDriver, "_stage_inputs", "  stage inputs, delete runs"),
    (EpochRunner, "run", "  runner"),
    (PreparedFrames, "of", "    write parameters"),
    (EpochFrames, "_plan_action", "    build frames (py4j)"),
    (EpochFrames, "seen", "    read observations"),
    (EpochFrames, "release", "    release"),
    (EpochAccounting, "account", "  account"),
    (SnapshotStore, "write_journal", "(journal write, beside)"),
    (SnapshotStore, "write", "(manifest write, beside)"),
    (RecordKeeper, "write", "(record write, beside)"),
    (SinkCommitter, "commit", "(phase 2, beside)"),
    (SnapshotStore, "delete", "(garbage, beside)"),
)
"""Methods that are timed, and the name of each; a test checks that the engine still has them."""


@dataclass
class Recorder:
    """Milliseconds per phase of the epoch that is running, then of all epochs."""

    now: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    epochs: list[dict[str, float]] = field(default_factory=list)
    ended_at: float = 0.0
    cpu: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def timed(self, owner: Any, name: str, phase: str) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                self.now[phase] += (time.perf_counter() - began) * 1000

        setattr(owner, name, call)

    def on_event(self, event: JobEvent) -> None:
        if isinstance(event, EpochCompleted):
            now = time.perf_counter()
            self.now[EPOCH] = (now - self.ended_at) * 1000
            self.now["epoch_id"] = event.epoch_id
            self.ended_at = now
            self.epochs.append(dict(self.now))
            self.now.clear()
            if len(self.epochs) % WARM_UP == 0:
                self.cpu.append((len(self.epochs), thread_cpu.cpu_ms()))

    def cpu_per_epoch(self) -> dict[str, float]:
        """CPU-milliseconds per epoch between the first and the last look after warm-up."""
        (first, before), (last, after) = self.cpu[0], self.cpu[-1]
        return {k: (v - before.get(k, 0.0)) / max(1, last - first) for k, v in after.items()}


def install(recorder: Recorder) -> None:
    """Wraps what the loop calls."""
    for owner, name, phase in CALLS:
        recorder.timed(owner, name, phase)
    _wrap_collect(recorder)
    fusion_frames.FusedTask = task_timer.TimedFusedTask  # type: ignore[attr-defined]


def _wrap_collect(recorder: Recorder) -> None:
    original: Callable[[DataFrame], list[Any]] = DataFrame.collect

    def collect(frame: DataFrame) -> list[Any]:
        began = time.time()
        rows = original(frame)
        ended = time.time()
        note = recorder.now
        note["    collect"] += (ended - began) * 1000
        note["collect_began"], note["collect_ended"] = began, ended
        if len(recorder.epochs) >= WARM_UP:
            _ask_jvm(frame, note, began, ended)
        return rows

    DataFrame.collect = collect


def _ask_jvm(frame: DataFrame, note: dict[str, float], began: float, ended: float) -> None:
    asked = time.perf_counter()
    phases = frame._jdf.queryExecution().tracker().phases()
    entries = phases.iterator()
    while entries.hasNext():
        entry = entries.next()
        note[f"        Catalyst {entry._1()}"] = float(entry._2().durationMs())
    scala = frame.sparkSession.sparkContext._jsc.sc()
    jobs = scala.statusStore().jobsList(None)
    job = jobs.iterator().next()
    submitted = job.submissionTime().get().getTime() / 1000
    note["      before the job is submitted"] = (submitted - began) * 1000
    stages = scala.statusStore().lastStageAttempt
    ids = job.stageIds().iterator()
    number = 0
    while ids.hasNext():
        stage = stages(ids.next())
        if stage.submissionTime().isDefined() and stage.completionTime().isDefined():
            number += 1
            took = stage.completionTime().get().getTime() - stage.submissionTime().get().getTime()
            note[f"Spark stage #{number}, {stage.numTasks()} task(s)"] = took
            note[f"  executor run time #{number}"] = stage.executorRunTime()
            note[f"  executor CPU time #{number}"] = stage.executorCpuTime() / 1e6
    compiled = frame.sparkSession._jvm.org.apache.spark.metrics.source.CodegenMetrics
    note["classes compiled so far"] = compiled.METRIC_COMPILATION_TIME().getCount()
    note["      job submitted -> collect returns"] = (ended - submitted) * 1000
    note["asking"] = (time.perf_counter() - asked) * 1000


def measure(folder: Path, epochs: int = 160) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Phases of every epoch after warm-up, and CPU per epoch."""
    source = Dataset(files=epochs, rows_per_file=1000, rows_per_ms=1).write(folder / "data")
    log = folder / "tasks.jsonl"
    log.write_text("")
    os.environ[task_timer.LOG] = str(log)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent.parent)
    recorder = Recorder()
    install(recorder)
    with jet_query.open_jet(folder / "store") as jet:
        recorder.ended_at = time.perf_counter()
        jet.run(
            jet_query.pipeline(source, folder / "out", 10_000),
            jet_query.config(1000),
            until="completed",
            on_event=recorder.on_event,
        )
    notes = [json.loads(line) for line in log.read_text().splitlines()]
    tasks = {note["epoch"]: note for note in notes}
    measured = recorder.epochs[WARM_UP:-2]
    for one in measured:
        one[EPOCH] -= one.pop("asking", 0.0)
        task = tasks.get(int(one.pop("epoch_id")))
        began, ended = one.pop("collect_began", 0.0), one.pop("collect_ended", 0.0)
        if task is not None:
            one["        collect called -> Python task entered"] = (task["entered"] - began) * 1000
            one["        Python task waits for its input"] = (
                task["began"] - task["entered"]
            ) * 1000
            one["        Python task works"] = (task["ended"] - task["began"]) * 1000
            one["        Python task ended -> collect returns"] = (ended - task["ended"]) * 1000
            one["snapshot"] = float(task["snapshot"])
    return measured, recorder.cpu_per_epoch()


def report(measured: list[dict[str, float]], cpu: dict[str, float], console: Console) -> None:
    plain = [m for m in measured if not m.get("snapshot")]
    saving = [m for m in measured if m.get("snapshot")]
    seen = dict.fromkeys(name for m in measured for name in m)
    others = [name for name in seen if name not in PHASES and name != "snapshot"]
    names = [*(name for name in PHASES if name in seen), *others]
    table = Table("phase", f"plain ({len(plain)}) ms", f"with snapshot ({len(saving)}) ms", "share")
    total = _median(measured, EPOCH, 1.0)
    for name in names:
        value = _median(measured, name, 0.0)
        table.add_row(
            name,
            f"{_median(plain, name, 0.0):.1f}",
            f"{_median(saving, name, 0.0):.1f}",
            f"{value / total:.0%}",
        )
    console.print(table)
    spent = Table("CPU spent on", "ms per epoch")
    for name, value in sorted(cpu.items(), key=lambda item: -item[1]):
        spent.add_row(name, f"{value:.1f}")
    console.print(spent)


def _median(measured: list[dict[str, float]], name: str, otherwise: float) -> float:
    values = [m.get(name, 0.0) for m in measured]
    return statistics.median(values) if values else otherwise
