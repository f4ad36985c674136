"""A sink lets old snapshots expire: the newest ones, tags, readers and the job's recovery stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import StaticTable
from pyiceberg.table.update import RemoveSnapshotsUpdate

from dagster_jet import sinks
from dagster_jet.connectors.iceberg.table_version import SNAPSHOTS_KEPT
from dagster_jet.snapshot.manifest import Artifact
from tests.long import long

from .delta_table import SCHEMA, by, rows, stage
from .iceberg_rows import NAME, metadata_at, metadata_of, options_at
from .iceberg_table import Table, commit, has_committed

TARGET = 128 << 20
AGE = "history.expire.max-snapshot-age-ms"
KEYED: dict[str, Any] = {"mode": "upsert", "key": "id"}


def table_that_keeps(folder: Path, count: int) -> Table:
    return Table(folder, properties={SNAPSHOTS_KEPT: str(count)})


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return table_that_keeps(tmp_path, 4)


def fill(table: Table, epochs: Sequence[int], **options: Any) -> list[tuple[Artifact, ...]]:
    """A row per epoch, of the id 1 if rows are merged."""
    sink, done = table.sink(**options), list[tuple[Artifact, ...]]()
    for epoch in epochs:
        row = rows(1, text=f"epoch {epoch}") if options else rows(epoch)
        done.append(stage(sink, row, epoch=epoch))
        commit(sink, done[-1], by())
    return done


def numbers(table: Table) -> list[int]:
    """Sequence numbers of the snapshots."""
    return [one["sequence-number"] for one in metadata_of(table.folder)["snapshots"]]


def lists(table: Table) -> set[str]:
    """Lists of manifests that are there."""
    return {str(path) for path in (table.folder / "warehouse").rglob("snap-*.avro")}


def notes(table: Table) -> list[Path]:
    return list((table.folder / "warehouse").rglob("expired-*.json"))


def maintain(table: Table, kept_ms: int) -> dict[str, Any]:
    with table.opened() as opened, opened.transaction() as change:
        change.set_properties({AGE: str(kept_ms)})
    return dict(table.sink().maintenance("j", "out").run(0, TARGET))


def test_the_newest_snapshots_stay(table: Table) -> None:
    for epoch in range(1, 21):
        fill(table, [epoch])
        found = numbers(table)
        assert found == [*range(epoch - len(found) + 1, epoch + 1)], "the oldest ones go"
        assert min(epoch, 4) <= len(found) <= 5
    assert table.ids() == [*range(1, 21)] and len(lists(table)) == 20


def test_a_table_that_says_nothing_keeps_all(tmp_path: Path) -> None:
    table = Table(tmp_path)
    fill(table, range(1, 21))
    assert numbers(table) == [*range(1, 21)] and not notes(table)


def test_a_table_that_the_sink_creates_keeps_few(tmp_path: Path) -> None:
    place: Any = options_at(tmp_path)
    sink = sinks.iceberg("lake", NAME, catalog_options=place)
    sink._of_rows.append(SCHEMA)
    sink.claim_place("j", "out")
    assert int(metadata_of(tmp_path)["properties"][SNAPSHOTS_KEPT]) >= 100


@pytest.mark.parametrize("how", [{}, KEYED], ids=["append", "upsert"])
def test_a_commit_whose_snapshot_has_expired_is_not_repeated(
    table: Table, how: dict[str, Any]
) -> None:
    """The driver died before it knew that the commit succeeded; only the marker says so."""
    [lost, *_] = fill(table, range(1, 13), **how)
    before = table.ids()
    sink = table.sink(**how)
    assert 1 not in numbers(table) and has_committed(sink, lost, by(2))
    commit(sink, lost, by(2))
    with closing(sink.open_committer("j", "out")) as committer:
        committer.abort_orphans(by(3), ())
    assert table.ids() == before


def test_what_has_a_tag_or_a_branch_stays(table: Table) -> None:
    fill(table, [1, 2, 3])
    with table.opened() as opened:
        second, third = (opened.metadata.snapshots[n].snapshot_id for n in (1, 2))
        opened.manage_snapshots().create_tag(second, "audit").create_branch(third, "b").commit()
    fill(table, range(4, 20))
    assert numbers(table)[:2] == [2, 3] and len(numbers(table)) <= 7
    assert table.ids("audit") == [1, 2] and table.ids("b") == [1, 2, 3]


def test_what_a_job_has_to_read_stays(table: Table) -> None:
    fill(table, [1, 2, 3])
    with table.opened() as opened:
        third = opened.metadata.snapshots[2].snapshot_id
        opened.manage_snapshots().create_tag(third, "dagster-jet/s/n/reader/rows").commit()
    fill(table, range(4, 20))
    assert numbers(table) == [*range(3, 20)]


def test_it_expires_on_its_own_look_only(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit of another writer comes first: the snapshots stay for now. A request that arrives
    late is refused."""
    real, held = SqlCatalog.commit_table, list[Any]()

    def hold(*given: Any) -> Any:
        if not any(isinstance(one, RemoveSnapshotsUpdate) for one in given[3]):
            return real(*given)
        held.append(given)
        table.append(100 + len(held))
        return real(*given)

    fill(table, range(1, 6))
    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", hold)
        fill(table, [6])
    assert len(held) == 1 and numbers(table) == [*range(1, 8)]
    fill(table, [7])
    assert numbers(table) == [5, 6, 7, 8]
    with pytest.raises(CommitFailedException):
        real(*held[0])
    assert table.ids() == [*range(1, 8), 101]


