"""Rows of a lake table that were held back: small staged files are written together, once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType

from dagster_jet import sinks
from dagster_jet.connectors.delta.columns import columns_of_rows
from dagster_jet.connectors.delta.log_folder import options_of
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.staged_names import StagedName
from dagster_jet.contract import Sink, TransactionId
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.manifest import Artifact
from tests.long import long

from .delta_rows import by_library as by_delta
from .delta_table import SCHEMA, by
from .iceberg_rows import NAME, options_at
from .s3_folder import S3Folder
from .s3_folder import s3 as s3
from .s3_folder import server as server
from .test_lake_file_sizes import FORMATS, Delta, Iceberg, Row, ids_in, multiset, some_rows, staged

WAITS = {"min_file_bytes": 200_000, "max_delay": "1 minute"}
EPOCHS = 6


class Counted:
    """A table, and where its files are."""

    def __init__(self, folder: Path, format: Any, *, by_day: bool = False) -> None:
        self.table = format(folder, by_day=by_day)
        place = "table" if format is Delta else "warehouse/space/rows/data"
        self.data = folder / place

    def files(self) -> set[str]:
        """All data files in the folder, also those that no version names."""
        return {str(path.relative_to(self.data)) for path in self.data.rglob("part-*.parquet")} | {
            str(path.relative_to(self.data)) for path in self.data.rglob("merged-*.parquet")
        }

    def named(self) -> set[str]:
        return {str(path.relative_to(self.data)) for path in self.table.known()}

    def has(self, *expected: Row) -> None:
        for found in self.table.rows():
            assert multiset(found) == multiset(expected)


def epochs(sink: Sink, size: int = 30, **names: int) -> tuple[list[Row], list[Artifact]]:
    """Rows of some epochs, each staged by two tasks."""
    made: list[Row] = []
    artifacts: list[Artifact] = []
    for epoch in range(1, EPOCHS + 1):
        for shard in (0, 1):
            some = some_rows(epoch, range(len(made), len(made) + size))
            made += some
            artifacts += staged_by(sink, some, epoch, shard, **names)
    return made, artifacts


def staged_by(
    sink: Sink, some: Sequence[Row], epoch: int, shard: int, timeline: int = 1, execution: int = 1
) -> tuple[Artifact, ...]:
    writer = sink.open_writer(TransactionId("j", "out", timeline, execution, epoch, shard, "a0"))
    writer.write(pa.RecordBatch.from_pylist(list(some), SCHEMA))
    return writer.prepare()


def committer_of(sink: Any) -> Any:
    return sink.open_committer("j", "out")


@FORMATS
@pytest.mark.parametrize("by_day", [False, True])
def test_small_files_are_written_together(tmp_path: Path, format: Any, by_day: bool) -> None:
    place = Counted(tmp_path, format, by_day=by_day)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    committer, partitions = committer_of(sink), 3 if by_day else 1
    assert len(artifacts) == 2 * EPOCHS * partitions
    committer.commit(artifacts, by())
    place.has(*made)
    known = place.table.known()
    assert len(known) == partitions
    assert place.files() == place.named(), "the small ones are gone"
    for path, facts in known.items():
        ids = ids_in(path)
        assert facts == (len(ids), min(ids), max(ids)), "it has statistics of its own"
    facts = committer.output_facts()
    assert (facts["files"], facts["rows"]) == (partitions, len(made))
    assert facts["bytes"] == sum(path.stat().st_size for path in known)
    committer.commit(artifacts, by())
    place.has(*made)


@FORMATS
def test_files_end_at_the_target_and_large_ones_stay_as_they_are(
    tmp_path: Path, format: Any
) -> None:
    place = Counted(tmp_path, format)
    sink = place.table.sink(min_file_bytes=40_000, max_delay="1 minute", target_file_bytes=60_000)
    made, artifacts = epochs(sink, 300)
    large = some_rows(9, range(len(made), len(made) + 1_000))
    artifacts += staged(sink, large, EPOCHS + 1)
    committer_of(sink).commit(artifacts, by())
    place.has(*made, *large)
    assert artifacts[-1].target in place.named()
    others = place.named() - {artifacts[-1].target}
    sizes = [(place.data / name).stat().st_size for name in others]
    assert len(others) < len(artifacts) / 3 and max(sizes) < 3 * 60_000


@FORMATS
def test_a_lost_answer_neither_doubles_nor_loses_rows(tmp_path: Path, format: Any) -> None:
    """The files are in the table, although the call has failed. Nothing is removed: the commit may
    have been another one's."""
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    committer = committer_of(sink)
    append = committer.append

    def fails_afterwards(change: Any) -> None:
        append(change)
        raise OSError("no answer")

    committer.append = fails_afterwards
    committer.commit(artifacts, by())
    place.has(*made)
    assert len(place.named()) == 1
    assert place.files() == place.named() | {one.target for one in artifacts}


