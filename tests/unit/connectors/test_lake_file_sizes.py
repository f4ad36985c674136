"""Sizes of a lake table's data files: a task goes on in another file."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.lake.staged_file import kept_in
from dagster_jet.connectors.lake.staged_names import StagedName
from dagster_jet.contract import Sink, TransactionId
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.manifest import Artifact

from . import delta_table, iceberg_table
from .delta_rows import by_library as by_delta
from .delta_rows import by_log
from .delta_table import SCHEMA, by
from .iceberg_rows import by_library as by_pyiceberg
from .iceberg_rows import by_manifests

TARGET = 40_000
"""Bytes; a row group in memory has as many, and takes about as many in a file."""
Row = dict[str, Any]


class Delta(delta_table.Table):
    """A Delta Lake table, partitioned by the day or not at all."""

    def __init__(self, folder: Path, *, by_day: bool) -> None:
        super().__init__(folder, **({"partition_by": ["day"]} if by_day else {}))

    def commit(self, sink: Any, artifacts: Sequence[Artifact]) -> None:
        delta_table.commit(sink, artifacts)

    def rows(self) -> list[list[Row]]:
        return [by_log(self.folder), by_delta(str(self.folder))]

    def known(self) -> dict[Path, tuple[int, int, int]]:
        """Rows, smallest and largest id of each file, by the table's metadata."""
        found = pa.table(self.now.get_add_actions(flatten=True)).to_pylist()
        return {
            self.folder / one["path"]: (one["num_records"], one["min.id"], one["max.id"])
            for one in found
        }


class Iceberg(iceberg_table.Table):
    """Sizes of Iceberg's files, as `Delta` has those of Delta Lake's."""

    def __init__(self, folder: Path, *, by_day: bool) -> None:
        super().__init__(folder, by=(("day", "identity"),) if by_day else ())

    def commit(self, sink: Any, artifacts: Sequence[Artifact]) -> None:
        iceberg_table.commit(sink, artifacts, by())

    def rows(self) -> list[list[Row]]:
        return [by_manifests(self.folder), by_pyiceberg(self.folder)]

    def known(self) -> dict[Path, tuple[int, int, int]]:
        with self.opened() as table:
            found = table.inspect.data_files().to_pylist()
        return {
            Path(one["file_path"].removeprefix("file://")): (
                one["record_count"],
                one["readable_metrics"]["id"]["lower_bound"],
                one["readable_metrics"]["id"]["upper_bound"],
            )
            for one in found
        }


FORMATS = pytest.mark.parametrize("format", [Delta, Iceberg])


def some_rows(seed: int, ids: Sequence[int]) -> list[Row]:
    """Rows of three days in any order. Texts do not compress."""
    rng = random.Random(seed)
    days = [date(2026, 1, day) for day in (1, 2, 3)]
    return [
        {"id": id, "text": f"{rng.getrandbits(128):032x}", "day": days[id % 3]}
        for id in rng.sample(ids, len(ids))
    ]


def staged(sink: Sink, rows: Sequence[Row], epoch: int = 1) -> tuple[Artifact, ...]:
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, epoch, 0, "a0"))
    for first in range(0, len(rows), 1_000):
        writer.write(pa.RecordBatch.from_pylist(rows[first : first + 1_000], SCHEMA))
    return writer.prepare()


def multiset(rows: Sequence[Row]) -> Counter[Any]:
    return Counter((row["id"], row["text"], row["day"]) for row in rows)


def by_partition(artifacts: Sequence[Artifact]) -> Iterator[list[Artifact]]:
    found = defaultdict(list)
    for one in artifacts:
        found[str(kept_in(one)["partition"])].append(one)
    yield from found.values()


def ids_in(path: Path) -> list[int]:
    ids: list[int] = pq.ParquetFile(path).read(["id"])["id"].to_pylist()
    return ids


