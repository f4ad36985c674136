"""The connectors that ship keep the contract; what Spark renders and reads, by Spark."""

from __future__ import annotations

import csv
import errno
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import sinks, sources
from dagster_jet.contract import Backlog, SplitParameters
from dagster_jet.errors import Reaction
from dagster_jet.maps import JetMap, JournalConfig
from dagster_jet.store import Store, StoreConfig
from dagster_jet.testing.check_sink import check_sink
from dagster_jet.testing.check_source import check_source
from dagster_jet.testing.sink_rows import Row
from dagster_jet.testing.typed_rows import TYPES, Typed
from tests.contract.connector_places import (
    QueueReader,
    SqliteQueue,
    locked,
    not_mounted,
    send_messages,
)
from tests.long import long
from tests.servers.members import AwsServer
from tests.unit.connectors.s3_folder import BUCKET, S3Folder, environment


@contextmanager
def full_disk() -> Iterator[None]:
    """Nothing can be made durable any more."""
    fsync = os.fsync

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    os.fsync = refuse
    try:
        yield
    finally:
        os.fsync = fsync


@contextmanager
def emptied(s3: S3Folder) -> Iterator[None]:
    """A bucket without anything."""
    had = {name: s3.get(name) for name in s3.every_name()}
    for name in had:
        s3.delete(name)
    yield
    assert not [*s3.every_name()], "nothing is written before it is known to be the right one"
    for name, body in had.items():
        s3.put(name, body)


def read_json(folder: Path) -> list[Row]:
    files = sorted(folder.glob("part-*"))
    return [json.loads(line) for f in files for line in f.read_text("utf-8").splitlines()]


def read_parquet(folder: Path) -> list[Row]:
    return [row for f in sorted(folder.glob("part-*")) for row in pq.read_table(f).to_pylist()]


@pytest.mark.parametrize(
    ("format", "read"),
    [
        pytest.param("json", read_json, marks=long, id="json"),  # below in a bucket
        pytest.param("parquet", read_parquet, id="parquet"),
    ],
)
def test_files(tmp_path: Path, format: Any, read: Callable[[Path], list[Row]], spark: Any) -> None:
    out = tmp_path / "out"
    check_sink(
        partial(sinks.files, str(out), format=format),
        partial(read, out),
        spark=spark,
        outages={"a full disk": full_disk},
        steps=(
            "files.write.before",
            "files.prepare.before",
            "files.prepare.after",
            "files.commit.file",
            "files.commit.renamed",
            "files.commit.marker",
        ),
        set_back={"a folder that is not mounted": partial(not_mounted, out)},
    )


@pytest.fixture(scope="module")
def s3_server(spark: Any) -> Iterator[AwsServer]:
    with pytest.MonkeyPatch.context() as patch, AwsServer() as server:
        for name, value in environment(server):
            patch.setenv(name, value)
            patch.setitem(spark.sparkContext.environment, name, value)
        server.create_bucket(BUCKET)
        yield server


@pytest.fixture
def s3(s3_server: AwsServer) -> S3Folder:
    return S3Folder.new(s3_server)


@long
def test_files_in_a_bucket(s3: S3Folder, spark: Any) -> None:
    def read() -> list[Row]:
        files = [s3.get(name) for name in sorted(s3.names()) if name.startswith("part-")]
        return [json.loads(line) for file in files for line in file.splitlines()]

    check_sink(
        lambda: sinks.files(s3.url, format="json", storage_options=s3.storage_options),
        read,
        spark=spark,
        steps=("files.write.before", "files.prepare.before", "files.prepare.after"),
        set_back={"a bucket that was emptied": partial(emptied, s3)},
    )


@long
def test_maps(tmp_path: Path, spark: Any) -> None:
    # The map is read often: few partitions.
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0, partition_count=13)
    folder, older, away = (tmp_path / name for name in ("store", "older", "away"))
    Store.open(config).close()
    shutil.copytree(folder, older)
    opened = [Store.open(config)]

    def exchange(old: Path, new: Path) -> None:
        opened.pop().close()
        folder.rename(old)
        new.rename(folder)
        opened.append(Store.open(config))

    @contextmanager
    def earlier_copy() -> Iterator[None]:
        exchange(away, older)
        yield
        assert JetMap(opened[0], "results", None).log.read() is None, "nobody has made it"
        exchange(older, away)

    def read() -> list[Row]:
        return [{**v, "id": k} for k, v in JetMap(opened[0], "results", None).items()]

    check_sink(
        lambda: sinks.map_entries("results", key="id").with_store(opened[0]),
        read,
        spark=spark,
        several_processes=False,
        steps=(
            "staging.put.before",
            "staging.finished",
            "maps.commit.chunk",
            "maps.decide.after",
            "maps.apply.after",
        ),
        log_of=None,
        set_back={"a store that was restored from an earlier copy": earlier_copy},
    )
    opened.pop().close()


