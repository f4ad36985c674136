"""One engine, once, in a process of its own: `python -m benchmarks.runner <spec.json>`.

Writes when which rows were committed and when epochs ended, in wall-clock seconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Trace:
    """Times of a run. `commits`: (time, rows committed so far), in order."""

    commits: list[tuple[float, int]] = field(default_factory=list)
    epoch_ends: list[float] = field(default_factory=list)
    epoch_rows: list[int] = field(default_factory=list)
    done_at: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Spec:
    """Settings of one run. Rows per epoch are counted per source, and are a whole number of
    files."""

    engine: str
    case: str
    source: str
    folder: str
    rows_per_epoch: int
    rows_per_file: int
    variant: str = ""
    """Which of the case's ways to ask the peer; "" is the first."""
    spark: dict[str, str] = field(default_factory=dict)
    """Settings of either engine's session, above all its master."""
    members: Sequence[str] = ()
    """Members of our store; empty: folders."""

    @property
    def result(self) -> Path:
        return Path(self.folder) / "trace.json"


def run_ours(spec: Spec) -> Trace:
    from benchmarks import jet_query
    from benchmarks.cases import case_named
    from dagster_jet.execution.events import EpochCompleted, JobEvent, SnapshotCommitted

    trace, rows_by_epoch, folder = Trace(), {0: 0}, Path(spec.folder)
    snapshots: list[dict[str, float]] = []

    def on_event(event: JobEvent) -> None:
        now = time.time()
        if isinstance(event, EpochCompleted):
            trace.epoch_ends.append(now)
            trace.epoch_rows.append(event.rows)
            rows_by_epoch[event.epoch_id] = sum(trace.epoch_rows)
        elif isinstance(event, SnapshotCommitted):
            trace.commits.append((now, rows_by_epoch.get(event.epoch_id, 0)))
            snapshots.append({"phase1_ms": event.phase1_ms, "phase2_ms": event.phase2_ms})

    with jet_query.open_jet(folder, spec.spark, spec.members) as jet:
        jet.run(
            case_named(spec.case).pipeline(Path(spec.source), folder / "out"),
            jet_query.config(spec.rows_per_epoch),
            until="completed",
            on_event=on_event,
        )
        trace.done_at = time.time()
    trace.extra["snapshots"] = snapshots
    return trace


def run_peer(spec: Spec) -> Trace:
    from benchmarks import spark_query
    from benchmarks.cases import case_named

    trace, session = Trace(), spark_query.open_session(spec.spark)
    files = max(1, spec.rows_per_epoch // spec.rows_per_file)
    case, source, folder = case_named(spec.case), Path(spec.source), Path(spec.folder)
    query = spark_query.start(session, case, spec.variant, source, folder, files)
    query.awaitTermination()
    trace.done_at = time.time()
    rows, triggers = 0, []
    for progress in query.recentProgress:
        took_ms = progress["durationMs"]["triggerExecution"]
        ended = _epoch_seconds(progress["timestamp"]) + took_ms / 1000
        rows += progress["numInputRows"]
        trace.epoch_ends.append(ended)
        trace.epoch_rows.append(progress["numInputRows"])
        trace.commits.append((ended, rows))
        triggers.append(took_ms)
    trace.extra["trigger_ms"] = triggers
    session.stop()
    return trace


def _epoch_seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def main() -> None:
    spec = Spec(**json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    trace = run_ours(spec) if spec.engine == "ours" else run_peer(spec)
    spec.result.write_text(json.dumps(asdict(trace)), encoding="utf-8")


if __name__ == "__main__":
    main()
