"""From a bucket into a bucket, through moto's server: rows as Spark reads them from local files,
and exactly once whenever the driver dies."""

from __future__ import annotations

import bz2
import gzip
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources, tables
from dagster_jet.connectors.files import part_tasks
from dagster_jet.errors import BadRowError, ConfigurationError, InputLostError, SourceError
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long, long_but_for
from tests.servers.members import AwsServer

from . import oracle, s3_child
from .bucket_world import BucketWorld
from .crash_table import AFTER_DECISION, Crash
from .world import known_to_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CRASHES = (
    Crash("F2", "files.write.before:2=kill"),
    Crash("F3", "files.prepare.after:2=kill", sharded=True),
    Crash("F8", AFTER_DECISION),
    Crash("F9", "files.commit.file:4=kill"),
    Crash("F9", "files.commit.renamed:2=kill"),
    Crash("F9", "files.commit.marker:3=kill", sharded=True),
    Crash("F11", "commit.after:2=kill"),
    Crash("S8", "record.committed.after:2=kill"),
)


class S3World(BucketWorld):
    """A world whose files are in a bucket of a server for S3."""

    driver = staticmethod(s3_child.main)
    pipeline = staticmethod(s3_child.s3_pipeline)

    def put(self, name: str, body: bytes) -> None:
        self.client.put_object(Bucket=s3_child.BUCKET, Key=f"{self.folder.name}/{name}", Body=body)

    @property
    def client(self) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=os.environ[s3_child.ENDPOINT],
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
            region_name="us-east-1",
        )

    def download(self, name: str = "out") -> None:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=s3_child.BUCKET, Prefix=f"{self.folder.name}/{name}/"
        )
        for page in pages:
            for found in page.get("Contents", ()):
                path = self.folder / found["Key"].removeprefix(f"{self.folder.name}/")
                path.parent.mkdir(parents=True, exist_ok=True)
                self.client.download_file(s3_child.BUCKET, found["Key"], str(path))

    def uploads(self) -> list[str]:
        found = self.client.list_multipart_uploads(
            Bucket=s3_child.BUCKET, Prefix=f"{self.folder.name}/"
        )
        return [one["Key"] for one in found.get("Uploads", ())]


@pytest.fixture(scope="module")
def server(spark: SparkSession) -> Iterator[AwsServer]:
    """Known to this process, to its children, and to all their tasks."""
    with AwsServer() as started:
        started.create_bucket(s3_child.BUCKET)
        known = {
            s3_child.ENDPOINT: started.endpoint_url,
            s3_child.KEY_ID: "testing",
            s3_child.KEY: "testing",
        }
        with known_to_tasks(spark, known):
            yield started


@pytest.fixture
def s3_world(
    tmp_path: Path, spark: SparkSession, fail_points: FailPoints, server: AwsServer
) -> S3World:
    return S3World(tmp_path, fail_points, spark)


# --- dying ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("crash", long_but_for(CRASHES, "F9-files.commit.file"), ids=str)
def test_killed(s3_world: S3World, crash: Crash) -> None:
    s3_world.fill()
    s3_world.run_child(crash.rules, sharded=crash.sharded)
    s3_world.assert_nothing_doubled()
    assert s3_world.run().status is JobStatus.COMPLETED
    s3_world.assert_exactly_once()
    assert s3_world.uploads() == []


@long  # the next run after a kill is above
def test_what_is_added_is_read_by_the_next_run(s3_world: S3World) -> None:
    s3_world.fill(files=2)
    s3_world.run(until="drained")
    s3_world.fill(files=2, first=2)
    result = s3_world.run()
    assert result.restarts == 0
    s3_world.assert_exactly_once()


# --- reading --------------------------------------------------------------------------------------

SCHEMA = "id long, name string, at timestamp, price decimal(10,2), ok boolean, tags array<string>"
LINES = [
    '{"id": 1, "name": "größe", "at": "2024-01-01T00:00:00Z", "price": 1.5, "ok": true}',
    "",
    '{"name": null, "id": 2, "tags": ["a", "b"], "more": 1}\r',
    '{"id": 3, "at": "2024-06-01T12:00:00.123456+02:00", "price": 12345678.90}',
]


