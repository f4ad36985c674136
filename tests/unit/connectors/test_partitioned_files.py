"""The files sink with partitions, compressions and a limit of sizes, without Spark."""

from __future__ import annotations

import gzip
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import sinks, sources
from dagster_jet.connectors.files import old_markers, writer
from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.connectors.files.old_markers import OldMarkers
from dagster_jet.connectors.files.partition_folders import constants, folder_of
from dagster_jet.connectors.files.places.place import InputFile
from dagster_jet.connectors.partitioned_rows import divided
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    PipelineError,
    SinkUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system import failpoint

from .s3_folder import S3Folder
from .s3_folder import s3 as s3
from .s3_folder import server as server

TEXTS = ["FR", "a b", "a/b", "50%", "ä=ü", "", None, "\"'#?*[x]{y}^\\:", "\x01\t\n", "__x"]
ROWS = [
    {"n": n, "day": date(2026, 7, 15 + n % 3), "country": TEXTS[n % len(TEXTS)], "ok": n % 2 == 0}
    for n in range(60)
]
SCHEMA = pa.schema(
    [("n", pa.int64()), ("day", pa.date32()), ("country", pa.string()), ("ok", pa.bool_())]
)


@pytest.fixture(autouse=True)
def no_fail_points() -> Iterator[None]:
    yield
    failpoint.configure("")


def batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(rows, SCHEMA)


def new(folder: Path | str, format: Any = "parquet", **options: Any) -> FilesSink:
    sink = sinks.files(str(folder), format=format, **options)
    sink.check("j", "out", is_new_job=True)
    return sink


def stage(
    sink: FilesSink, *batches: pa.RecordBatch, epoch_id: int = 1, execution_id: int = 1
) -> tuple[Artifact, ...]:
    made = sink.open_writer(TransactionId("j", "out", 1, execution_id, epoch_id, 0, "a0"))
    for one in batches:
        made.write(one)
    return made.prepare()


def by(execution_id: int, **more: Any) -> CommitContext:
    return CommitContext("j", "out", 1, execution_id, execution_id > 1, **more)


def files(folder: str | Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in Path(folder).rglob("part-*"))


def listed(folder: str | Path) -> list[str]:
    markers = [json.loads(p.read_text()) for p in Path(folder).glob("_epochs/[0-9]*.json")]
    return sorted(file["name"] for marker in markers for file in marker["files"])


def multiset(rows: list[dict[str, Any]]) -> Counter[Any]:
    """An empty text is null, as Spark and Hive have it."""
    return Counter((r["n"], r["day"], r["country"] or None, r["ok"]) for r in rows)


@pytest.mark.parametrize("format", ["json", "csv", "parquet"])
def test_another_engine_reads_the_folders(tmp_path: Path, format: str) -> None:
    sink = new(tmp_path, format, partition_by=("day", "country"))
    sink.commit(stage(sink, batch(ROWS[:25]), batch(ROWS[25:])), by(1))
    assert files(tmp_path) == listed(tmp_path)
    assert len({os.path.dirname(name) for name in files(tmp_path)}) == 3 * 9
    read = {"json": "read_json", "csv": "read_csv", "parquet": "read_parquet"}[format]
    found = duckdb.sql(
        f"select n, day, country, ok from {read}('{tmp_path}/day=*/country=*/*', "
        "hive_partitioning=true, hive_types={'day': date, 'country': varchar})"
    ).fetchall()
    assert Counter(found) == multiset(ROWS)
    names = [line.strip('"') for line in _columns(tmp_path, format)]
    assert names == ["n", "ok"], "folders have the others"


def _columns(folder: Path, format: str) -> list[str]:
    first = next(folder.glob("day=*/*/part-*"))
    if format == "parquet":
        return pq.ParquetFile(first).schema_arrow.names
    line = first.read_text().splitlines()[0]
    return list(json.loads(line)) if format == "json" else line.split(",")


def test_our_source_reads_every_folder(tmp_path: Path) -> None:
    """Any text, but for those that Spark and Hive take for null."""
    rng = random.Random(1)
    letters = [chr(c) for c in range(1, 128)] + list("äß日😀")
    texts = ["".join(rng.choices(letters, k=rng.randrange(1, 12))) for _ in range(500)]
    field = pa.schema([("a/b=c", pa.string())])
    for text in texts:
        [value] = constants(InputFile(0, f"/in/{folder_of(['a/b=c'], (text,))}x.json", 0), field)
        assert value.as_py() == text and folder_of(["a"], (text,)).count("/") == 1


