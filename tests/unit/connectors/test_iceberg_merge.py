"""Upserts and mirrors of an Iceberg table: copy on write, and others use the table meanwhile."""

from __future__ import annotations

import errno
import random
import time
from contextlib import closing
from dataclasses import replace
from datetime import date, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.types import LongType

from dagster_jet import sinks
from dagster_jet.connectors.iceberg import IcebergSink, merge_commit
from dagster_jet.connectors.iceberg.key_search import KeySearch
from dagster_jet.connectors.iceberg.table_version import SNAPSHOTS_KEPT
from dagster_jet.connectors.lake import lake_committer
from dagster_jet.connectors.lake.lake_committer import Change
from dagster_jet.connectors.lake.staged_names import marker_of
from dagster_jet.contract import CommitContext, TransactionId, carry_out_here
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    FencedError,
    SinkError,
    SinkMismatchError,
)
from dagster_jet.system import backoff
from tests.long import long, long_but_for

from .delta_table import SCHEMA, by, rows, stage
from .iceberg_rows import NAME, by_library, by_manifests, metadata_of, options_at
from .iceberg_table import APPLICATION, Table, commit, has_committed
from .test_delta_merge import change, changes
from .test_iceberg_others import AT, TYPES, WRITTEN

KEYED: dict[str, Any] = {"mode": "upsert", "key": "id"}
MIRROR: dict[str, Any] = {"mode": "mirror", "key": "id"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path, by=(("day", "identity"),))


def texts(table: Table) -> dict[int, str | None]:
    assert table.ids() == sorted({row["id"] for row in by_manifests(table.folder)})
    return {row["id"]: row["text"] for row in by_manifests(table.folder)}


def data(table: Table) -> Path:
    return table.folder / "warehouse" / "space" / "rows" / "data"


def staged_files(table: Table) -> list[Path]:
    return sorted((data(table) / "_dagster_jet").glob("part-*"))


def merged_files(table: Table) -> set[str]:
    return {path.name for path in data(table).glob("merged-*")}


def test_aborted_checkpoint_merged_into_next(table: Table) -> None:
    """A snapshot has failed, so its epoch is committed together with the next one, in which a key
    has changed again: the newest row of the key counts."""
    sink = table.sink(**KEYED)
    table.append(1, 7)
    staged = [*stage(sink, rows(1, 2)), *stage(sink, rows(2, 3, text="new"), epoch=2)]
    commit(sink, staged, by())
    assert texts(table) == {1: "row 1", 2: "new", 3: "new", 7: "row 7"}
    assert staged_files(table) == []
    commit(sink, staged, by(2))
    found = metadata_of(table.folder)["snapshots"]
    assert [one["summary"]["operation"] for one in found] == ["append", "overwrite"]
    assert found[-1]["summary"]["dagster_jet.epochs"] == "1-2"


@pytest.mark.parametrize("others", [(), (7,)], ids=["an empty table", "other keys"])
def test_zero_row_delete_does_not_conflict(
    table: Table, monkeypatch: pytest.MonkeyPatch, others: tuple[int, ...]
) -> None:
    """Two sinks upsert a key that the table does not have. Neither has a row to remove, and still
    the second one is made again, on what the first one has committed."""
    for id in others:
        table.append(id)
    sink = table.sink(**KEYED)
    ours, theirs = stage(sink, rows(1, text="newer")), [stage(sink, rows(1), name="other")]

    def after_another(point: str) -> None:
        if point == "lake.commit.before" and theirs:
            commit(sink, theirs.pop(), by(name="other"))

    monkeypatch.setattr(lake_committer, "fail_point", after_another)
    commit(sink, ours, by())
    assert not theirs and texts(table)[1] == "newer"
    assert table.ids() == [1, *others]


