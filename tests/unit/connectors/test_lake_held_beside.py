"""Files whose rows wait for larger ones are in no version of the table: whoever cleans, compacts or
changes the table meanwhile, each row comes once."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyiceberg.transforms import parse_transform
from pyiceberg.types import LongType

from dagster_jet import sinks
from dagster_jet.contract import TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    Reaction,
    SinkMismatchError,
    SinkUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact

from . import delta_table, iceberg_table
from .delta_rows import by_library as by_delta
from .delta_table import by
from .iceberg_rows import by_library as by_pyiceberg
from .iceberg_rows import by_manifests
from .test_lake_file_sizes import FORMATS, Delta, Iceberg, multiset, some_rows
from .test_lake_hold_back import WAITS, Counted, committer_of, epochs, staged_by

_HOUR_S = 3_600


def make_older(place: Counted, artifacts: Sequence[Artifact], seconds: int) -> None:
    at = time.time() - seconds
    for one in artifacts:
        os.utime(place.data / one.target, (at, at))


# --- what removes files ---------------------------------------------------------------------------


@pytest.mark.parametrize("full", [False, True])
def test_vacuum_of_delta_leaves_files_that_may_still_wait(tmp_path: Path, full: bool) -> None:
    """They are as old as `max_delay` lets them become, at least."""
    place = Counted(tmp_path, Delta)
    sink = place.table.sink(min_file_bytes=200_000, max_delay="12 hours")
    made, artifacts = epochs(sink)
    make_older(place, artifacts, 2 * 12 * _HOUR_S)
    assert not place.table.now.vacuum(dry_run=False, full=full)
    committer_of(sink).commit(artifacts, by())
    place.has(*made)


def test_vacuum_of_delta_takes_files_beyond_the_retention_and_the_error_names_one(
    tmp_path: Path,
) -> None:
    """A start checks that this cannot happen while rows wait."""
    place = Counted(tmp_path, Delta)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    make_older(place, artifacts[:1], 8 * 24 * _HOUR_S)
    assert place.table.now.vacuum(dry_run=False, full=True) == [artifacts[0].target]
    committer = committer_of(sink)
    with pytest.raises(ArtifactLostError, match=r"part-.*parquet"):
        committer.commit(artifacts, by())
    lost: list[Any] = []
    accepting = by(2, accept_loss=True)
    object.__setattr__(accepting, "report_lost", lost.append)
    committer.commit(artifacts, accepting)
    assert len(lost) == 1
    place.has(*made[artifacts[0].rows :])


@pytest.mark.parametrize(
    ("kept", "max_delay", "is_refused"),
    [
        ("interval 2 minutes", "1 minute", False),
        ("interval 119 seconds", "1 minute", True),
        ("interval 1 month", "1 minute", True),
    ],
)
def test_a_table_that_keeps_unknown_files_too_shortly_is_refused(
    tmp_path: Path, kept: str, max_delay: str, is_refused: bool
) -> None:
    table = delta_table.Table(
        tmp_path, configuration={"delta.deletedFileRetentionDuration": "interval 7 days"}
    )
    table.set_property("delta.deletedFileRetentionDuration", kept)
    words: Any = {"min_file_bytes": 1_000, "max_delay": max_delay}
    if is_refused:
        with pytest.raises(ConfigurationError, match="max_delay: rows may wait for 1 minute"):
            table.sink(**words)
    else:
        table.sink(**words)
    table.sink()


def test_rows_wait_for_half_a_day_at_most() -> None:
    for max_delay, is_refused in (("12 hours", False), ("13 hours", True), ("7 days", True)):
        words: Any = {"min_file_bytes": 1_000, "max_delay": max_delay}
        for make in (
            lambda words=words: sinks.delta("/lake/t", **words),
            lambda words=words: sinks.iceberg("lake", "a.t", **words),
        ):
            if is_refused:
                with pytest.raises(ConfigurationError, match="is longer than 12 hours"):
                    make()
            else:
                make()


@FORMATS
def test_maintenance_leaves_waiting_files_however_old_they_are(tmp_path: Path, format: Any) -> None:
    """Between commits of the sink, whose versions it compacts."""
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    committer = committer_of(sink)
    first, second = artifacts[:6], artifacts[6:]
    maintained: list[Any] = []
    maintenance = sink.maintenance("j", "out")
    for some in (first, second):
        make_older(place, [one for one in artifacts if (place.data / one.target).exists()], 10**7)
        maintained.append(maintenance.run(0, 10**6))
        committer.commit(some, by())
    place.has(*made)
    maintained.append(maintenance.run(0, 10**6))
    place.has(*made)
    waiting = [one["files_staged"] for one in maintained]
    assert waiting == [len(artifacts), len(second), 0]


@FORMATS
def test_others_compact_and_expire_while_rows_wait(tmp_path: Path, format: Any) -> None:
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    committer = committer_of(sink)
    others = some_rows(9, range(10_000, 10_020))
    for number, part in enumerate((artifacts[:4], artifacts[4:8], artifacts[8:])):
        _append(place, others[number::3])
        _clean_by_library(place)
        committer.commit(part, by())
        _clean_by_library(place)
    place.has(*made, *others)


def _append(place: Counted, rows: Sequence[Any]) -> None:
    added = pa.Table.from_pylist(list(rows), place.table.schema)
    if isinstance(place.table, Iceberg):
        with place.table.opened() as table:
            table.append(added)
    else:
        deltalake.write_deltalake(place.table.folder, added, mode="append")


def _clean_by_library(place: Counted) -> None:
    if isinstance(place.table, Iceberg):
        with place.table.opened() as table:
            table.maintenance.expire_snapshots().older_than(datetime.now(timezone.utc)).commit()
    else:
        place.table.now.optimize.compact()
        place.table.now.vacuum(0, dry_run=False, enforce_retention_duration=False)
        place.table.now.create_checkpoint()


@contextmanager
def nothing_fits(bytes: int) -> Iterator[None]:
    """Lets files have at most so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@FORMATS
