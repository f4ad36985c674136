"""Maintenance beside a stream: staged files stay, what is committed is read as before."""

from __future__ import annotations

import threading
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest

from dagster_jet.connectors.delta.maintenance import DeltaMaintenance, kept_ms
from dagster_jet.connectors.iceberg.maintenance import IcebergMaintenance
from dagster_jet.connectors.lake.table_maintenance import SmallFiles
from dagster_jet.errors import ConfigurationError, SinkUnavailableError
from tests.long import long

from . import delta_table, iceberg_table
from .delta_table import by, rows, stage
from .iceberg_rows import by_manifests

TARGET = 128 << 20


class DeltaFixture(delta_table.Table):
    """A table that keeps nothing of the past, by default."""

    def __init__(self, folder: Path, kept: str = "interval 0 seconds") -> None:
        properties = {"delta.deletedFileRetentionDuration": kept}
        super().__init__(folder, configuration=properties, partition_by=["day"])

    def maintenance(self) -> DeltaMaintenance:
        return self.sink().maintenance("j", "out")

    def commit(self, staged: Any) -> None:
        delta_table.commit(self.sink(), staged, by())

    def texts(self) -> list[str]:
        return [row["text"] for row in self.now.to_pyarrow_table().to_pylist()]

    def files(self) -> set[str]:
        found = self.folder.rglob("*.parquet")
        return {path.name for path in found if "_delta_log" not in path.parts}


class IcebergFixture(iceberg_table.Table):
    """A table that keeps nothing of the past, by default."""

    def __init__(self, folder: Path, kept: str = "0") -> None:
        properties = {"history.expire.max-snapshot-age-ms": kept}
        super().__init__(folder / "lake", by=(("day", "day"),), properties=properties)

    def maintenance(self) -> IcebergMaintenance:
        return self.sink().maintenance("j", "out")

    def commit(self, staged: Any) -> None:
        iceberg_table.commit(self.sink(), staged, by())

    def texts(self) -> list[str]:
        return [row["text"] for row in by_manifests(self.folder)]

    def files(self) -> set[str]:
        return {path.name for path in (self.folder / "warehouse").rglob("*.parquet")}