def test_changes_of_a_mirror(table: Table) -> None:
    sink = table.sink(**MIRROR)
    first = stage(sink, changes(change("insert", 1), change("insert", 2), change("insert", 3)))
    second = stage(
        sink,
        changes(
            change("update", 4, 1), change("delete", old=2), change("update", 3, 3, text="new")
        ),
        epoch=2,
    )
    commit(sink, first, by())
    commit(sink, [*first, *second], by())
    assert texts(table) == {3: "new", 4: "row 4"}
    third = stage(sink, changes(change("truncate"), change("insert", 9)), epoch=3)
    commit(sink, third, by(2))
    assert texts(table) == {9: "row 9"} and staged_files(table) == []


def test_only_files_with_a_key_are_written_anew(table: Table) -> None:
    """Files that bounds or partitions exclude are not even read; small ones are put together."""
    sink = table.sink(**KEYED)
    for epoch, ids in enumerate(([1, 29], [31, 59], [57, 85]), 1):  # of two days
        commit(sink, stage(sink, rows(*ids), epoch=epoch), by())
    before = {row: path for path, ids in files(table).items() for row in ids}
    data(table).joinpath(before[31]).rename(data(table) / "away")
    commit(sink, stage(sink, rows(29, 85, 86, text="new"), epoch=4), by())
    data(table).joinpath("away").rename(data(table) / before[31])
    after = {row: path for path, ids in files(table).items() for row in ids}
    assert {row for row in before if before[row] == after[row]} == {31, 59}
    assert after[1] == after[29] == after[57] == after[85] and after[86] != after[1]
    assert texts(table)[1] == "row 1" and texts(table)[29] == "new"


def files(table: Table) -> dict[str, list[int]]:
    """Ids of the rows of each live file."""
    with table.opened() as found:
        paths = [one.file.file_path.removeprefix("file://") for one in found.scan().plan_files()]
    return {Path(path).name: pq.read_table(path)["id"].to_pylist() for path in paths}


