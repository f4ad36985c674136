"""A Delta Lake table that others use meanwhile, and requests that go astray: the real library does
each of these things, and every row is there once."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.delta import DeltaSink
from dagster_jet.connectors.delta.columns import check_partition_by, columns_of_rows
from dagster_jet.connectors.delta.staged_file import data_file_of
from dagster_jet.connectors.delta.staged_names import Owner, marker_of
from dagster_jet.connectors.delta.table_log import TableLog
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    FencedError,
    JetError,
    PipelineError,
    Reaction,
    SinkError,
    SinkMismatchError,
    SinkUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact
from tests.servers.members import AwsServer
from tests.servers.proxy import Proxy

from .delta_rows import by_library, by_log
from .s3_folder import BUCKET, S3Folder, environment

SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string()), ("day", pa.date32())])
APPLICATION = Owner("", "", "j", "out").application(repeatable=False)


class Table:
    """A local table, and the sink that writes to it."""

    def __init__(self, folder: Path, schema: pa.Schema = SCHEMA, **created: Any) -> None:
        self.folder, self.schema = folder / "table", schema
        deltalake.DeltaTable.create(self.folder, schema, **created)

    def sink(self, **options: Any) -> DeltaSink:
        return sinks.delta(str(self.folder), **options).at_start("j", "out", on_one_host=True)

    @property
    def now(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.folder)

    def ids(self) -> list[int]:
        """As both readers see them."""
        found = sorted(row["id"] for row in by_log(self.folder))
        assert found == sorted(row["id"] for row in by_library(str(self.folder)))
        return found

    def append(self, *ids: int) -> None:
        """What another writer does."""
        rows = pa.table({"id": pa.array(ids, pa.int64())})
        deltalake.write_deltalake(self.folder, rows, mode="append", schema_mode="merge")

    def set_property(self, name: str, value: str) -> None:
        """As a writer that the library does not refuse, such as Spark."""
        self._change(lambda data: data["configuration"].update({name: value}))

    def change_type(self, column: str, type: str) -> None:
        def change(data: dict[str, Any]) -> None:
            schema = json.loads(data["schemaString"])
            for field in schema["fields"]:
                field["type"] = type if field["name"] == column else field["type"]
            data["schemaString"] = json.dumps(schema)

        self._change(change)

    def _change(self, change: Any) -> None:
        log = self.folder / "_delta_log"
        lines = [line for p in sorted(log.glob("*.json")) for line in p.read_text().splitlines()]
        newest = [json.loads(line)["metaData"] for line in lines if "metaData" in line][-1]
        change(newest)
        version = self.now.version() + 1
        (log / f"{version:020d}.json").write_text(json.dumps({"metaData": newest}) + "\n")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


def rows(*ids: int, **values: Any) -> pa.RecordBatch:
    made = [{"id": n, "text": f"row {n}", "day": date(2026, 1, n % 28 + 1), **values} for n in ids]
    return pa.RecordBatch.from_pylist(made, SCHEMA)


def stage(
    sink: DeltaSink,
    batch: pa.RecordBatch,
    *,
    epoch: int = 1,
    execution: int = 1,
    timeline: int = 1,
) -> tuple[Artifact, ...]:
    writer = sink.open_writer(TransactionId("j", "out", timeline, execution, epoch, 0, "a0"))
    writer.write(batch)
    return writer.prepare()


def by(execution: int = 1, timeline: int = 1, *, accept_loss: bool = False) -> CommitContext:
    return CommitContext("j", "out", timeline, execution, execution > 1, accept_loss)


def commit(sink: DeltaSink, artifacts: Any, context: CommitContext | None = None) -> None:
    sink.open_committer("j", "out").commit(artifacts, context or by())


# --- late, doubled and lost requests --------------------------------------------------------------


def test_late_request_lands_after_recovery_check(table: Table) -> None:
    sink = table.sink()
    staged = stage(sink, rows(1, 2))
    dead = TableLog.open(str(table.folder), {})
    assert dead is not None and dead.marker(APPLICATION) == -1
    commit(sink, staged, by(2))
    with pytest.raises(deltalake.exceptions.CommitFailedError, match="Concurrent transaction"):
        dead.append([data_file_of(one) for one in staged], APPLICATION, marker_of(1, 1), {})
    assert table.ids() == [1, 2]


def test_epochs_of_a_snapshot_are_one_version(table: Table) -> None:
    sink = table.sink()
    staged = [one for n in (1, 2, 3) for one in stage(sink, rows(n), epoch=n)]
    commit(sink, staged)
    commit(sink, [*staged, *stage(sink, rows(4), epoch=4)], by(2))
    assert table.now.version() == 2 and table.ids() == [1, 2, 3, 4]
    assert table.now.history(1)[0]["dagster_jet.epochs"] == "4-4"


def test_another_writer_commits_in_between(table: Table) -> None:
    sink = table.sink()
    committer = sink.open_committer("j", "out")
    for epoch in range(1, 4):
        staged = stage(sink, rows(epoch), epoch=epoch)
        table.append(100 + epoch)
        committer.commit(staged, by())
    assert table.ids() == [1, 2, 3, 101, 102, 103]


def test_readd_after_optimize(table: Table) -> None:
    sink = table.sink()
    staged = [one for n in (1, 2) for one in stage(sink, rows(n), epoch=n)]
    commit(sink, staged)
    table.now.optimize.compact()
    commit(sink, staged)
    commit(sink, staged, by(2))
    assert table.ids() == [1, 2]
    # The library itself takes the same files with the same transaction once more.
    raw = TableLog(table.now)
    raw.append([data_file_of(one) for one in staged], APPLICATION, marker_of(1, 2), {})
    assert table.ids() == [1, 1, 2, 2]


def test_lower_txn_moves_back(table: Table) -> None:
    sink = table.sink()
    first = stage(sink, rows(1), epoch=1)
    commit(sink, first)
    later = stage(sink, rows(2), epoch=2, timeline=2, execution=2)
    commit(sink, later, by(2, 2))
    with pytest.raises(FencedError, match="later timeline"):
        commit(sink, stage(sink, rows(3), epoch=9), by(1))
    commit(sink, later, by(2, 2))
    assert table.ids() == [1, 2]
    assert table.now.transaction_version(APPLICATION) == marker_of(2, 2)
    # The library itself takes a lower one. What is committed is no orphan then, all the same.
    TableLog(table.now).append([], APPLICATION, 1, {})
    assert table.now.transaction_version(APPLICATION) == 1
    sink.open_committer("j", "out").abort_orphans(by(9), ())
    assert table.ids() == [1, 2]


def test_evidence_survives_checkpoints_and_a_cleaned_log(table: Table) -> None:
    sink = table.sink()
    staged = stage(sink, rows(1))
    commit(sink, staged)
    for n in range(3):
        table.append(10 + n)
    table.now.create_checkpoint()
    for path in sorted((table.folder / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    assert sink.open_committer("j", "out").has_committed(staged, by(2))
    commit(sink, staged, by(2))
    assert sorted(row["id"] for row in by_library(str(table.folder))) == [1, 10, 11, 12]


def test_another_table_at_the_same_place_is_not_written(table: Table, tmp_path: Path) -> None:
    sink = table.sink()
    committer = sink.open_committer("j", "out")
    committer.commit(stage(sink, rows(1)), by())
    staged = stage(sink, rows(2), epoch=2)
    table.folder.rename(tmp_path / "away")
    with pytest.raises(JetError, match=r"the table .* is gone"):
        committer.commit(staged, by())
    Table(tmp_path)
    with pytest.raises(JetError, match=r"the table .* is another one now"):
        committer.commit(staged, by())
    assert table.ids() == []


# --- staged files -------------------------------------------------------------------------------


def test_deleted_file_is_committed(table: Table) -> None:
    sink = table.sink()
    lost, kept = stage(sink, rows(1)), stage(sink, rows(2), epoch=2)
    (table.folder / lost[0].target).unlink()
    with pytest.raises(ArtifactLostError, match="with 1 rows is gone"):
        commit(sink, lost + kept)
    assert table.now.version() == 0
    reported: list[Artifact] = []
    context = replace(by(2, accept_loss=True), report_lost=reported.append)
    commit(sink, lost + kept, context)
    assert table.ids() == [2] and reported == [*lost]


def test_an_epoch_that_is_lost_whole_has_a_marker(table: Table) -> None:
    sink = table.sink()
    lost = stage(sink, rows(1))
    (table.folder / lost[0].target).write_bytes(b"cut")
    commit(sink, lost, by(2, accept_loss=True))
    assert sink.open_committer("j", "out").has_committed(lost, by(2)) and table.ids() == []


@pytest.mark.parametrize("is_full", [False, True])
def test_vacuum_eats_staged_files(table: Table, is_full: bool) -> None:
    sink = table.sink()
    staged = stage(sink, rows(1))
    table.now.vacuum(0, dry_run=False, enforce_retention_duration=False, full=is_full)
    if is_full:
        with pytest.raises(ArtifactLostError, match="VACUUM"):
            commit(sink, staged)
        assert table.ids() == []
        return
    commit(sink, staged)
    assert table.ids() == [1]


def test_orphans_are_the_sinks_own_and_not_committed(table: Table) -> None:
    sink = table.sink()
    commit(sink, stage(sink, rows(1), epoch=1))
    kept = stage(sink, rows(2), epoch=2)
    writer = sink.open_writer(TransactionId("j", "other", 1, 1, 3, 0, "a0"))
    writer.write(rows(3))
    others = writer.prepare()
    orphan = stage(sink, rows(4), epoch=3)
    committer = sink.open_committer("j", "out")
    assert committer.abort_orphans(by(2), [kept[0].token, "of/another#sink"]) == 1
    assert not (table.folder / orphan[0].target).exists()
    commit(sink, kept, by(2))
    sink.open_committer("j", "other").commit(others, replace(by(2), sink="other"))
    assert table.ids() == [1, 2, 3]


# --- tables that others change --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta.setTransactionRetentionDuration", "interval 1 days"),
        ("delta.columnMapping.mode", "name"),
        ("delta.constraints.small", "id < 10"),
    ],
)
def test_txn_retention(table: Table, name: str, value: str) -> None:
    """And other properties: refused at the start, and before a commit."""
    sink = table.sink()
    staged = stage(sink, rows(1))
    table.set_property(name, value)
    shown = name.rpartition(".")[2] if "constraints" in name else name
    with pytest.raises(ConfigurationError, match=shown):
        table.sink()
    with pytest.raises(SinkMismatchError, match=shown):
        commit(sink, staged)
    assert table.ids() == []


def test_an_unknown_feature_is_refused(tmp_path: Path) -> None:
    made = Table(tmp_path, configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(ConfigurationError, match="the feature 'deletionVectors'"):
        made.sink()


def test_columns_that_do_not_fit_are_named(table: Table) -> None:
    columns = table.sink().table.columns  # type: ignore[union-attr]
    for schema, says in (
        ([("id", pa.int32())], "the column 'id' is integer, in the table it is long"),
        ([("ID", pa.int64())], "the table has no column 'ID', but 'id'"),
        ([("id", pa.int64())], "the rows have no column 'text'"),
        ([*SCHEMA, ("more", pa.int8())], "the table has no column 'more'"),
        ([*SCHEMA], None),
    ):
        assert columns.misfit(columns_of_rows(pa.schema(schema))) == says
    for name, type in (("a b", pa.int64()), ("a", pa.duration("us"))):
        with pytest.raises(PipelineError, match=f"{name!r}"):
            columns_of_rows(pa.schema([(name, type)]))
    for name in ("at", "number"):
        given = columns_of_rows(pa.schema([("id", pa.int64()), ("number", pa.float64())]))
        with pytest.raises(PipelineError, match=f"cannot be partitioned by {name!r}"):
            check_partition_by(given, [name])


def test_a_column_that_is_added_is_null(table: Table) -> None:
    sink = table.sink()
    staged = stage(sink, rows(1))
    rows_of_others = pa.table({"id": pa.array([2], pa.int64()), "more": ["x"]})
    deltalake.write_deltalake(table.folder, rows_of_others, mode="append", schema_mode="merge")
    commit(sink, staged)
    assert {row["id"]: row["more"] for row in by_library(str(table.folder))} == {1: None, 2: "x"}


def test_a_column_that_has_changed_stops_the_commit(table: Table) -> None:
    sink = table.sink()
    staged = stage(sink, rows(1))
    table.change_type("text", "long")
    with pytest.raises(SinkMismatchError, match="the column 'text' is string, in the table it is"):
        commit(sink, staged)
    with pytest.raises(SinkMismatchError, match="the column 'text'"):  # by a later start
        commit(table.sink(), staged, by(2))


def test_a_table_with_other_partitions_is_refused(tmp_path: Path) -> None:
    made = Table(tmp_path, partition_by=["day"])
    assert made.sink()._partition_by == ("day",)
    with pytest.raises(ConfigurationError, match="is partitioned by day"):
        made.sink(partition_by="text")


def test_a_new_job_refuses_the_markers_of_another_life(table: Table) -> None:
    sink = table.sink()
    sink.check("j", "out", is_new_job=True)
    commit(sink, stage(sink, rows(1)))
    sink.check("j", "out", is_new_job=False)
    with pytest.raises(ConfigurationError, match="earlier life"):
        sink.check("j", "out", is_new_job=True)


# --- values -------------------------------------------------------------------------------------


def test_rows_that_the_table_never_takes_are_named(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *list(SCHEMA)[1:]])
    sink = Table(tmp_path, schema, partition_by=["text"]).sink()
    batch = pa.concat_batches([rows(1), rows(2, text=""), rows(3, text=None), rows(4, id=None)])
    found = sink.refused(batch)
    assert {n: one.reason.rpartition(": ")[2] for n, one in found.items()} == {
        1: "the partition column text is an empty text",
        3: "id is null",
    }


@pytest.mark.parametrize("value", ["a/b", "a=b%2F", "é ü#?", "..", "x" * 400, "NULL", None, "+1"])
def test_any_text_is_a_partition(tmp_path: Path, value: str | None) -> None:
    made = Table(tmp_path, partition_by=["text", "day"])
    sink = made.sink()
    commit(sink, stage(sink, pa.concat_batches([rows(1, text=value), rows(2, day=None)])))
    assert made.ids() == [1, 2]
    for read in (by_log(made.folder), by_library(str(made.folder))):
        assert {row["id"]: row["text"] for row in read} == {1: value, 2: "row 2"}
        assert {row["id"]: row["day"] for row in read} == {1: date(2026, 1, 2), 2: None}


def test_no_reader_skips_a_file_with_rows_that_it_looks_for(tmp_path: Path) -> None:
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("number", pa.float64()),
            ("text", pa.string()),
            ("at", pa.timestamp("us", tz="UTC")),
            ("price", pa.decimal128(12, 2)),
            ("ok", pa.bool_()),
            ("s", pa.struct([("a", pa.int64())])),
        ]
    )
    made = Table(tmp_path, schema)
    sink = made.sink()
    at = datetime(2026, 1, 1, 0, 0, 0, 999_999, tzinfo=timezone.utc)
    for epoch, row in enumerate(
        (
            {"id": 2**62, "number": 0.1, "text": "z" * 100, "at": at, "price": Decimal("-0.01")},
            {"id": -1, "number": math.inf, "text": "\U0010ffff" * 40, "at": None, "ok": True},
            {"id": 1, "number": math.nan, "text": "\U0010ffff" * 32, "price": Decimal(10**9)},
            {"id": 0, "number": -0.0, "text": "", "at": at.replace(year=9999), "ok": False},
            {"id": 0, "number": 1e300, "at": at.replace(year=9999, month=12, day=31, hour=23)},
            {"id": 7, "s": {"a": 1}},
        ),
        start=1,
    ):
        commit(sink, stage(sink, pa.RecordBatch.from_pylist([row], schema), epoch=epoch))
    [stats] = [
        json.loads(json.loads(line)["add"]["stats"])
        for line in (made.folder / "_delta_log" / f"{1:020d}.json").read_text().splitlines()
        if "add" in json.loads(line)
    ]
    assert stats["numRecords"] == 1 and stats["maxValues"]["id"] == 2**62
    assert len(stats["minValues"]["text"]) == 32 and stats["nullCount"]["ok"] == 1
    data, whole = made.now.to_pyarrow_dataset(), made.now.to_pyarrow_table()
    for column in schema.names[:-1]:
        for value in whole.column(column).to_pylist():
            if value is not None and value == value:
                wanted = pc.field(column) == pa.scalar(value, schema.field(column).type)
                assert data.to_table(filter=wanted).num_rows == whole.filter(wanted).num_rows > 0


# --- in a bucket --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[AwsServer]:
    with AwsServer() as started:
        started.create_bucket(BUCKET)
        yield started


@pytest.fixture
def s3(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Folder]:
    for name, value in environment(server):
        monkeypatch.setenv(name, value)
    yield S3Folder.new(server)
    server.ignore()


@pytest.fixture
def proxy(server: AwsServer) -> Iterator[Proxy]:
    with Proxy(urlsplit(server.endpoint_url).port or 0, is_http=True) as started:
        yield started


def in_bucket(s3: S3Folder, proxy: Proxy) -> DeltaSink:
    options = {"endpoint_url": f"http://127.0.0.1:{proxy.port}", "timeout": "3"}
    sink = sinks.delta(s3.url, partition_by="day", storage_options=options)
    sink.check("j", "out", is_new_job=True)
    sink._of_rows.append(columns_of_rows(SCHEMA))
    sink.claim_place("j", "out")
    return sink.at_start("j", "out", on_one_host=False)


def in_table(s3: S3Folder) -> Counter[int]:
    options = sinks.delta(s3.url, storage_options=s3.storage_options)
    from dagster_jet.connectors.delta.data_folder import data_folder

    opened = data_folder(s3.url, options.storage_options).options()
    return Counter(row["id"] for row in by_library(s3.url, opened))


def creates_version(said: bytes) -> bool:
    return said.startswith(b"PUT ") and b"_delta_log/" in said.partition(b"\r\n")[0]


def test_a_version_whose_answer_is_lost(s3: S3Folder, proxy: Proxy) -> None:
    sink = in_bucket(s3, proxy)
    staged = stage(sink, rows(1, 2))
    proxy.cut_answer_to(creates_version)
    committer = sink.open_committer("j", "out")
    with pytest.raises(SinkUnavailableError):
        committer.commit(staged, by())
    assert in_table(s3) == Counter([1, 2])
    proxy.restore()
    committer.commit(staged, by())
    assert in_table(s3) == Counter([1, 2])


def test_a_version_that_is_created_late(s3: S3Folder, proxy: Proxy) -> None:
    sink = in_bucket(s3, proxy)
    staged = stage(sink, rows(1, 2))
    held = proxy.hold_next(creates_version)  # its client asks again, on another connection
    commit(sink, staged)
    assert held.is_caught and in_table(s3) == Counter([1, 2])
    assert b" 412 " in held.release()
    commit(sink, staged, by(2))
    assert in_table(s3) == Counter([1, 2])


def test_uploads_that_a_dead_execution_has_begun_are_removed(s3: S3Folder, proxy: Proxy) -> None:
    sink = in_bucket(s3, proxy)
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "a0"))
    writer.write(rows(1))
    upload = s3.client.create_multipart_upload(
        Bucket=BUCKET, Key=f"{s3.prefix}/{next(iter(writer._open.values())).path}"
    )
    finished = stage(sink, rows(2), epoch=2)
    assert upload and len(s3.uploads()) == 1
    assert sink.open_committer("j", "out").abort_orphans(by(2), ()) == 2
    assert not s3.uploads() and f"{finished[0].target}" not in s3.every_name()


def test_a_bucket_that_is_not_there_ends_the_start(s3: S3Folder) -> None:
    sink = sinks.delta("s3://not-there/table", storage_options=s3.storage_options)
    with pytest.raises(SinkError, match=r"NoSuchBucket|Not Found") as caught:
        sink.check("j", "out", is_new_job=True)
    assert caught.value.reaction is not Reaction.RETRY


def test_a_server_that_ignores_conditions_is_refused(s3: S3Folder, server: AwsServer) -> None:
    server.ignore("PUT If-None-Match")
    with Proxy(urlsplit(server.endpoint_url).port or 0) as other:  # asked once per server
        options = {"endpoint_url": f"http://127.0.0.1:{other.port}"}
        sink = sinks.delta(s3.url, storage_options=options)
        with pytest.raises(ConfigurationError, match="ignores If-None-Match of PUT"):
            sink.check("j", "out", is_new_job=True)