def test_a_commit_that_cannot_write_its_files_is_tried_again(tmp_path: Path, format: Any) -> None:
    """Failed before: the job restarted, as if a task of an epoch could not write, and its start
    could not either."""
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    committer = committer_of(sink)
    with pytest.raises(SinkUnavailableError, match="cannot be written") as told, nothing_fits(50):
        committer.commit(artifacts, by())
    assert told.value.reaction is Reaction.RETRY
    assert place.files() == {one.target for one in artifacts}
    committer.commit(artifacts, by())
    place.has(*made)


# --- what changes the table -----------------------------------------------------------------------


def renamed(change: Any) -> None:
    change.rename_column("text", "words")


def more(change: Any) -> None:
    change.add_column("more", LongType())


@pytest.mark.parametrize("how", [renamed, more])
def test_columns_of_an_iceberg_table_change_while_rows_wait(
    tmp_path: Path, how: Callable[[Any], None]
) -> None:
    """Columns have ids: what was staged under another name is found."""
    place = Counted(tmp_path, Iceberg)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    with place.table.opened() as table, table.update_schema() as change:
        how(change)
    committer_of(sink).commit(artifacts, by())
    found = by_pyiceberg(place.table.folder)
    text = "words" if how is renamed else "text"
    assert multiset([{**row, "text": row[text]} for row in found]) == multiset(made)


def test_a_type_of_an_iceberg_table_is_widened_while_rows_wait(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int32()), ("text", pa.string())])
    table = iceberg_table.Table(tmp_path, schema)
    sink = table.sink(**WAITS)
    artifacts = [one for epoch in range(1, 5) for one in _staged(sink, _ids(epoch, schema), epoch)]
    with table.opened() as opened, opened.update_schema() as change:
        change.update_column("id", LongType())
    committer_of(sink).commit(artifacts, by())
    assert table.ids() == [1, 2, 3, 4]


def test_a_column_is_gone_while_rows_wait(tmp_path: Path) -> None:
    """The commit stops, and the staged files stay."""
    place = Counted(tmp_path, Iceberg)
    sink = place.table.sink(**WAITS)
    _, artifacts = epochs(sink)
    with place.table.opened() as table, table.update_schema(allow_incompatible_changes=True) as it:
        it.delete_column("text")
    committer = committer_of(sink)
    with pytest.raises(SinkMismatchError, match="no column 'text' any more"):
        committer.commit(artifacts, by())
    assert all((place.data / one.target).exists() for one in artifacts)


