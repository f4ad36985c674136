"""Tables of Delta Lake and Iceberg of one job, where recovery loses or doubles rows elsewhere: the
tests have the names of these bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from pyiceberg.catalog import load_catalog

from dagster_jet.execution.events import ExecutionRestarting, SnapshotCommitted, SnapshotFailed
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.system import failpoint
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long
from tests.unit.connectors.delta_rows import by_log
from tests.unit.connectors.iceberg_rows import by_manifests, metadata_of, options_at

from . import lake_child
from .crash_table import LAKE_REWINDING_KILLED, Crash
from .oracle import Rows, input_rows
from .test_delta import TableWorld
from .world import write_input

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

IDS = 6
"""Keys of a file: two of the next one are the same."""


class LakeWorld(TableWorld):
    """A world whose outputs are two tables of Delta Lake and two of Iceberg."""

    driver = staticmethod(lake_child.main)
    pipeline = staticmethod(lake_child.lake_pipeline)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def send(self, files: int, first: int = 0) -> None:
        for file in range(first, first + files):
            ids = range(file * (IDS - 2), file * (IDS - 2) + IDS)
            write_input(
                self.folder / "in", file, [{"id": n, "text": f"of file {file}"} for n in ids]
            )

    def expected(self) -> dict[str, Rows]:
        rows = [(row["id"], row["text"]) for row in input_rows(self.folder / "in")]
        appended, merged = Counter(rows), Counter(dict(rows).items())  # of a key the newest
        return {
            "delta_appended": appended, "iceberg_appended": appended,
            "delta_merged": merged, "iceberg_merged": merged,
        }  # fmt: skip

    def committed(self) -> dict[str, Rows]:
        found: dict[str, list[dict[str, Any]]] = {}
        for name in ("appended", "merged"):
            folder = self.folder / "out" / name
            found[f"delta_{name}"] = by_log(folder) if folder.exists() else []
            there = (self.lake / "catalog.db").exists()
            found[f"iceberg_{name}"] = by_manifests(self.lake, f"crash.{name}") if there else []
        return {n: Counter((r["id"], r["text"]) for r in rows) for n, rows in found.items()}

    def files(self) -> set[str]:
        """Names of the files that make up the appended tables."""
        found = deltalake.DeltaTable(self.folder / "out" / "appended").file_uris()
        with closing(load_catalog("lake", **options_at(self.lake))) as catalog:
            tasks = catalog.load_table("crash.appended").scan().plan_files()
            found += [task.file.file_path for task in tasks]
        return {Path(one).name for one in found}

    def newest(self) -> tuple[Artifact, ...]:
        """The files that the newest snapshot names."""
        with self.jet() as jet:
            return jet.job(self.job).manifest().artifacts


@pytest.fixture
def lake(tmp_path: Path, spark: SparkSession, fail_points: FailPoints) -> Iterator[LakeWorld]:
    yield LakeWorld(tmp_path, fail_points, spark)
    failpoint.configure("")


@pytest.mark.parametrize(
    "deaths",
    [
        pytest.param(LAKE_REWINDING_KILLED, marks=long, id="one after the other"),
        pytest.param(LAKE_REWINDING_KILLED[2:3], id="between two tables"),
    ],
)
def test_rewind_skips_epochs_silently(lake: LakeWorld, deaths: tuple[Crash, ...]) -> None:
    """Apache Iceberg #10892: epochs of the new timeline have numbers that the tables' markers have
    passed. Each is committed once, whoever dies on the way; what the timeline that was left has
    appended stays."""
    lake.send(2)
    lake.run("drained")
    before = lake.committed()
    with lake.jet() as jet:
        wanted = jet.job(lake.job).snapshots()[0].snapshot_id
    lake.send(4, first=2)
    lake.run("drained", snapshot_interval="1 hour")
    abandoned = {name: rows - before[name] for name, rows in lake.committed().items()}
    back: dict[str, Any] = {"initial_snapshot": wanted, "repeat_output": True}
    for crash in deaths:
        lake.run_child(crash.rules, until="drained", start=back)
    lake.run("drained", **back)
    found, expected = lake.committed(), lake.expected()
    for name in ("delta_appended", "iceberg_appended"):
        assert abandoned[name] and found[name] == expected[name] + abandoned[name], name
    for name in ("delta_merged", "iceberg_merged"):
        assert found[name] == expected[name], name


def test_aborted_checkpoint_merged_into_next(lake: LakeWorld) -> None:
    """Apache Iceberg #11008, #10431: a snapshot fails, and its epoch is committed together with
    the next one, which changes some of its keys again. Each key is there once, with its newest
    row."""
    lake.send(5)
    failpoint.configure("manifest.before:3=raise")
    assert lake.run().status is JobStatus.COMPLETED
    assert len(lake.events_of(SnapshotFailed)) == 1 and not lake.events_of(ExecutionRestarting)
    lake.assert_exactly_once()
    snapshots = metadata_of(lake.lake, "crash.merged")["snapshots"]
    epochs = [one["summary"]["dagster_jet.epochs"].split("-") for one in snapshots]
    assert any(first == "2" and last != "2" for first, last in epochs), epochs


def test_committables_lost_on_restore(lake: LakeWorld) -> None:
    """Delta connectors #467: what a restored snapshot names is committed, also if it is of several
    epochs. It is these very files: no row of them is read again."""
    lake.send(5)
    lake.run_child("manifest.before:3=raise;record.snapshot.after:3=kill")
    staged = lake.newest()
    for sink in lake.expected():
        assert {one.epoch_id for one in staged if one.sink == sink} >= {2, 3}, sink
    missing = {name: lake.expected()[name] - rows for name, rows in lake.committed().items()}
    assert all(missing.values())
    assert lake.run().status is JobStatus.COMPLETED
    lake.assert_exactly_once()
    assert min(event.epoch_id for event in lake.events_of(SnapshotCommitted)) >= 3
    appended = {Path(one.target).name for one in staged if one.sink.endswith("_appended")}
    assert len(appended) >= 4 and appended <= lake.files()
