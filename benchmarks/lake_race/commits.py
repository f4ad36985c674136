"""A commit of one small file to a table with many versions: how long, and which step of it.

The first versions are real commits, the others are copies of the newest one: of Delta Lake with a
file of its own each, of Iceberg with a number and a parent of its own. Real ones would take an
hour.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa

from benchmarks.lake_race.ours import TABLE
from benchmarks.race.measures import percentile
from dagster_jet import sinks
from dagster_jet.connectors.delta import delta_committer
from dagster_jet.connectors.delta.table_log import TableLog
from dagster_jet.connectors.iceberg.iceberg_committer import IcebergCommitter
from dagster_jet.connectors.iceberg.table_request import TableRequest
from dagster_jet.connectors.iceberg.table_version import SNAPSHOTS_KEPT, TableVersion
from dagster_jet.contract import CommitContext, Committer, TransactionId
from dagster_jet.snapshot.manifest import Artifact

VERSIONS = 10_000
FEWER = (100, 1_440)
"""Snapshots before there are so many: few, and a day of one a minute."""
_REAL = 120
_AT_ONCE = 1_000
_ROWS, _COMMITS, _MOST_S = 100, 60, 12.0
_TARGET_BYTES = 128 << 20
_SCHEMA = pa.schema([("n", pa.int64()), ("k", pa.string()), ("ts", pa.int64()), ("v", pa.int64())])
_BATCH = pa.RecordBatch.from_pylist(
    [{"n": n, "k": f"key-{n}", "ts": n, "v": n} for n in range(_ROWS)], _SCHEMA
)
_BY = CommitContext("race", "out", 1, 1, recovering=False)
_OF_DELTA = {
    "look": (TableLog, "look"),
    "append": (TableLog, "append"),
    "sync": (delta_committer, "sync_log"),
}
_OF_ICEBERG = {
    "look": (TableVersion, "open"),
    "manifests": (IcebergCommitter, "request"),
    "catalog": (TableRequest, "send"),
    "expiry": (IcebergCommitter, "finished"),
}


@dataclass(frozen=True)
class Commits:
    """Commit times of one table in one state."""

    table: str
    state: str
    commits: int
    median_ms: float
    p95_ms: float
    steps_ms: dict[str, float]
    """Medians per commit."""


class Writer:
    """A sink's task and its committer, without Spark."""

    def __init__(self, sink: Any, name: str, steps: dict[str, tuple[Any, str]]) -> None:
        self.sink = sink.at_start(_BY.job, _BY.sink, on_one_host=True)
        self.committer = self._opened()
        self._name, self._steps, self._epoch = name, steps, 0

    def _opened(self) -> Committer:
        opened: Committer = self.sink.open_committer(_BY.job, _BY.sink)
        return opened

    def stage(self) -> tuple[Artifact, ...]:
        self._epoch += 1
        writer = self.sink.open_writer(TransactionId(_BY.job, _BY.sink, 1, 1, self._epoch, 0, "a0"))
        writer.write(_BATCH)
        staged: tuple[Artifact, ...] = writer.prepare()
        return staged

    def commit(self) -> None:
        self.committer.commit(self.stage(), _BY)

    def maintained(self, longest_outage_ms: int = 0) -> None:
        self.sink.maintenance(_BY.job, _BY.sink).run(longest_outage_ms, _TARGET_BYTES)

    def measured(self, state: str) -> Commits:
        """Measures the commits to a table in one state. The first one looks at the table for the
        first time, and does not count. Nothing of the table stays in memory: each full collection
        of garbage goes through all that is there, also in the commits to another table."""
        self.commit()
        times: list[tuple[float, dict[str, float]]] = []
        begun = time.monotonic()
        while len(times) < 3 or (len(times) < _COMMITS and time.monotonic() - begun < _MOST_S):
            times.append(self._timed_commit())
        self.committer.close()
        self.committer = self._opened()
        return self._summary(state, times)

    def _timed_commit(self) -> tuple[float, dict[str, float]]:
        """Returns the milliseconds that it takes, and those of each step."""
        staged = self.stage()
        with _timed(self._steps) as spent:
            started = time.perf_counter()
            self.committer.commit(staged, _BY)
            took = 1000 * (time.perf_counter() - started)
        return took, {step: 1000 * spent[step] for step in self._steps}

    def _summary(self, state: str, times: Sequence[tuple[float, dict[str, float]]]) -> Commits:
        took = [one for one, _ in times]
        steps = {s: statistics.median(spent[s] for _, spent in times) for s in self._steps}
        median, p95 = statistics.median(took), percentile(took, 0.95)
        return Commits(self._name, state, len(took), median, p95, steps)