@pytest.fixture(params=[DeltaFixture, IcebergFixture], ids=["delta", "iceberg"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


def test_staged_files_stay_and_are_committed_after_it(table: Any) -> None:
    """Failed before: `vacuum(full=True)` of the library removes them."""
    sink = table.sink()
    lost = stage(sink, rows(1, 2), epoch=1)  # an attempt that another one has overtaken
    table.commit([*stage(sink, rows(1, 2), epoch=1, execution=2)])
    staged = stage(sink, rows(3, 4), epoch=2)
    foreign = stage(table.sink(), rows(9), epoch=1)  # of a sink whose marker is not known
    for artifact in foreign:
        path = next(table.folder.rglob(artifact.target.rpartition("/")[2]))
        path.rename(path.with_name(path.name.replace(path.name[5:21], "0123456789abcdef")))
    done = table.maintenance().run(0, TARGET)
    left = table.files()
    assert {one.target.rpartition("/")[2] for one in staged} <= left
    assert not {one.target.rpartition("/")[2] for one in lost} & left, done
    assert any("0123456789abcdef" in name for name in left)
    table.commit(staged)
    table.commit(staged)
    assert table.ids() == [1, 2, 3, 4]


def test_the_past_goes_and_the_rows_stay(table: Any) -> None:
    for epoch in range(1, 9):
        table.commit(stage(table.sink(), rows(epoch, epoch + 28), epoch=epoch))
    before, ids = table.files(), table.ids()
    table.maintenance().run(0, TARGET)
    done = table.maintenance().run(0, TARGET)
    assert done["files_removed"] == 0, "the first call did all of it"
    assert table.ids() == ids
    if isinstance(table, DeltaFixture):
        assert len(table.files()) == len(before)  # a file per day already
        assert table.now.vacuum(dry_run=True, full=True) == []
    else:
        with table.opened() as found:
            assert len(found.metadata.snapshots) == 1
            lists = list((table.folder / "warehouse").rglob("snap-*.avro"))
            assert [str(one) for one in lists] == [
                found.current_snapshot().manifest_list.removeprefix("file://")
            ]


def test_files_of_one_day_become_one(table: Any) -> None:
    for epoch in range(1, 9):
        table.commit(stage(table.sink(), rows(1 + 28 * epoch), epoch=epoch))
    assert table.maintenance().small_files(TARGET) == SmallFiles(8, 7, TARGET // 4)
    done = table.maintenance().run(0, TARGET)
    assert (done["files_added"], done["files_replaced"]) == (1, 8) and done["files_removed"] >= 8
    assert table.maintenance().small_files(TARGET) == SmallFiles(1, 0, TARGET // 4)
    assert len(table.files()) == 1 and len(table.ids()) == 8


def test_a_stream_of_commits_beside_maintenance(table: Any) -> None:
    """Every epoch is staged, maintained over, committed, and read by somebody else."""
    failed: list[BaseException] = []
    done = threading.Event()

    def maintain() -> None:
        try:
            while not done.is_set():
                table.maintenance().run(0, TARGET)
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=maintain)
    worker.start()
    try:
        sink = table.sink()
        for epoch in range(1, 13):
            staged = stage(sink, rows(epoch, 100 + epoch), epoch=epoch)
            if epoch % 3 == 0:  # a reply that was lost: committed twice
                table.commit(staged)
            table.commit(staged)
    finally:
        done.set()
        worker.join()
    assert not failed, failed
    table.maintenance().run(0, TARGET)
    assert table.ids() == sorted([*range(1, 13), *range(101, 113)])
    assert sorted(by_duckdb(table)) == table.ids()


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        pytest.param(DeltaFixture, "interval 7 days", id="delta"),
        pytest.param(IcebergFixture, "600000000", marks=long, id="iceberg"),
    ],
)
def test_merges_beside_compaction(tmp_path: Path, kind: Any, kept: str) -> None:
    """Each of the two may let the other fail, and is made again."""
    table = kind(tmp_path, kept)
    sink, done = table.sink(mode="upsert", key="id"), threading.Event()
    compacted: list[Any] = []

    def maintain() -> None:
        while not done.is_set():
            try:
                compacted.append(sink.maintenance("j", "out").run(0, TARGET)["files_replaced"])
            except SinkUnavailableError as error:
                compacted.append(str(error))

    worker = threading.Thread(target=maintain)
    worker.start()
    try:
        for epoch in range(1, 9):
            staged = stage(sink, rows(*range(1, 1 + 28 * epoch, 28), text=str(epoch)), epoch=epoch)
            with closing(sink.open_committer("j", "out")) as committer:
                committer.commit(staged, by())
    finally:
        done.set()
        worker.join()
    assert table.ids() == list(range(1, 1 + 28 * 8, 28)) and table.texts() == ["8"] * 8
    assert compacted


def by_duckdb(table: Any) -> list[int]:
    """Reads the files that the table names by an engine that has no part in writing them."""
    if isinstance(table, DeltaFixture):
        files = table.now.file_uris()
    else:
        with table.opened() as found:
            files = [
                one.file.file_path.removeprefix("file://") for one in found.scan().plan_files()
            ]
    with closing(duckdb.connect()) as database:
        found = database.execute("SELECT id FROM read_parquet(?)", [files]).fetchall()
    return [id for (id,) in found]


def test_a_table_that_forgets_faster_than_an_outage_lasts_is_refused(table: Any) -> None:
    day = int(timedelta(days=1).total_seconds() * 1000)
    with pytest.raises(
        ConfigurationError, match=r"keeps files of the past for 0 ms, and an outage"
    ):
        table.maintenance().run(day, TARGET)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("interval 7 days", 604_800_000),
        ("interval 1 week 2 days", 777_600_000),
        ("INTERVAL 36 HOURS", 129_600_000),
        ("interval 1 month", None),
        ("7", None),
    ],
)
def test_the_time_that_a_table_keeps_files(text: str, wanted: int | None) -> None:
    assert kept_ms(text) == wanted