def test_partitions_of_an_iceberg_table_change_while_rows_wait(tmp_path: Path) -> None:
    place = Counted(tmp_path, Iceberg)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    with place.table.opened() as table, table.update_spec() as spec:
        spec.add_field("day", parse_transform("day"))
    committer_of(sink).commit(artifacts, by())
    place.has(*made)
    new = place.table.sink(**WAITS)
    more_rows = some_rows(9, range(5_000, 5_030))
    committer_of(new).commit(staged_by(new, more_rows, 20, 0), by())
    place.has(*made, *more_rows)


def _ids(epoch: int, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": epoch, "text": f"row {epoch}"}], schema)


def _staged(sink: Any, batch: pa.RecordBatch, epoch: int) -> tuple[Artifact, ...]:
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, epoch, 0, "a0"))
    writer.write(batch)
    staged: tuple[Artifact, ...] = writer.prepare()
    return staged


# --- values, and several sinks --------------------------------------------------------------------

ODD = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.decimal128(30, 9)),
        ("ratio", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("body", pa.binary()),
        ("tags", pa.list_(pa.struct([("name", pa.string()), ("n", pa.int64())]))),
        ("marks", pa.map_(pa.string(), pa.float64())),
    ]
)


def odd(id: int) -> dict[str, Any]:
    """A row with a null in one column or another."""
    row: dict[str, Any] = {
        "id": id,
        "price": Decimal(id).scaleb(-9) + Decimal(10**18),
        "ratio": [0.1, float("inf"), float("-inf"), -0.0][id % 4],
        "at": datetime(1900 + id, 1, 2, 3, 4, 5, 678901, timezone.utc),
        "local": datetime(2200 + id, 1, 1),
        "day": date(1600 + id, 2, 28),
        "body": bytes([id, 0, 255]),
        "tags": [{"name": "größe", "n": id}, {"name": None, "n": None}],
        "marks": [(f"k{id}", None), ("é", 1.5)],
    }
    name = ODD.names[1 + id % (len(ODD.names) - 1)]
    return {**row, name: None}


@FORMATS
def test_values_are_as_they_were_staged(tmp_path: Path, format: Any) -> None:
    made = [odd(id) for id in range(40)]
    kind = delta_table if format is Delta else iceberg_table
    table: Any = kind.Table(tmp_path, ODD)
    sink = table.sink(**WAITS)
    artifacts = [
        one
        for epoch in range(1, 9)
        for one in _staged(
            sink, pa.RecordBatch.from_pylist(made[5 * epoch - 5 : 5 * epoch], ODD), epoch
        )
    ]
    committer_of(sink).commit(artifacts, by())
    # pyiceberg 0.12 reads a list that is null as an empty one, so the files themselves are read.
    read: Any = by_delta(str(table.folder)) if format is Delta else by_manifests(tmp_path)
    found = sorted(read, key=lambda row: row["id"])
    assert found == made
    left = [path.name for path in tmp_path.rglob("*.parquet")]
    assert len(left) == 1 and left[0].startswith("merged-")


@FORMATS
def test_two_jobs_with_one_table(tmp_path: Path, format: Any) -> None:
    """Each gathers its own files, and the maintenance of one leaves those of the other."""
    place = Counted(tmp_path, format)
    sink = place.table.sink(**WAITS)
    made, artifacts = epochs(sink)
    theirs = some_rows(5, range(7_000, 7_060))
    of_other: list[Artifact] = []
    for epoch in (1, 2):
        for shard in (0, 1):
            writer = sink.open_writer(TransactionId("k", "out", 1, 1, epoch, shard, "a0"))
            some = theirs[30 * epoch - 30 + 15 * shard : 30 * epoch - 15 + 15 * shard]
            writer.write(pa.RecordBatch.from_pylist(some, place.table.schema))
            of_other += writer.prepare()
    make_older(place, [*artifacts, *of_other], 10**7)
    committer_of(sink).commit(artifacts, by())
    place.has(*made)
    sink.maintenance("j", "out").run(0, 10**6)
    committer_of(sink).abort_orphans(by(5), ())
    context = by()
    object.__setattr__(context, "job", "k")
    other = sink.open_committer("k", "out")
    other.commit(of_other, context)
    place.has(*made, *theirs)
    assert not [name for name in place.files() if name in {one.target for one in of_other}]