def run(folder: Path, versions: int, tell: Callable[[str], None]) -> list[Commits]:
    """Makes both tables, and commits to them as they grow and are maintained."""
    folder.mkdir()
    found = []
    for one in (*_of_delta(folder / "delta", versions), *_of_iceberg(folder / "iceberg", versions)):
        tell(
            f"{one.table}, {one.state}: commit {one.median_ms:.0f} ms, p95 {one.p95_ms:.0f} ms; "
            + ", ".join(f"{step} {spent:.0f}" for step, spent in one.steps_ms.items())
        )
        found.append(one)
    return found


def _of_delta(folder: Path, versions: int) -> Iterator[Commits]:
    deltalake.DeltaTable.create(folder, _SCHEMA)
    writer = Writer(sinks.delta(str(folder)), "Delta Lake", _OF_DELTA)
    yield writer.measured("new")
    newest = deltalake.DeltaTable(folder).version()
    _add_versions(folder, newest, versions)
    deltalake.DeltaTable(folder).create_checkpoint()
    yield writer.measured(f"{versions:,} versions")
    writer.maintained()
    yield writer.measured(f"{versions:,} versions, maintained")


def _add_versions(folder: Path, newest: int, versions: int) -> None:
    """Commits versions as another program would, with copies of the newest version's file."""
    log = folder / "_delta_log"
    actions = [json.loads(line) for line in (log / f"{newest:020d}.json").read_text().splitlines()]
    add = next(action["add"] for action in actions if "add" in action)
    original = folder / add["path"]
    for version in range(newest + 1, versions + 1):
        add["path"] = f"others-{version}.parquet"
        os.link(original, folder / add["path"])
        kept = [action for action in actions if "txn" not in action]
        text = "".join(json.dumps(action) + "\n" for action in kept)
        (log / f"{version:020d}.json").write_text(text)


def _of_iceberg(folder: Path, versions: int) -> Iterator[Commits]:
    """Two tables: of one the sink lets old snapshots expire, as in those that it creates; the other
    one keeps all."""
    folder.mkdir()
    [bounded, kept] = [_created(folder / name) for name in ("bounded", "all")]
    with closing(kept.sink.catalog.open(())) as opened:
        change = opened.load_table(TABLE).transaction()
        change.remove_properties(SNAPSHOTS_KEPT).commit_transaction()
    yield bounded.measured("new")
    few = _version(bounded.sink).metadata.properties[SNAPSHOTS_KEPT]
    for count in (*(one for one in FEWER if one < versions), versions):
        for writer, which in ((kept, "all are kept"), (bounded, f"the sink keeps {few}")):
            _fill(writer, count)
            yield writer.measured(f"{count:,} versions, of which {which}")


def _created(folder: Path) -> Writer:
    folder.mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": str(folder)}
    sink = sinks.iceberg("lake", TABLE, catalog_options=catalog)
    with closing(sink.catalog.open(())) as opened:
        TableVersion.create(opened, TABLE, _SCHEMA, ())
    return Writer(sink, "Iceberg", _OF_ICEBERG)


def _fill(writer: Writer, versions: int) -> None:
    while (made := _version(writer.sink).metadata.last_sequence_number) < min(_REAL, versions):
        writer.commit()
    while made < versions:
        made += _add_snapshots(_version(writer.sink), min(_AT_ONCE, versions - made))


def _version(sink: Any) -> TableVersion:
    with closing(sink.catalog.open(())) as opened:
        found = TableVersion.open(opened, TABLE, "main")
    assert found is not None
    return found


def _add_snapshots(version: TableVersion, count: int) -> int:
    """Adds snapshots that leave the files as they are."""
    from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

    head = version.metadata.snapshot_by_name("main")
    assert head is not None
    parent, first = head.snapshot_id, (version.metadata.last_sequence_number << 32) + 1
    updates: list[Any] = []
    for number in range(1, count + 1):
        facts = {
            "snapshot_id": first + number,
            "parent_snapshot_id": parent,
            "sequence_number": version.metadata.last_sequence_number + number,
        }
        parent = first + number
        named = {"ref-name": "main", "type": "branch", "snapshot-id": parent}
        updates.append(AddSnapshotUpdate(snapshot=head.model_copy(update=facts)))
        updates.append(SetSnapshotRefUpdate.model_validate(named))
    version.table.catalog.commit_table(version.table, (), tuple(updates))
    return count


@contextmanager
def _timed(steps: dict[str, tuple[Any, str]]) -> Iterator[dict[str, float]]:
    """Takes the seconds that calls of these functions need, from outside."""
    spent: dict[str, float] = defaultdict(float)
    with ExitStack() as restored:
        for step, (owner, name) in steps.items():
            original = vars(owner)[name]
            setattr(owner, name, _taking(step, original, spent))
            restored.callback(setattr, owner, name, original)
        yield spent


def _taking(step: str, original: Any, spent: dict[str, float]) -> Any:
    is_of_class = isinstance(original, classmethod)
    function = original.__func__ if is_of_class else original

    def call(*given: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        try:
            return function(*given, **named)
        finally:
            spent[step] += time.perf_counter() - begun

    return classmethod(call) if is_of_class else call