def refused_once(committer: Any, meanwhile: Callable[[set[str]], None]) -> list[set[str]]:
    """Lets the first try of a commit fail; returns the files that each try names."""
    append, tried = committer.append, []

    def appends(change: Any) -> None:
        tried.append({one.target for one in change.staged})
        if len(tried) == 1:
            meanwhile(tried[0])
            raise OSError("away")
        append(change)

    committer.append = appends
    return tried


@FORMATS
def test_a_refused_commit_names_the_same_files_again(tmp_path: Path, format: Any) -> None:
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    committer = committer_of(sink)
    tried = refused_once(committer, lambda files: None)
    committer.commit(artifacts, by())
    place.has(*made)
    assert tried[0] == tried[1] == place.named() == place.files()


@FORMATS
def test_files_that_were_written_together_and_are_gone_are_written_again(
    tmp_path: Path, format: Any
) -> None:
    """A program that removes unknown files came between two tries."""
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    committer = committer_of(sink)

    def are_removed(files: set[str]) -> None:
        for file in files:
            (place.data / file).unlink()

    refused_once(committer, are_removed)
    committer.commit(artifacts, by())
    place.has(*made)


@FORMATS
def test_staged_files_that_a_late_request_has_committed_stay(tmp_path: Path, format: Any) -> None:
    """A driver that did not ask for larger files commits while ours writes them."""
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    late = committer_of(place.table.sink())
    committer = committer_of(sink)
    append = committer.append

    def comes_too_late(change: Any) -> None:
        if not place.named():
            late.commit(artifacts, by())
        append(change)

    committer.append = comes_too_late
    committer.commit(artifacts, by(2))
    place.has(*made)
    assert {one.target for one in artifacts} == place.named()
    committer.commit(artifacts, by(2))
    place.has(*made)


@FORMATS
@pytest.mark.parametrize("is_there", [False, True])
def test_a_start_that_goes_back_commits_what_is_not_there(
    tmp_path: Path, format: Any, is_there: bool
) -> None:
    """The older snapshot has held rows back. Maybe a later one had committed them."""
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    after = some_rows(7, range(500, 530))
    if is_there:
        later = staged_by(sink, after, EPOCHS + 1, 0)
        committer_of(sink).commit([*artifacts, *later], by())
    committer_of(sink).commit(artifacts, by(2, timeline=2))
    place.has(*made, *(after if is_there else ()))
    again = some_rows(8, range(600, 630))
    new = staged_by(sink, again, EPOCHS + 1, 0, timeline=2, execution=2)
    committer_of(sink).commit(new, by(2, timeline=2))
    place.has(*made, *(after if is_there else ()), *again)


@FORMATS
def test_a_sink_that_left_the_pipeline_commits_the_staged_files(
    tmp_path: Path, format: Any
) -> None:
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    destination = sink.destination()
    assert destination is not None
    reopened = type(sink).reopen(destination)
    reopened.open_committer("j", "out").commit(artifacts, by(2))
    place.has(*made)
    assert place.named() == {one.target for one in artifacts}


