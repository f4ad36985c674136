"""Engines of the race: the needs of each, its start, and its rule for committed output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.race import committed
from benchmarks.race.committed import Commits


@dataclass(frozen=True)
class Contestant:
    """One engine.

    Attributes:
        module: its program, of `benchmarks.race.engines`.
        requirements: what pip installs into its environment; none: the project's own environment.
        guarantee: what its output looks like after a crash, at the settings that race.
        sweep: settings to try before the race; the first are its defaults.
    """

    name: str
    label: str
    module: str
    guarantee: str
    requirements: tuple[str, ...] = ()
    sweep: tuple[Mapping[str, Any], ...] = ({},)
    commits_by_query: Mapping[str, Callable[[Path], Commits]] = field(default_factory=dict)
    commits: Callable[[Path], Commits] = committed.Epochs

    def watch(self, query: str, output: Path) -> Commits:
        return self.commits_by_query.get(query, self.commits)(output)


JET = Contestant(
    "jet",
    "dagster_jet",
    "jet",
    "exactly once, snapshots at its own pace, 3 members, 1 backup",
    sweep=(
        {},
        {"target_epoch_duration": "200 ms"},
        {"target_epoch_duration": "1 second"},
        {"max_items_per_epoch": 200_000, "target_epoch_duration": "6 seconds"},
    ),
)
SPARK = Contestant(
    "spark",
    "Structured Streaming",
    "spark",
    "exactly once by the file sink's log, RocksDB, a checkpoint per trigger",
    sweep=({"files": 5}, {"files": 10}, {"files": 20}, {"files": 40}),
    commits=committed.SparkLog,
    commits_by_query={"q18": committed.TriggerFolders},
)
FLINK = Contestant(
    "flink",
    "PyFlink",
    "flink",
    "exactly once, RocksDB or heap state, checkpoint every second",
    requirements=("apache-flink==2.3.0", "setuptools<81"),
    commits=committed.VisibleFiles,
)
BYTEWAX = Contestant(
    "bytewax",
    "Bytewax",
    "bytewax",
    "output file cut back to the last snapshot after a crash, snapshot every second",
    requirements=("bytewax==0.21.1", "orjson"),
    commits=committed.GrowingFiles,
)
PATHWAY = Contestant(
    "pathway",
    "Pathway",
    "pathway",
    "at least once, input saved every second (saving state takes a licence key)",
    requirements=("pathway==0.33.0",),
    commits=committed.GrowingFiles,
)
CONTESTANTS: Mapping[str, Contestant] = {
    one.name: one for one in (JET, SPARK, FLINK, BYTEWAX, PATHWAY)
}