# --- sources --------------------------------------------------------------------------------------


SCALARS = ("boolean", "byte", "short", "int", "long", "float", "double", "decimal(38,9)")
TIMES = ("date", "timestamp")


def put_file(folder: Path, rows: list[dict[str, Any]], format: str) -> None:
    """A file that is whole from its first moment on."""
    target = folder / f"{rows[0]['id']:09d}.{format}"
    part = target.with_suffix(".tmp")
    if format == "parquet":
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        pq.write_table(pa.Table.from_pylist(rows, schema), part)
    else:
        with open(part, "w", newline="", encoding="utf-8") as file:
            if format == "json":
                file.writelines(json.dumps(row) + "\n" for row in rows)
            else:
                csv.writer(file).writerows(row.values() for row in rows)
    part.rename(target)


def put_typed(spark: Any, folder: Path, schema: str, rows: list[dict[str, Any]], fmt: str) -> None:
    """Spark writes every type as Spark reads it."""
    names = rows[0].keys()
    frame = spark.createDataFrame([tuple(row[name] for name in names) for row in rows], schema)
    written = folder.with_name(f"{folder.name}.written")
    writer = frame.coalesce(1).write.format(fmt)
    writer.option("timestampFormat", "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX").save(str(written))
    [file] = written.glob("part-*")
    file.rename(folder / f"0.{fmt}")


@contextmanager
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refuse(path: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refuse)
        yield


@pytest.mark.parametrize(
    ("format", "types"),
    [
        pytest.param("json", tuple(TYPES), marks=long, id="json"),  # below in a bucket
        pytest.param("parquet", tuple(TYPES), id="parquet"),
        pytest.param("csv", (*SCALARS, "string", *TIMES), marks=long, id="csv"),
    ],
)
def test_files_are_a_source(
    tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, format: Any, types: Any
) -> None:
    folder, of_types = tmp_path / "in", tmp_path / "typed"
    folder.mkdir()
    of_types.mkdir()
    typed = Typed(
        lambda schema: sources.files(str(of_types), format=format, schema=schema),
        lambda rows: put_typed(spark, of_types, typed.schema, rows, format),
        types,
    )
    check_source(
        partial(sources.files, str(folder), format=format, schema="id long, text string"),
        lambda rows: put_file(folder, rows, format),
        spark,
        outages={"a file system that does not answer": partial(unreadable, monkeypatch)},
        typed=typed,
    )


@long
def test_files_in_a_bucket_are_a_source(s3: S3Folder, spark: Any) -> None:
    def send(rows: list[dict[str, Any]]) -> None:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        s3.put(f"{rows[0]['id']:09d}.json", lines)

    check_source(
        lambda: sources.files(
            s3.url,
            format="json",
            schema="id long, text string",
            storage_options=s3.storage_options,
        ),
        send,
        spark,
    )


@long  # files and the example keep the contract
def test_a_maps_journal_is_a_source(tmp_path: Path, spark: Any) -> None:
    config = StoreConfig((f"file://{tmp_path}/m",), backup_count=0, partition_count=11)
    with Store.open(config) as store:
        numbers = JetMap.open(store, "numbers", journal=JournalConfig(capacity=100_000))
        check_source(
            lambda: sources.map_journal("numbers").with_store(store),
            lambda rows: numbers.put_all({row["id"]: {"t": row["text"]} for row in rows}),
            spark,
            row_of=lambda row: (int(row["key"]), json.loads(row["value"])["t"]),
        )


def test_the_example_source_of_the_docs(tmp_path: Path, spark: Any) -> None:
    send_messages(tmp_path, [])
    check_source(
        partial(SqliteQueue, f"{tmp_path}/queue.db", "id long, text string"),
        partial(send_messages, tmp_path),
        spark,
        outages={"a locked queue": partial(locked, tmp_path / "queue.db")},
        secrets=("hunter2",),
    )


# Planted bugs: the suite has to name each.


class Broken(SqliteQueue):
    """Reads as its class says."""

    def open(self, job: str, stage: str, bad_rows: Any) -> Any:
        return type(self).Reader(self)


class ForgetsItsPosition(Broken):
    class Reader(QueueReader):
        def restore(self, position: Any, journal: Any) -> None:
            pass

        def restore_unacknowledged(self, messages: Any) -> None:
            pass