def test_rows_are_divided_in_their_order() -> None:
    rng = random.Random(2)
    names = list("abcdefg")
    rows = [{**{n: rng.choice(["x", "y", None]) for n in names}, "i": i} for i in range(5_000)]
    found: dict[Any, list[int]] = {}
    for values, some in divided(pa.RecordBatch.from_pylist(rows), names):
        assert values not in found and some.schema.names == ["i"]
        found[values] = some.column("i").to_pylist()
    expected: dict[Any, list[int]] = {}
    for row in rows:
        expected.setdefault(tuple(row[n] for n in names), []).append(row["i"])
    assert found == expected


@pytest.mark.parametrize(
    ("format", "compression"),
    [("json", "gzip"), ("csv", "gzip"), ("json", "none")]
    + [("parquet", name) for name in ("zstd", "snappy", "gzip", "none")],
)
def test_compressions(tmp_path: Path, format: str, compression: Any) -> None:
    sink = new(tmp_path, format, compression=compression)
    sink.commit(stage(sink, batch(ROWS[:1]), batch(ROWS[1:])), by(1))
    [name] = files(tmp_path)
    if format == "parquet":
        column = pq.ParquetFile(tmp_path / name).metadata.row_group(0).column(0)
        wanted = {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
        assert column.compression == wanted and name.endswith("-1.parquet")
    elif compression == "gzip":
        plain = new(tmp_path / "plain", format)
        plain.commit(stage(plain, batch(ROWS[:1]), batch(ROWS[1:])), by(1))
        [other] = files(tmp_path / "plain")
        assert name == f"{other}.gz"
        assert (
            gzip.decompress((tmp_path / name).read_bytes())
            == (tmp_path / "plain" / other).read_bytes()
        )
    read = {"json": "read_json", "csv": "read_csv", "parquet": "read_parquet"}[format]
    found = duckdb.sql(f"select n from {read}('{tmp_path}/{name}')").fetchall()
    assert Counter(found) == Counter((row["n"],) for row in ROWS)


@pytest.mark.parametrize("options", [{}, {"partition_by": "day"}, {"compression": "gzip"}])
@pytest.mark.parametrize("format", ["json", "parquet"])
def test_a_task_goes_on_in_another_file(
    tmp_path: Path, format: str, options: dict[str, Any]
) -> None:
    rng = random.Random(3)
    rows = [{**row, "n": rng.randrange(1 << 60)} for row in ROWS * 500]
    sink = new(tmp_path, format, max_file_bytes=20_000, **options)
    sink.commit(stage(sink, batch(rows[:9_000]), batch(rows[9_000:])), by(1))
    found, folders = files(tmp_path), 3 if "partition_by" in options else 1
    sizes = [os.path.getsize(tmp_path / name) for name in found]
    assert found == listed(tmp_path) and len(found) > 2 * folders
    if format == "json" and not options:
        assert min(sizes[:-1]) >= 20_000 and max(sizes) <= 100_000
    read = {"json": "read_json", "parquet": "read_parquet"}[format]
    numbers = duckdb.sql(f"select n from {read}('{tmp_path}/**/part-*')").fetchall()
    assert Counter(numbers) == Counter((row["n"],) for row in rows)


def test_more_partitions_than_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_OPEN_MAX", 2)
    monkeypatch.setattr(writer, "_WAITING_BYTES", 1)
    sink = new(tmp_path, "json", partition_by="country")
    batches = [batch(ROWS[first : first + 10]) for first in range(0, 60, 10)]
    made = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "a0"))
    for one in batches:
        made.write(one)
        assert len(list(tmp_path.glob(".staging/j/out/*"))) and len(made._open) <= 2
    sink.commit(made.prepare(), by(1))
    rows = duckdb.sql(f"select n from read_json('{tmp_path}/country=*/*')").fetchall()
    assert Counter(rows) == Counter((row["n"],) for row in ROWS)


def test_too_many_partitions_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_PARTITIONS_MAX", 20)
    sink = new(tmp_path, "json", partition_by=["ok", "n"])
    with pytest.raises(PipelineError, match=r"have 60 partitions.* ok has 2, n has 60\.") as told:
        stage(sink, batch(ROWS))
    assert (told.value.job, told.value.stage) == ("j", "out")