def read_both(world: S3World, name: str, body: bytes, **read: Any) -> list[list[Any]]:
    """The rows of a file as a local source and as one in a bucket gives them."""
    world.put(f"read/{name}", body)
    local = world.folder / "read"
    local.mkdir(exist_ok=True)
    (local / name).write_bytes(body)
    found = []
    for path, place in ((f"{local}", {}), (f"{s3_child.url(world.folder)}/read", s3_child.place())):
        reader = sources.files(path, **read, **place).open("j", "in", None)
        reader.accept(reader.poll())
        frame = reader.frame(world.spark, reader.plan(10**9)).rows
        assert frame.columns
        found.append(sorted(frame.collect(), key=str))
    return found


def compress(name: str, body: bytes) -> bytes:
    return {".gz": gzip.compress, ".bz2": bz2.compress}.get(Path(name).suffix, bytes)(body)


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.json.bz2"])
def test_json_is_what_spark_reads(s3_world: S3World, name: str) -> None:
    body = compress(name, "\n".join(LINES).encode())
    local, remote = read_both(s3_world, name, body, format="json", schema=SCHEMA)
    assert local == remote and len(local) == 3


@pytest.mark.parametrize("options", [{"header": "true"}, {"header": "true", "sep": ";"}, {}])
def test_csv_is_what_spark_reads(s3_world: S3World, options: dict[str, str]) -> None:
    separator = options.get("sep", ",")
    rows = [["id", "name", "at"]] if "header" in options else []
    rows += [["1", '"a b"', "2024-01-01T00:00:00Z"], ["2", "", ""], ["3", '"x""y"', ""]]
    body = "".join(separator.join(row) + "\n" for row in rows).encode()
    local, remote = read_both(
        s3_world,
        "a.csv",
        body,
        format="csv",
        schema="id long, name string, at timestamp",
        options=options,
    )
    assert local == remote and len(local) == 3


def test_parquet_is_what_spark_reads(s3_world: S3World, tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array(range(100), pa.int64()),
            "at": pa.array([n * 1000 for n in range(100)], pa.timestamp("us", tz="UTC")),
            "name": [f"n{n}" for n in range(100)],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=7)
    local, remote = read_both(
        s3_world,
        "t.parquet",
        (tmp_path / "t.parquet").read_bytes(),
        format="parquet",
        schema="id long, at timestamp, name string, missing double",
    )
    assert local == remote and len(local) == 100


def test_parquet_without_a_schema(s3_world: S3World, tmp_path: Path) -> None:
    """The columns are the first file's; a file with others fails the job and is named."""
    (tmp_path / "pq").mkdir()
    frame = s3_world.spark.range(10).selectExpr("id AS v", "timestamp_seconds(id) AS at")
    frame.coalesce(1).write.mode("append").parquet(str(tmp_path / "pq"))
    for path in (tmp_path / "pq").glob("*.parquet"):
        s3_world.put(f"pq/{path.name}", path.read_bytes())
    places = ((f"{tmp_path}/pq", {}), (f"{s3_child.url(s3_world.folder)}/pq", s3_child.place()))
    for number, (path, place) in enumerate(places):
        p = Pipeline(f"copy{number}")
        rows = p.read_from(sources.files(path, format="parquet", **place), name="rows")
        out = tmp_path / f"out{number}"
        rows.write_to(sinks.files(f"{out}", format="json"), name="out")
        with s3_world.jet() as jet:
            jet.run(p, JobConfig(restart_attempts_max=0), until="drained")
            assert oracle.committed(out, "v") == Counter((n,) for n in range(10))
            found = [json.loads(line) for f in out.glob("part*") for line in f.open()]
            assert {row["at"] for row in found} == {
                f"1970-01-01T00:00:0{n}.000000Z" for n in range(10)
            }
            other = pa.BufferOutputStream()
            pq.write_table(pa.table({"v": [1]}), other)
            s3_world.put("pq/z.parquet", other.getvalue().to_pybytes())
            (tmp_path / "pq/z.parquet").write_bytes(other.getvalue().to_pybytes())
            with pytest.raises(SourceError, match=r"z\.parquet.* lack: at"):
                jet.run(p, JobConfig(restart_attempts_max=0), until="drained")
            (tmp_path / "pq/z.parquet").unlink()
            s3_world.client.delete_object(
                Bucket=s3_child.BUCKET, Key=f"{s3_world.folder.name}/pq/z.parquet"
            )