def test_a_catalog_that_refuses_it_fails_no_commit(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqlCatalog.commit_table

    def refuse(*given: Any) -> Any:
        if any(isinstance(one, RemoveSnapshotsUpdate) for one in given[3]):
            raise ConnectionError("gone")
        return real(*given)

    with monkeypatch.context() as patched:
        patched.setattr(SqlCatalog, "commit_table", refuse)
        fill(table, range(1, 9))
    assert numbers(table) == [*range(1, 9)]
    fill(table, [9])
    assert numbers(table) == [6, 7, 8, 9] and table.ids() == [*range(1, 10)]


# --- files ----------------------------------------------------------------------------------------


def test_a_reader_of_an_expired_snapshot_finds_its_files(table: Table) -> None:
    """Each merge writes the row anew; maintenance removes files only once they are old."""
    fill(table, [1, 2], **KEYED)
    there = metadata_at(table.folder)
    fill(table, range(3, 20), **KEYED)
    assert 2 not in numbers(table)
    reader = StaticTable.from_metadata(str(there))
    for _ in range(2):
        done = maintain(table, 3_600_000)
        assert done["files_removed"] == 0 and reader.scan().to_arrow()["text"].to_pylist() == [
            "epoch 2"
        ]
    fill(table, range(20, 30), **KEYED)  # compaction has left some of its own
    maintain(table, 0)
    with table.opened() as opened:
        wanted = {one.manifest_list.removeprefix("file://") for one in opened.snapshots()}
        data = {task.file.file_path.removeprefix("file://") for task in opened.scan().plan_files()}
    assert lists(table) == wanted and not notes(table)
    assert {str(path) for path in (table.folder / "warehouse").rglob("*.parquet")} == data
    assert table.ids() == [1]
    with pytest.raises(FileNotFoundError):
        reader.scan().to_arrow()


def test_files_that_a_younger_past_needs_stay(table: Table) -> None:
    """Only the oldest note is old enough to expire."""
    fill(table, range(1, 10))
    oldest = min(notes(table), key=lambda path: int(path.name.split("-")[1]))
    for path in set(notes(table)) - {oldest}:
        young = path.read_text().replace('"timestamp-ms":1', '"timestamp-ms":9')
        path.write_text(young)
    kept = {path.name for path in notes(table)} - {oldest.name}
    assert kept
    before = lists(table)
    maintain(table, 0)
    assert {path.name for path in notes(table)} == kept
    assert 0 < len(before - lists(table)) < len(before) - len(numbers(table))
    assert table.ids() == [*range(1, 10)]


@pytest.mark.parametrize(
    "point", [pytest.param("lake.expire.before", marks=long), "lake.expire.after"]
)
def test_killed(table: Table, point: str) -> None:
    """The rows are there, and the next commit and maintenance leave nothing behind."""
    fill(table, range(1, 6))
    staged = stage(table.sink(), rows(6), epoch=6)
    place = options_at(table.folder)
    code = (
        "from dagster_jet import sinks\n"
        "from dagster_jet.contract import CommitContext\n"
        "from dagster_jet.snapshot.manifest import Artifact\n"
        f"sink = sinks.iceberg('lake', {NAME!r}, catalog_options={place!r})\n"
        "by = CommitContext('j', 'out', 1, 1, recovering=False)\n"
        f"sink.open_committer('j', 'out').commit({list(staged)!r}, by)\n"
    )
    environment = {**os.environ, "JET_FAIL_POINTS": f"{point}=kill"}
    child = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    assert len(notes(table)) == 1 and table.ids() == [*range(1, 7)]
    assert numbers(table) == ([*range(1, 7)] if point.endswith("before") else [3, 4, 5, 6])
    commit(table.sink(), staged, by(2))
    fill(table, [7, 8, 9])
    maintain(table, 0)
    with table.opened() as opened:
        wanted = {one.manifest_list.removeprefix("file://") for one in opened.snapshots()}
    assert lists(table) == wanted and not notes(table) and table.ids() == [*range(1, 10)]