def test_a_task_that_gives_up_leaves_nothing(tmp_path: Path) -> None:
    sink = new(tmp_path, "json", partition_by="day", max_file_bytes=1)
    made = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "a0"))
    made.write(batch(ROWS))
    made.prepare()
    made.abort()
    assert not list(tmp_path.glob(".staging/j/out/*")) and not files(tmp_path)


# --- commits --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "point", ["files.commit.file:2", "files.commit.file:9", "files.commit.renamed"]
)
def test_a_commit_that_dies_between_its_renames(tmp_path: Path, point: str) -> None:
    sink = new(tmp_path, partition_by=["day", "country"])
    parts = stage(sink, batch(ROWS))
    failpoint.configure(f"{point}=raise")
    with pytest.raises(SinkUnavailableError, match="fail point"):
        sink.commit(parts, by(1))
    failpoint.configure("")
    some = files(tmp_path)
    assert len(some) == (len(parts) if point.endswith("renamed") else int(point[-1]) - 1)
    assert listed(tmp_path) == []
    # The successor knows where, and no more: the pipeline may be another one by now.
    FilesSink.reopen(sink.destination()).commit(parts, by(2))
    assert files(tmp_path) == listed(tmp_path) and len(files(tmp_path)) == len(parts)
    assert sum(pq.read_table(tmp_path / name).num_rows for name in files(tmp_path)) == len(ROWS)
    sink.commit(parts, by(2))
    assert len(files(tmp_path)) == len(parts)


def test_folders_of_partitions_are_durable_before_the_marker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = new(tmp_path, partition_by=["day", "country"])
    parts = stage(sink, batch(ROWS[:1]))
    done: list[str] = []
    fsync, link = os.fsync, os.link
    monkeypatch.setattr(
        os, "fsync", lambda fd: (done.append(os.readlink(f"/proc/self/fd/{fd}")), fsync(fd))[1]
    )
    monkeypatch.setattr(os, "link", lambda a, b: (done.append("marker"), link(a, b))[1])
    sink.commit(parts, by(1))
    inner = tmp_path / parts[0].target
    before = done[: done.index("marker")]
    assert {str(tmp_path), str(inner.parent.parent), str(inner.parent)} <= set(before)


def test_a_staged_file_that_is_gone_is_lost(tmp_path: Path) -> None:
    sink = new(tmp_path, partition_by="day")
    parts = stage(sink, batch(ROWS))
    Path(parts[1].token).unlink()
    with pytest.raises(ArtifactLostError, match="day=2026-07-16"):
        sink.commit(parts, by(1))
    sink.commit(parts, by(2, accept_loss=True))
    assert files(tmp_path) == listed(tmp_path) and len(files(tmp_path)) == 2