@FORMATS
def test_no_start_takes_new_files_for_orphans(tmp_path: Path, format: Any) -> None:
    """A late commit of the dead driver may still name them."""
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    committer = committer_of(sink)
    late: list[Any] = []
    append = committer.append

    def is_delayed(change: Any) -> None:
        late.append(change)
        raise TimeoutError("no answer")

    committer.append = is_delayed
    with pytest.raises(Exception, match="takes no version"):
        committer.commit(artifacts, by())
    committer_of(sink).abort_orphans(by(2), {one.token for one in artifacts})
    append(late[0])
    committer_of(sink).commit(artifacts, by(2))
    place.has(*made)
    assert len(place.named()) == 1
    names = {StagedName.of(name) for name in place.files()}
    assert None not in names and {name.owner for name in names if name} == {
        committer.owner.short
    }, "maintenance knows what is left"


@FORMATS
def test_the_table_may_get_a_column_while_rows_wait(tmp_path: Path, format: Any) -> None:
    """The rows were staged before; a start has the table's new columns."""
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    if isinstance(place.table, Iceberg):
        with place.table.opened() as table, table.update_schema() as change:
            change.add_column("more", LongType())
    else:
        field = deltalake.Field("more", deltalake.schema.PrimitiveType("long"))
        place.table.now.alter.add_columns(field)
    committer_of(place.table.sink(**WAITS)).commit(artifacts, by(2))
    assert sorted(row["id"] for row in place.table.rows()[1]) == sorted(r["id"] for r in made)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_file_bytes": 1}, "one is given without the other"),
        ({"max_delay": "1 minute"}, "one is given without the other"),
        ({**WAITS, "min_file_bytes": 0}, "min_file_bytes: 0 is not between"),
        ({**WAITS, "target_file_bytes": 199_999}, "is not between 1 and target_file_bytes"),
        ({**WAITS, "max_delay": "0 s"}, "max_delay: it is 0"),
        ({**WAITS, "max_delay": "soon"}, "max_delay: 'soon' is not a duration"),
        ({**WAITS, "guarantee": "at-least-once"}, "below exactly-once"),
        ({**WAITS, "mode": "upsert", "key": "id"}, "min_file_bytes: mode 'upsert' merges"),
    ],
)
def test_words_that_do_not_fit_are_refused(options: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sinks.delta(str(tmp_path), **options)
    with pytest.raises(ConfigurationError, match=message):
        sinks.iceberg("lake", "space.rows", **options)


def test_by_default_each_snapshot_commits_all() -> None:
    assert sinks.delta("/lake/t").hold_back() is None
    assert sinks.iceberg("lake", "a.t").hold_back() is None
    rule = sinks.delta("/lake/t", min_file_bytes=5, max_delay="2 s").hold_back()
    assert rule is not None and (rule.min_bytes, rule.max_delay_ms) == (5, 2_000)


@pytest.mark.parametrize("format", [Delta, pytest.param(Iceberg, marks=long)])
def test_files_in_a_bucket(s3: S3Folder, tmp_path: Path, format: Any) -> None:
    options: Any = {"storage_options": s3.storage_options, **WAITS}
    if format is Delta:
        made: Any = sinks.delta(s3.url, **options)
        made._of_rows.append(columns_of_rows(SCHEMA))
    else:
        place = {**options_at(tmp_path), "warehouse": s3.url}
        made = sinks.iceberg("lake", NAME, catalog_options=place, **options)
        made._of_rows.append(SCHEMA)
    made.check("j", "out", is_new_job=True)
    made.claim_place("j", "out")
    sink = made.at_start("j", "out", on_one_host=False)
    rows, artifacts = epochs(sink)
    with closing(committer_of(sink)) as committer:
        committer.commit(artifacts, by())
        assert committer.has_committed(artifacts, by())
    names = [name for name in s3.names() if name.endswith(".parquet")]
    assert len(names) == 1 and "merged-" in names[0]
    found = pq.read_table(pa.BufferReader(s3.get(names[0]))).to_pylist()
    assert multiset(found) == multiset(rows)
    if format is Delta:
        opened = options_of(data_folder(s3.url, sink.storage_options))
        assert multiset(by_delta(s3.url, opened)) == multiset(rows)
    else:
        with closing(sink._catalog()) as catalog:
            assert multiset(catalog.load_table(NAME).scan().to_arrow().to_pylist()) == multiset(
                rows
            )