@FORMATS
@pytest.mark.parametrize("by_day", [False, True])
def test_a_task_goes_on_in_another_file(tmp_path: Path, format: Any, by_day: bool) -> None:
    table, rows = format(tmp_path, by_day=by_day), some_rows(1, range(15_000))
    sink = table.sink(target_file_bytes=TARGET)
    artifacts = staged(sink, rows)
    for files in by_partition(artifacts):
        sizes = [one.bytes for one in files]
        assert len(sizes) > 2 and min(sizes[:-1]) >= TARGET and max(sizes) <= 3 * TARGET
    names = {Path(one.target).name for one in artifacts}
    assert len(names) == len(artifacts) and None not in map(StagedName.of, names)
    table.commit(sink, artifacts)
    for found in table.rows():
        assert multiset(found) == multiset(rows)
    known = table.known()
    assert len(known) == len(artifacts)
    for path, facts in known.items():
        ids = ids_in(path)
        assert facts == (len(ids), min(ids), max(ids))


@FORMATS
def test_files_are_whole_by_default(tmp_path: Path, format: Any) -> None:
    table = format(tmp_path, by_day=True)
    assert len(staged(table.sink(), some_rows(2, range(9_000)))) == 3


@FORMATS
def test_a_file_that_was_begun_is_an_orphan_as_any_other(tmp_path: Path, format: Any) -> None:
    table, rows = format(tmp_path, by_day=True), some_rows(3, range(30))
    sink = table.sink(target_file_bytes=1)
    kept = staged(sink, rows)
    lost = staged(sink, some_rows(4, range(30, 60)), epoch=2)
    assert len(kept) == len(lost) == 30, "a row is a file"
    successor = sink.open_committer("j", "out")
    assert successor.abort_orphans(by(2), [one.token for one in kept]) == len(lost)
    successor.close()
    table.commit(sink, kept)
    for found in table.rows():
        assert multiset(found) == multiset(rows)


@FORMATS
def test_a_task_that_gives_up_leaves_no_file(tmp_path: Path, format: Any) -> None:
    sink = format(tmp_path, by_day=True).sink(target_file_bytes=TARGET)
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "a0"))
    writer.write(pa.RecordBatch.from_pylist(some_rows(5, range(15_000)), SCHEMA))
    assert len(list(tmp_path.rglob("part-*"))) > 6, "some are finished, others are not"
    writer.abort()
    assert not list(tmp_path.rglob("part-*"))


def test_a_merge_writes_files_of_the_size(tmp_path: Path) -> None:
    table = Iceberg(tmp_path, by_day=True)
    sink = table.sink(mode="upsert", key="id", target_file_bytes=TARGET)
    first, second = some_rows(6, range(12_000)), some_rows(7, range(8_000, 13_000))
    expected = {}
    for epoch, rows in enumerate((first, second), 1):
        table.commit(sink, staged(sink, rows, epoch))
        expected |= {row["id"]: row for row in rows}
        for found in table.rows():
            assert multiset(found) == multiset([*expected.values()])
        sizes = [path.stat().st_size for path in table.known()]
        assert len(sizes) > 6 and max(sizes) <= 3 * TARGET


@pytest.mark.parametrize("size", [None, "40000"])
def test_a_merge_of_delta_lake_goes_by_the_table(tmp_path: Path, size: str | None) -> None:
    """As the error for `target_file_bytes` says."""
    property = {} if size is None else {"delta.targetFileSize": size}
    table = delta_table.Table(tmp_path, configuration=property)
    sink, rows = table.sink(mode="upsert", key="id"), some_rows(8, range(30_000))
    delta_table.commit(sink, staged(sink, rows))
    assert multiset(by_log(table.folder)) == multiset(rows)
    files = len(deltalake.DeltaTable(table.folder).file_uris())
    assert files == 1 if size is None else files > 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"target_file_bytes": 0}, "target_file_bytes: 0 is not positive"),
        (
            {"target_file_bytes": 1 << 20, "mode": "upsert", "key": "id"},
            r"as the table says\. .*delta.targetFileSize",
        ),
    ],
)
def test_sizes_that_a_sink_cannot_keep_are_refused(options: Any, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        sinks.delta("/lake/table", **options)


def test_an_iceberg_table_needs_a_positive_size() -> None:
    with pytest.raises(ConfigurationError, match="target_file_bytes: -1 is not positive"):
        sinks.iceberg("lake", "space.rows", target_file_bytes=-1)