def test_a_plan_that_has_failed_is_made_again(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part of the failed plan is used, although the table is as it was."""
    sink = table.sink(**KEYED)
    commit(sink, stage(sink, rows(1, 2)), by())
    staged = stage(sink, rows(2, 3, text="new"), epoch=2)

    def fails(pieces: Any) -> Any:
        carry_out_here(pieces[:1])
        raise OSError(errno.EIO, "Input/output error")

    with closing(sink.open_committer("j", "out")) as committer:
        with monkeypatch.context() as patched, pytest.raises(SinkError, match="Input/output error"):
            patched.setattr(merge_commit, "carry_out_here", fails)
            committer.commit(staged, by())
        committer.commit(staged, by())
    assert texts(table) == {1: "row 1", 2: "new", 3: "new"}


def test_a_row_moves_to_another_partition(table: Table) -> None:
    sink = table.sink(**KEYED)
    commit(sink, stage(sink, rows(1, 2)), by())
    commit(sink, stage(sink, rows(1, day=date(2026, 2, 2)), epoch=2), by())
    found = {row["id"]: row["day"] for row in by_manifests(table.folder)}
    assert found == {1: date(2026, 2, 2), 2: date(2026, 1, 3)} and table.ids() == [1, 2]
    with table.opened() as opened:
        moved = opened.scan(row_filter="day = '2026-02-02'").to_arrow()
        assert moved["id"].to_pylist() == [1]


def test_a_late_merge_is_refused(table: Table) -> None:
    """An upsert would bring old values back, as `late_request_lands_after_recovery_check` does."""
    sink = table.sink(**KEYED)
    old = stage(sink, rows(1))
    with closing(sink.open_committer("j", "out")) as dead:
        version = dead.open()
        assert version is not None
        dead.plan(version, old, by())
        commit(sink, old, by(2))
        commit(sink, stage(sink, rows(1, text="new"), epoch=2), by(2))
        with pytest.raises(CommitFailedException, match="branch main"):
            dead.append(Change(version, old, APPLICATION, marker_of(1, 1), {}))
    assert texts(table) == {1: "new"}
    later = stage(sink, rows(2), epoch=3, timeline=2, execution=2)
    commit(sink, later, by(2, 2))
    with pytest.raises(FencedError, match="later timeline"):
        commit(sink, stage(sink, rows(1), epoch=9), by(1))


def test_a_late_merge_lands_before_its_successors(table: Table) -> None:
    """The files that a start removes as orphans are never named by a late request."""
    sink = table.sink(**KEYED)
    commit(sink, stage(sink, rows(1, 2)), by())
    staged = stage(sink, rows(2, 3, text="new"), epoch=2)
    with closing(sink.open_committer("j", "out")) as dead:
        version = dead.open()
        assert version is not None
        dead.plan(version, staged, by())
        for other in (sink, table.sink()):  # also if it appends from now on
            with closing(other.open_committer("j", "out")) as successor:
                assert successor.abort_orphans(by(2), [staged[0].token]) == 0
        kept = {"history.expire.max-snapshot-age-ms": "0"}
        with table.opened() as opened, opened.transaction() as change:
            change.set_properties(kept)
        sink.maintenance("j", "out").run(0, 1 << 20)
        dead.append(Change(version, staged, APPLICATION, marker_of(1, 2), {}))
    commit(sink, staged, by(2))
    assert texts(table) == {1: "row 1", 2: "new", 3: "new"}


def test_files_of_a_try_that_failed_go_once_the_marker_has_passed(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer comes first twice, with a key that is changed here."""
    sink, real, meanwhile = table.sink(**KEYED), SqlCatalog.commit_table, [9, 1]

    def after_another(*given: Any) -> Any:
        if meanwhile:
            id = meanwhile.pop()
            monkeypatch.setattr(SqlCatalog, "commit_table", real)
            table.append(id)
            monkeypatch.setattr(SqlCatalog, "commit_table", after_another)
        return real(*given)

    monkeypatch.setattr(SqlCatalog, "commit_table", after_another)
    commit(sink, stage(sink, rows(1, 2, text="new")), by())
    monkeypatch.undo()
    assert texts(table) == {1: "new", 2: "new", 9: "row 9"}
    tried = merged_files(table)
    assert tried > set(files(table)) & tried
    sink.maintenance("j", "out").run(0, 1 << 20)
    assert merged_files(table) == set(files(table)) & tried
    assert texts(table) == {1: "new", 2: "new", 9: "row 9"}


def test_a_merge_that_takes_minutes_is_seen(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed before, although it was committed: nobody looked after the first minute."""
    clock = SimpleNamespace(monotonic=count(0, 100).__next__, sleep=time.sleep)
    monkeypatch.setattr(backoff, "time", clock)
    sink = table.sink(**KEYED)
    commit(sink, stage(sink, rows(1)), by())
    assert table.ids() == [1]


def test_changes_that_change_nothing_refuse_a_late_commit(table: Table) -> None:
    sink = table.sink(**MIRROR)
    staged = stage(sink, changes(change("delete", old=5)))
    with closing(sink.open_committer("j", "out")) as dead:
        version = dead.open()
        assert version is not None
        dead.plan(version, staged, by())
        commit(sink, staged, by(2))
        with pytest.raises(CommitFailedException):
            dead.append(Change(version, staged, APPLICATION, marker_of(1, 1), {}))
    assert has_committed(sink, staged, by(2)) and table.ids() == []


def test_staged_changes_that_are_lost(table: Table) -> None:
    sink = table.sink(**KEYED)
    lost, kept, orphan = (stage(sink, rows(n), epoch=n) for n in (1, 2, 3))
    (data(table) / "_dagster_jet" / lost[0].target).unlink()
    with pytest.raises(ArtifactLostError, match="with 1 rows is gone"):
        commit(sink, lost, by())
    commit(sink, [*lost, *kept], by(2, accept_loss=True))
    with closing(sink.open_committer("j", "out")) as committer:
        assert committer.abort_orphans(by(2), []) == 1 and orphan
    assert table.ids() == [2] and staged_files(table) == []


def test_what_has_no_key_is_refused(table: Table) -> None:
    upsert, mirror = table.sink(**KEYED), table.sink(**MIRROR)
    found = upsert.refused(pa.concat_batches([rows(1), rows(2, id=None)]))
    assert [one.reason.rpartition(": ")[2] for one in found.values()] == ["id is null"]
    assert not mirror.can_leave_out() and not mirror.refused(changes(change("delete", old=1)))
    with pytest.raises(SinkMismatchError, match="the key column id is null in a change"):
        stage(mirror, changes(change("delete")))


def test_a_mirror_of_a_table_that_refuses_nulls(tmp_path: Path) -> None:
    schema = pa.schema([SCHEMA.field("id"), SCHEMA.field("text").with_nullable(False)])
    made = Table(tmp_path, pa.schema([*schema, SCHEMA.field("day")]))
    with pytest.raises(SinkMismatchError, match="in a changed row text is null"):
        stage(made.sink(**MIRROR), changes(change("insert", 1, text=None)))


def test_tables_that_cannot_be_merged_into(table: Table) -> None:
    sink = table.sink(**KEYED)
    staged = stage(sink, rows(1))
    with table.opened() as opened, opened.update_schema() as schema:
        schema.rename_column("text", "words")
    with pytest.raises(SinkMismatchError, match="its column 'text' is 'words' now"):
        commit(sink, staged, by())
    with table.opened() as opened, opened.update_schema() as schema:
        schema.rename_column("words", "text")
        schema.add_column("more", LongType())
    commit(sink, staged, by(2))
    assert [row["more"] for row in by_library(table.folder)] == [None]
    with_deletes(table)
    with pytest.raises(ConfigurationError, match="it has files that delete rows"):
        table.sink(**KEYED)
    table.sink()
    with pytest.raises(SinkMismatchError, match="it has files that delete rows"):
        commit(sink, stage(sink, rows(2), epoch=2), by(2))


def test_a_key_that_others_have_widened_meanwhile(tmp_path: Path) -> None:
    narrow = pa.schema([("id", pa.int32()), ("text", pa.string())])
    made = Table(tmp_path, narrow)
    staged = [
        pa.RecordBatch.from_pylist([{"id": 1, "text": text}, {"id": 2, "text": text}], narrow)
        for text in ("old", "new")
    ]
    sink = made.sink(**KEYED)
    commit(sink, stage(sink, staged[0]), by())
    decided = stage(sink, staged[1], epoch=2)
    with made.opened() as opened:
        with opened.update_schema() as columns:
            columns.update_column("id", LongType())
        opened.append(pa.table({"id": pa.array([1 << 40, 2]), "text": ["theirs", "theirs"]}))
    commit(sink, decided, by(2))
    assert texts(made) == {1: "new", 2: "new", 1 << 40: "theirs"}


def with_deletes(table: Table) -> None:
    """Changes the newest manifest list as a writer of positional deletes leaves it."""
    with table.opened() as opened:
        head, at = opened.current_snapshot(), Path(opened.metadata_location[len("file://") :])
        assert head is not None
    path = Path(head.manifest_list.removeprefix("file://"))
    changed = path.with_name("changed.avro")
    at.write_text(at.read_text().replace(path.name, changed.name))
    with path.open("rb") as file:
        reader = fastavro.reader(file)
        known, schema = reader.metadata, reader.writer_schema
        found: list[Any] = list(reader)
    manifest = found[-1]["manifest_path"].replace(".avro", "-deletes.avro")
    found.append({**found[-1], "content": 1, "manifest_path": manifest})
    kept = {name: text for name, text in known.items() if not name.startswith("avro.")}
    with changed.open("wb") as file:
        fastavro.writer(file, schema, found, metadata=kept)


def test_it_is_reopened_with_its_key(table: Table) -> None:
    sink = table.sink(**KEYED)
    staged = stage(sink, rows(1))
    commit(replace(IcebergSink.reopen(sink.destination()), home=sink.home), staged, by())
    assert table.ids() == [1]


def test_manifests_do_not_pile_up(tmp_path: Path) -> None:
    few = {"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "3"}
    made = Table(tmp_path, properties=few)
    sink = made.sink(**KEYED)
    for epoch in range(1, 13):
        commit(sink, stage(sink, rows(1, epoch, text=str(epoch)), epoch=epoch), by())
    with made.opened() as opened:
        newest = opened.current_snapshot()
        assert newest is not None and len(newest.manifests(opened.io)) < 4
    assert texts(made) == {1: "12", **{n: str(n) for n in range(2, 13)}}


def test_files_of_before_the_table_changed_are_written_anew(table: Table) -> None:
    """A column has another name, one is added, and rows are partitioned by other fields."""
    table.append(1, 2, 29)
    with table.opened() as opened:
        with opened.update_schema() as columns:
            columns.rename_column("text", "words")
            columns.add_column("more", LongType())
        with opened.update_spec() as spec:
            spec.remove_field("day")
            spec.add_identity("words")
    sink = table.sink(**KEYED)
    changed = {"id": 1, "words": "new", "day": None, "more": 7}
    schema = pa.schema([("id", pa.int64()), ("words", pa.string()), *list(SCHEMA)[2:]])
    batch = pa.RecordBatch.from_pylist([changed], schema.append(pa.field("more", pa.int64())))
    commit(sink, stage(sink, batch), by())
    found = {row["id"]: row for row in by_library(table.folder)}
    assert found[1] == changed and (found[29]["words"], found[29]["more"]) == ("row 29", None)
    assert sorted(found) == [1, 2, 29] == table.ids()
    with table.opened() as opened:
        assert opened.scan(row_filter="words = 'new'").to_arrow()["id"].to_pylist() == [1]


def test_a_nested_column_that_has_changed_is_not_written_anew(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
    made = Table(tmp_path, schema)
    with made.opened() as opened:
        opened.append(pa.Table.from_pylist([{"id": 1, "s": {"a": 1}}], schema))
        with opened.update_schema() as columns:
            columns.add_column(("s", "b"), LongType())
    sink = made.sink(**KEYED)
    wider = pa.schema(
        [schema.field("id"), ("s", pa.struct([("a", pa.int64()), ("b", pa.int64())]))]
    )
    for id, epoch in ((2, 1), (1, 2)):
        batch = pa.RecordBatch.from_pylist([{"id": id, "s": {"a": 2, "b": 3}}], wider)
        staged = stage(sink, batch, epoch=epoch)
        if id == 2:
            commit(sink, staged, by())
    with pytest.raises(SinkMismatchError, match="parts of its column 's' are others"):
        commit(sink, staged, by(2))
    assert made.ids() == [1, 2]


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [pytest.param((), marks=long), ("month(day)", "bucket(2, text)", "ok", "price")],
    ids=["whole", "parts"],
)
def test_rows_that_are_written_anew_keep_their_values(tmp_path: Path, fields: Any) -> None:
    """The library reads a null list of structs as an empty one; the merge does not use it."""
    sink = created(tmp_path, TYPES, "id", fields)
    batch = pa.RecordBatch.from_pylist(list(WRITTEN), TYPES)
    commit(sink, stage(sink, batch), by())
    for epoch in (2, 3):
        commit(sink, stage(sink, batch.slice(epoch, 1), epoch=epoch), by())
    for epoch, row in enumerate([*WRITTEN, *WRITTEN], 4):  # each file again
        again = pa.RecordBatch.from_pylist([row], TYPES)
        commit(sink, stage(sink, again, epoch=epoch), by())
    found = {row["id"]: row for row in by_manifests(tmp_path)}
    assert len(by_manifests(tmp_path)) == len(WRITTEN)
    for row in batch.to_pylist():
        for name, value in found[row["id"]].items():
            assert value == row[name] or value != value, name


KEYS = {
    "few": [-3, 0, 127],
    "id": [2**62, -(2**63), 0, 5],
    "text": ["z" * 100, "z" * 99, "\U0010ffff" * 40, "\U0010ffff" * 41, "", "é"],
    "at": [AT, AT.replace(year=9999), AT.replace(year=1900)],
    "local": [datetime(1, 1, 1), datetime(2026, 1, 1)],
    "day": [date(1, 1, 1), date(2026, 1, 1)],
    "ok": [True, False],
    "raw": [b"\x00\xff" * 20, b"", b"\x00"],
}
TRANSFORMS = {"text": "truncate(2, {})", "at": "hour({})", "local": "year({})", "day": "month({})"}


@pytest.mark.parametrize("column", long_but_for(KEYS, "id", "text", "at", "ok"))
def test_keys_of_any_type_are_found(tmp_path: Path, column: str) -> None:
    """The keys are in files that are told apart by their bounds, and by partitions of the key."""
    schema = pa.schema([TYPES.field(column), ("value", pa.int64())])
    transform = TRANSFORMS.get(column, "bucket(3, {})").format(column)
    for place, fields in (("whole", ()), ("parts", () if column == "ok" else (transform,))):
        sink, wanted = created(tmp_path / place, schema, column, fields), {}
        for epoch, key in enumerate([*KEYS[column], *KEYS[column]], 1):
            wanted[key] = epoch
            batch = pa.RecordBatch.from_pylist([{column: key, "value": epoch}], schema)
            commit(sink, stage(sink, batch, epoch=epoch), by())
        found = [(row[column], row["value"]) for row in by_manifests(tmp_path / place)]
        assert sorted(found) == sorted(wanted.items())


@pytest.mark.parametrize("transform", ["year(day)", "month(day)", "day(day)"])
def test_a_key_of_a_year_that_the_library_lacks_is_looked_for(
    tmp_path: Path, transform: str
) -> None:
    """Failed before: an OverflowError at each commit of such a deletion, in a decided epoch."""
    schema = pa.schema([("day", pa.date32()), ("value", pa.int64())])
    sink = created(tmp_path, schema, "day", (transform,))
    batch = pa.RecordBatch.from_pylist([{"day": date(2026, 1, 1), "value": 1}], schema)
    commit(sink, stage(sink, batch), by())
    days = pa.array([20_454, 13_890_172, -1_000_000], pa.int32()).cast(pa.date32())
    with sink._opened("j", "out") as version:
        assert version is not None
        live = version.live_files()
        for wanted, keys in ((1, days), (0, days.slice(1))):
            search = KeySearch(pa.table({"day": keys}), ["day"], version.metadata)
            assert len(search.among(live)) == wanted


def created(folder: Path, schema: pa.Schema, key: str, fields: Any) -> IcebergSink:
    """A sink whose table the start creates."""
    folder.mkdir(exist_ok=True)
    place: Any = options_at(folder)
    options = {"mode": "upsert", "key": key, "partition_by": fields, "catalog_options": place}
    made = sinks.iceberg("lake", NAME, **options)
    made._of_rows.append(schema)
    made.claim_place("j", "out")
    return made.at_start("j", "out", on_one_host=True)


# --- many epochs at random ------------------------------------------------------------------------

PARTS: Any = pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.int64())])
CHANGED = pa.schema(
    [
        *PARTS,
        ("op", pa.string()),
        ("_lsn", pa.int64()),
        ("_row", pa.int64()),
        ("_old", pa.struct([("id", pa.int64()), ("part", pa.string())])),
        ("_unchanged", pa.list_(pa.string())),
    ]
)
OPS = ["insert", "update", "update", "delete", "delete", "truncate"]


def append_by_another(table: Table, row: dict[str, Any], epoch: int) -> None:
    sink, context = table.sink(), CommitContext("other", "out", 1, 1, False)
    writer = sink.open_writer(TransactionId("other", "out", 1, 1, epoch, 0, "a0"))
    writer.write(pa.RecordBatch.from_pylist([row], PARTS))
    with closing(sink.open_committer("other", "out")) as committer:
        committer.commit(writer.prepare(), context)


class Model:
    """A table by its key, to which the same changes are applied one by one."""

    def __init__(self, seed: int, mode: str) -> None:
        self.random, self.mode, self.rows = random.Random(seed), mode, dict[Any, int]()
        self.number = 0

    def key(self) -> tuple[int, str]:
        return self.random.randrange(12), self.random.choice("ab")

    def epoch(self) -> pa.RecordBatch:
        made = [self.upsert, self.change][self.mode == "mirror"]
        found = [made() for _ in range(self.random.randrange(1, 9))]
        schema = CHANGED if self.mode == "mirror" else PARTS
        return pa.RecordBatch.from_pylist(found, schema)

    def upsert(self) -> dict[str, Any]:
        self.number += 1
        key = self.key()
        self.rows[key] = self.number
        return {"id": key[0], "part": key[1], "value": self.number}

    def change(self) -> dict[str, Any]:
        old, op = self.key(), self.random.choice(OPS)
        op = "insert" if op == "truncate" and self.random.random() < 0.8 else op
        row: dict[str, Any] = {}
        if op in ("update", "delete"):
            self.rows.pop(old, None)
            row |= {"id": old[0], "part": old[1], "_old": {"id": old[0], "part": old[1]}}
        if op == "truncate":
            self.rows.clear()
        if op in ("insert", "update"):
            row |= self.upsert()
        return {**row, "op": op, "_lsn": 1, "_row": self.number}


@pytest.mark.parametrize("mode", ["upsert", "mirror"])
@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=long) for n in range(2, 7))])
def test_epochs_restarts_and_late_requests_at_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, seed: int
) -> None:
    """Compares rows after each commit, in a table that others append to, and beside maintenance."""
    model = Model(seed, mode)
    by_field = model.random.choice([(), (("part", "identity"),), (("id", "bucket[3]"),)])
    kept = {"history.expire.max-snapshot-age-ms": "0"}
    few = {SNAPSHOTS_KEPT: "2"} if seed % 2 else {}
    table = Table(tmp_path, PARTS, by=by_field, properties={**kept, **few})
    sink = table.sink(mode=mode, key=["id", "part"])
    epoch = execution = 1
    held: list[Any] = []
    for _ in range(8):
        what, staged = model.random.randrange(5), []
        if what == 1:
            model.rows[100 + epoch, "a"] = epoch
            append_by_another(table, {"id": 100 + epoch, "part": "a", "value": epoch}, epoch)
        for _ in range(model.random.randrange(1, 4)):
            batch, epoch = model.epoch(), epoch + 1
            staged += stage(sink, batch, epoch=epoch, execution=execution)
        with closing(sink.open_committer("j", "out")) as committer:
            if what == 0:  # a driver dies between its plan and its request, which lands late
                version = committer.open()
                assert version is not None
                committer.plan(version, staged, by(execution))
                with monkeypatch.context() as patched:
                    patched.setattr(SqlCatalog, "commit_table", lambda *given: held.append(given))
                    committer.append(Change(version, staged, APPLICATION, marker_of(1, epoch), {}))
                execution += 1
                committer.abort_orphans(by(execution), [one.token for one in staged])
        if what == 2:
            sink.maintenance("j", "out").run(0, 1 << 20)
        commit(sink, staged, by(execution))
        if what == 3:  # the answer was lost
            commit(sink, staged, by(execution + 1))
        for request in held:
            with pytest.raises(CommitFailedException):
                SqlCatalog.commit_table(*request)
        wanted = sorted((id, part, value) for (id, part), value in model.rows.items())
        for read in (by_manifests, by_library):
            found = [(row["id"], row["part"], row["value"]) for row in read(tmp_path)]
            assert sorted(found) == wanted, (seed, epoch)
    assert staged_files(table) == []