class AcknowledgesAtOnce(Broken):
    class Reader(QueueReader):
        def plan(self, max_rows: int) -> Any:
            split = super().plan(max_rows)
            with closing(sqlite3.connect(self.source.path)) as queue, queue:
                ids = [(message_id,) for message_id in split or {}]
                queue.executemany("delete from messages where id = ?", ids)
            return split


class AcknowledgesNothing(Broken):
    class Reader(QueueReader):
        def acknowledge(self, messages: Any) -> None:
            pass


class AcceptsInPoll(Broken):
    class Reader(QueueReader):
        def poll(self) -> Any:
            found = super().poll()
            self._waiting.update(found)
            return []


class ReadsAPartOnly(Broken):
    class Reader(QueueReader):
        def poll(self) -> Any:
            with self._connected() as queue:
                free = "select id, body from messages where taken_by is not ? limit 15"
                rows = queue.execute(free, (self.consumer,)).fetchall()
                taken = [(self.consumer, message_id) for message_id, _ in rows]
                queue.executemany("update messages set taken_by = ? where id = ?", taken)
            return rows


class EndsTooEarly(Broken):
    class Reader(ReadsAPartOnly.Reader):
        left = Backlog.READ

        def mark_backlog(self) -> None:
            self.left = Backlog.WAITING

        def backlog(self) -> Backlog:
            return self.left

        def accept(self, found: Any) -> None:
            super().accept(found)
            self.left = Backlog.READ


class NeverEnds(Broken):
    class Reader(EndsTooEarly.Reader):
        def accept(self, found: Any) -> None:
            super().accept(found)
            self.left = Backlog.WAITING if found else Backlog.READ


class DropsNulls(Broken):
    class Reader(QueueReader):
        def frame(self, spark: Any, split: Any) -> Any:
            frame = super().frame(spark, split)
            return replace(frame, rows=frame.rows.where("text is not null"))


class PreparesOtherRows(Broken):
    class Reader(QueueReader):
        def split_parameters(self, split: Any) -> SplitParameters:
            return SplitParameters(split)

        def prepared_frame(self, spark: Any, split: Any, partitions: int) -> Any:
            frame = self.frame(spark, split())
            return replace(frame, rows=frame.rows.where("id % 2 = 0"))


class FailsInAnOutage(Broken):
    class Reader(QueueReader):
        def reaction(self, error: Exception) -> Any:
            return Reaction.FAIL


class TellsItsPassword(Broken):
    Reader = QueueReader

    def describe(self) -> dict[str, str]:
        return {**super().describe(), "url": "queue://me:hunter2@host"}


class IsBoundToOneThread(Broken):
    class Reader(QueueReader):
        def position(self) -> dict[str, Any]:
            if self._connection is not None:
                self._connection.execute("select 1")
            return super().position()


@pytest.mark.parametrize(
    ("bug", "clause"),
    [
        (ForgetsItsPosition, "From every position"),
        (AcknowledgesAtOnce, "Rows that are not acknowledged are delivered again"),
        pytest.param(
            AcknowledgesNothing, "Rows that are not acknowledged are delivered again", marks=long
        ),
        pytest.param(AcceptsInPoll, "A poll beside an epoch changes nothing", marks=long),
        (ReadsAPartOnly, "Where the input is to end one poll brings all that is there"),
        pytest.param(EndsTooEarly, r"Where the input is to end [\s\S]*rows are left", marks=long),
        pytest.param(NeverEnds, r"Where the input is to end [\s\S]*it goes on with", marks=long),
        pytest.param(DropsNulls, "Every row is read once", marks=long),
        (PreparesOtherRows, "a prepared frame has other rows"),
        pytest.param(FailsInAnOutage, "A poll in an outage is to be made again", marks=long),
        (TellsItsPassword, "shows no secret"),
        (IsBoundToOneThread, "Everything but poll, acknowledge and close"),
    ],
)
def test_a_planted_bug_of_a_source_is_named(
    tmp_path: Path, spark: Any, bug: type[SqliteQueue], clause: str
) -> None:
    send_messages(tmp_path, [])
    with pytest.raises(AssertionError, match=f"sqlite_queue breaks its contract: .*{clause}"):
        check_source(
            partial(bug, f"{tmp_path}/queue.db", "id long, text string"),
            partial(send_messages, tmp_path),
            spark,
            outages={"a locked queue": partial(locked, tmp_path / "queue.db")},
            secrets=("hunter2",),
        )