def test_a_table_without_a_schema(s3_world: S3World) -> None:
    """The table's columns are those of its first file, also for files that are added later."""
    s3_world.put("in/1.json", b'{"k": "a"}\n{"k": "b"}\n{"k": "c"}\n')

    def put(name: str, **columns: Any) -> None:
        file = pa.BufferOutputStream()
        pq.write_table(pa.table(columns), file)
        s3_world.put(f"shops/{name}.parquet", file.getvalue().to_pybytes())

    def run(out: str) -> Counter[Any]:
        root = s3_child.url(s3_world.folder)
        p = Pipeline(out)
        source = sources.files(f"{root}/in", format="json", schema="k string", **s3_child.place())
        table = tables.files(f"{root}/shops", **s3_child.place())
        rich = p.read_from(source, name="rows").enrich(table, on="k", name="rich")
        rich.write_to(sinks.files(f"{s3_world.folder}/{out}", format="json"), name="out")
        with s3_world.jet() as jet:
            jet.run(p, JobConfig(restart_attempts_max=0), until="drained")
        return oracle.committed(s3_world.folder / out, ("k", "city", "n"))

    put("1", k=["a"], city=["Köln"], n=pa.array([1], pa.int32()))
    put("2", city=["Bonn"], n=pa.array([2], pa.int32()), k=["b"])
    found = [("a", "Köln", 1), ("b", "Bonn", 2)]
    assert run("first") == Counter([*found, ("c", None, None)])
    put("3", k=["c"], city=["Ulm"])
    with pytest.raises(SourceError, match=r"3\.parquet.* lack: n"):
        run("second")


@pytest.mark.parametrize("slice_bytes", long_but_for([1, 7, 50, 64], "1", "50"))
def test_slices_have_every_line_once(
    s3_world: S3World, monkeypatch: pytest.MonkeyPatch, slice_bytes: int
) -> None:
    monkeypatch.setattr(part_tasks, "_TASK_BYTES", slice_bytes)
    body = "\n".join(json.dumps({"id": n, "name": "x" * (n % 13)}) for n in range(30)).encode()
    for end in (b"", b"\n"):
        local, remote = read_both(
            s3_world, "a.json", body + end, format="json", schema="id long, name string"
        )
        assert local == remote and len(remote) == 30


def copy(world: S3World, path: str, dead_letters: bool = False) -> Counter[tuple[object, ...]]:
    p = Pipeline("copy")
    source = sources.files(
        f"{s3_child.url(world.folder)}/{path}", format="json", schema="v long", **s3_child.place()
    )
    rows = p.read_from(source, name="rows")
    rows.write_to(sinks.files(f"{world.folder}/out", format="json"), name="out")
    if dead_letters:
        rows.dead_letter_to(sinks.files(f"{world.folder}/bad", format="json"), name="bad")
    with world.jet() as jet:
        jet.run(p, JobConfig(restart_attempts_max=0), until="completed")
    return oracle.committed(world.folder / "out", "v")


def test_a_bad_row_is_named_or_set_aside(s3_world: S3World) -> None:
    s3_world.put("in/a.json", b'{"v": 1}\n{"v": 2}\n')
    s3_world.put("in/b.json", b'{"v": 3}\n{"v": "two"}\n')
    with pytest.raises(BadRowError) as told:
        copy(s3_world, "in")
    assert f"{s3_child.url(s3_world.folder)}/in/b.json:2" in str(told.value)
    assert copy(s3_world, "in", dead_letters=True) == Counter([(1,), (2,), (3,)])
    (bad,) = oracle.committed(s3_world.folder / "bad", ("position", "raw"))
    assert bad == (f"{s3_child.url(s3_world.folder)}/in/b.json", '{"v": "two"}')