def test_markers_of_files_in_folders_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed with a listing of the folder alone: they were taken for files that are gone."""
    monkeypatch.setattr(old_markers, "KEPT", 10)
    sink = new(tmp_path, partition_by="day")
    first = stage(sink, batch(ROWS[:1]))
    sink.commit(first, by(1))
    for epoch_id in range(2, 20):
        part = stage(sink, batch(ROWS[:1]), epoch_id=epoch_id)
        object.__setattr__(sink, "_old_markers", OldMarkers(1))
        sink.commit(part, by(1, retained_epoch_id=epoch_id))
        (tmp_path / part[0].target).unlink()
    left = {p.name for p in (tmp_path / "_epochs").glob("[0-9]*.json")}
    assert "0000000001.json" in left and "0000000002.json" not in left
    assert files(tmp_path) == [first[0].target]


def test_orphans_and_output_are_removed(tmp_path: Path) -> None:
    sink = new(tmp_path, partition_by=["day", "country"], max_file_bytes=1)
    sink.commit(stage(sink, batch(ROWS)), by(1))
    kept = stage(sink, batch(ROWS), epoch_id=2)
    orphans = stage(sink, batch(ROWS), epoch_id=3)
    assert sink.abort_orphans(by(2), [part.token for part in kept]) == len(orphans)
    sink.commit(kept, by(2))
    assert len(files(tmp_path)) == len(listed(tmp_path)) > 50
    assert sink.remove_output(by(2)) and files(tmp_path) == []


# --- starts ---------------------------------------------------------------------------------------


def test_other_partitions_are_refused(tmp_path: Path) -> None:
    """Readers take the columns from all folders, or from none."""
    sink = new(tmp_path, partition_by="day")
    for other in ((), ("country",), ("day", "country")):
        changed = sinks.files(str(tmp_path), format="parquet", partition_by=other)
        for start in (lambda c=changed: c.check("j", "out", is_new_job=False),
                      lambda c=changed: c.claim_place("j", "out")):  # fmt: skip
            with pytest.raises(ConfigurationError, match="partitioned by day; partition_by is now"):
                start()
    again = sinks.files(str(tmp_path), format="parquet", partition_by="day", compression="zstd")
    again.check("j", "out", is_new_job=False)
    again.claim_place("j", "out")
    assert sink.give_up_place(by(1))
    new(tmp_path, partition_by="country")


def test_an_earlier_snapshot_commits_where_it_was_staged(tmp_path: Path) -> None:
    """A decided artifact has its folder in its name; the sink's present folders do not matter."""
    parts = stage(new(tmp_path, partition_by="day"), batch(ROWS))
    FilesSink.reopen({"path": str(tmp_path), "format": "parquet"}).commit(parts, by(2))
    assert files(tmp_path) == listed(tmp_path) == sorted(part.target for part in parts)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"partition_by": ("Day", "day")}, "has a name twice"),
        ({"compression": "snappy"}, "snappy' is not one of json files"),
        ({"max_file_bytes": 0}, "0 is not positive"),
    ],
)
def test_options_that_mean_nothing(tmp_path: Path, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigurationError, match=match):
        sinks.files(str(tmp_path), format="json", **options)


def test_a_value_that_names_no_folder_is_refused(tmp_path: Path) -> None:
    sink = new(tmp_path, partition_by=["country", "n"])
    rows = [{**ROWS[0], "country": text} for text in ("x" * 247, "x" * 248, "%" * 100, "é" * 123)]
    assert set(sink.refused(batch(rows))) == {1, 2}
    assert "country is too long" in sink.refused(batch(rows))[1].reason
    sink.commit(stage(sink, batch([rows[0], rows[3]])), by(1))
    assert len(files(tmp_path)) == 2


def test_a_source_of_the_folders_is_its_own_input(tmp_path: Path) -> None:
    sink = sinks.files(str(tmp_path), format="json", partition_by="day")
    for pattern, is_so in (("day=*/*.json", True), ("*/*", True), ("country=*/*", False)):
        source = sources.files(f"{tmp_path}/{pattern}", format="json", schema="n long")
        assert source.reads_output_of(sink) is is_so


# --- buckets --------------------------------------------------------------------------------------


def test_in_a_bucket(s3: S3Folder) -> None:
    options = {"partition_by": ["day", "country"], "storage_options": s3.storage_options}
    sink = new(s3.url, "json", **options)
    below = new(f"{s3.url}/below", "json", storage_options=s3.storage_options)
    others = stage(below, batch(ROWS), execution_id=1)
    parts = stage(sink, batch(ROWS), execution_id=1)
    assert s3.names() == []
    orphans = stage(sink, batch(ROWS), epoch_id=2)
    # Another sink's folder may be below.
    assert sink.abort_orphans(by(2), [part.token for part in parts]) == len(orphans)
    failpoint.configure("files.commit.file:2=raise")
    with pytest.raises(SinkUnavailableError, match="fail point"):
        sink.commit(parts, by(1))
    failpoint.configure("")
    FilesSink.reopen(sink.destination()).commit(parts, by(2))
    below.commit(others, by(2))
    names = [name for name in s3.names() if name.startswith("day=")]
    assert sorted(names) == sorted(part.target for part in parts)
    assert Counter(sink.place().published()) == Counter(n.rpartition("/")[2] for n in names)
    lines = [line for name in names for line in s3.get(name).splitlines()]
    assert Counter(json.loads(line)["n"] for line in lines) == Counter(r["n"] for r in ROWS)
    source = sources.files(f"{s3.url}/day=*/country=*/*.json", format="json", schema="n long",
                           storage_options=s3.storage_options)  # fmt: skip
    assert len(source._place().listing().files) == len(parts)