def test_a_pattern_stays_within_folders(s3_world: S3World) -> None:
    for number, name in enumerate(
        ("d=1/a.json", "d=2/b.json", "d=2/.c.json", "d=2/_d.json", "d=2/e/f.json", "x/g.json")
    ):
        s3_world.put(f"in/{name}", b'{"v": %d}\n' % number)
    assert copy(s3_world, "in/d=*/*.json") == Counter([(0,), (1,)])


def test_an_object_that_changes_or_goes_while_it_is_read(s3_world: S3World) -> None:
    s3_world.put("in/a.json", b'{"v": 1}\n')
    source = sources.files(
        f"{s3_child.url(s3_world.folder)}/in", format="json", schema="v long", **s3_child.place()
    )
    reader = source.open("j", "in", None)
    reader.accept(reader.poll())
    split = reader.plan(10)
    for body in (b'{"v": 2}\n', b'{"v": 22}\n'):
        s3_world.put("in/a.json", body)
        with pytest.raises(Exception, match="other content"):
            reader.frame(s3_world.spark, split).rows.collect()
        with pytest.raises(SourceError, match="while it was read"):
            reader.check_input(split)
    s3_world.client.delete_object(Bucket=s3_child.BUCKET, Key=f"{s3_world.folder.name}/in/a.json")
    with pytest.raises(Exception, match="the object is gone"):
        reader.frame(s3_world.spark, split).rows.collect()
    with pytest.raises(InputLostError, match="removed"):
        reader.check_input(split)


def test_the_same_content_again_is_no_change_and_other_content_is(s3_world: S3World) -> None:
    s3_world.put("in/a.json", b'{"v": 1}\n')
    source = sources.files(
        f"{s3_child.url(s3_world.folder)}/in", format="json", schema="v long", **s3_child.place()
    )
    reader = source.open("j", "in", None)
    reader.accept(reader.poll())
    assert reader.plan(10) is not None
    position, journal = reader.position(), reader.take_journal()
    again = source.open("j", "in", None)
    again.restore(position, journal)
    s3_world.put("in/a.json", b'{"v": 1}\n')
    again.accept(again.poll())
    assert again.waiting().items == 0
    s3_world.put("in/a.json", b'{"v": 2}\n')
    with pytest.raises(SourceError, match="other content, by its ETag"):
        again.poll()


def test_a_table_in_a_bucket(s3_world: S3World) -> None:
    s3_world.put("dim/a.csv", b"k,v\na,1\n")
    s3_world.put("dim/b.csv", b"k,v\nb,2\n")
    url = f"{s3_child.url(s3_world.folder)}/dim"
    for path, rows in ((url, [("a", 1), ("b", 2)]), (f"{url}/b.csv", [("b", 2)])):
        table = tables.files(path, format="csv", schema="k string, v long", **s3_child.place())
        assert sorted(map(tuple, table.frame(s3_world.spark).collect())) == rows
    with pytest.raises(SourceError, match="does not exist"):
        tables.files(f"{url}/none", format="csv", schema="k string", **s3_child.place()).frame(
            s3_world.spark
        )
    bad = tables.files(url, format="csv", schema="key string, v long", **s3_child.place())
    with pytest.raises(Exception, match="header of the file does not fit"):
        bad.frame(s3_world.spark).collect()


def test_what_only_sparks_readers_do_is_refused(s3_world: S3World) -> None:
    url = s3_child.url(s3_world.folder)
    with pytest.raises(ConfigurationError, match="multiLine is only known of local files"):
        sources.files(url, format="json", schema="v long", options={"multiLine": "true"})
    with pytest.raises(ConfigurationError, match=r"csv files of .* need one"):
        tables.files(url, format="csv")
