"""From Google's and Azure's object stores into themselves, by gcsfs and adlfs, whose servers are
fake-gcs-server and Azurite: exactly once, whenever the driver dies."""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.connectors.files.places.remote import RemoteInput, RemoteOutput
from dagster_jet.connectors.object_driver import connected
from dagster_jet.errors import ConfigurationError, SourceError
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long
from tests.servers import launch, object_stores, own_folder, stop

from . import object_store_child, oracle
from .bucket_world import BucketWorld
from .crash_table import AFTER_DECISION, Crash
from .object_store_child import AZURE, BUCKET, DRIVERS, GCS, OPTIONS, place
from .world import known_to_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [long, pytest.mark.usefixtures("servers")]

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
NAMES = ("a b", "p%20q", "ü€", "h#x", "q?y", "x+y", "c&d=e", "[z]", "a:b", "v#12", "~")


@pytest.fixture(scope="module")
def servers(spark: SparkSession) -> Iterator[None]:
    """Known to this process, to its children, and to all their tasks."""
    drivers = str(object_stores.drivers())
    gcs_folder, azure_folder = own_folder("fake-gcs"), own_folder("azurite")
    gcs = launch("fake-gcs", gcs_folder, object_stores.fake_gcs())
    azure = launch("azurite", azure_folder, object_stores.azurite(azure_folder))
    known = {
        DRIVERS: drivers,
        "PYTHONPATH": os.pathsep.join(filter(None, (drivers, os.environ.get("PYTHONPATH")))),
        GCS: gcs.facts["endpoint_url"],
        AZURE: azure.facts["connection_string"],
    }
    sys.path.append(drivers)
    with known_to_tasks(spark, known):
        for scheme, options in OPTIONS.items():
            connected(f"{scheme}://{BUCKET}", tuple(options.items()))[0].mkdir(BUCKET)
        yield
    sys.path.remove(drivers)
    stop(gcs)
    stop(azure)


class ObjectWorld(BucketWorld):
    """A world whose files are in a bucket; the local folder `in` is the oracle's copy."""

    driver = staticmethod(object_store_child.main)
    pipeline = staticmethod(object_store_child.pipeline)

    @property
    def scheme(self) -> str:
        return self.folder.name.partition("-")[0]

    @property
    def url(self) -> str:
        return object_store_child.url(self.folder)

    def put(self, name: str, body: bytes) -> None:
        fs, root = connected(self.url, tuple(OPTIONS[self.scheme].items()))
        fs.pipe_file(f"{root}/{name}", body)

    def download(self, name: str = "out") -> None:
        shutil.rmtree(self.folder / name, ignore_errors=True)
        fs, root = connected(self.url, tuple(OPTIONS[self.scheme].items()))
        for path in fs.find(f"{root}/{name}"):
            local = self.folder / path.removeprefix(f"{root}/")
            local.parent.mkdir(parents=True, exist_ok=True)
            local.write_bytes(fs.cat_file(path))

    def names(self, name: str) -> list[str]:
        fs, root = connected(self.url, tuple(OPTIONS[self.scheme].items()))
        return sorted(path.removeprefix(f"{root}/{name}/") for path in fs.find(f"{root}/{name}"))

    def input(self, **settings: Any) -> Any:
        settings = {"format": "json", "schema": "v long", **place(self.scheme), **settings}
        return sources.files(f"{self.url}/in", **settings)

    def copy(self, source: Any, *, job: str = "copy", **sink: Any) -> None:
        p = Pipeline(job)
        out = sinks.files(f"{self.url}/{job}", format="json", **place(self.scheme), **sink)
        p.read_from(source, name="rows").write_to(out, name="out")
        with self.jet() as jet:
            result = jet.run(p, JobConfig(restart_attempts_max=0), until="drained")
            assert result.restarts == 0


@pytest.fixture(params=["gs", "abfs"])
def world(
    request: pytest.FixtureRequest, tmp_path: Path, spark: SparkSession, fail_points: FailPoints
) -> ObjectWorld:
    folder = tmp_path / f"{request.param}-{os.urandom(4).hex()}"
    folder.mkdir()
    return ObjectWorld(folder, fail_points, spark)


@pytest.mark.parametrize("crash", CRASHES, ids=str)
def test_killed(world: ObjectWorld, crash: Crash) -> None:
    world.fill()
    world.run_child(crash.rules, sharded=crash.sharded, own_jvm=True)
    world.assert_nothing_doubled()
    assert world.run().status is JobStatus.COMPLETED
    world.assert_exactly_once()
    assert world.staged() == []


def test_names_folders_and_pages(world: ObjectWorld) -> None:
    """Names as no file system has them, more objects than a page of a listing has, partitions, and
    what the sink has written read back."""
    names = [f"{name}.json" for name in NAMES] + [f"d {n % 7}/{n}.json" for n in range(1_050)]
    fs, root = connected(world.url, tuple(OPTIONS[world.scheme].items()))
    fs.pipe({f"{root}/in/{name}": b'{"v": %d}\n' % n for n, name in enumerate(names)})
    world.put("in2/x.json", b'{"v": -1}\n')  # begins as the folder does
    archive = {"after_commit": "archive", "archive": f"{world.url}/done"}
    source = world.input(schema="v long", recursive=True, **archive)
    p = Pipeline("copy")
    rows = p.read_from(source, name="rows").select("v", "v % 3 AS third")
    out = sinks.files(
        f"{world.url}/copy", format="parquet", partition_by=("third",), **place(world.scheme)
    )
    rows.write_to(out, name="out")
    with world.jet() as jet:
        jet.run(p, JobConfig(restart_attempts_max=0), until="drained")
        world.put("in/last.json", b'{"v": %d}\n' % len(names))
        jet.run(p, JobConfig(restart_attempts_max=0), until="drained")  # cleans up the rest
    assert world.names("done") == sorted([*names, "last.json"]) and world.names("in") == []
    back = sources.files(
        f"{world.url}/copy/third=*/*.parquet",
        format="parquet",
        schema="v long, third long",
        **place(world.scheme),
    )
    world.copy(back, job="back")
    world.download("back")
    found = oracle.committed(world.folder / "back", ("v", "third"))
    assert found == Counter((v, v % 3) for v in range(len(names) + 1))


def test_a_large_file_is_read_in_slices(world: ObjectWorld) -> None:
    body = b"".join(b'{"v": %d, "text": "%s"}\n' % (n, b"x" * 400) for n in range(100_000))
    assert len(body) > 40 << 20
    world.put("in/large.json", body)
    world.copy(world.input(schema="v long, text string", after_commit="delete"))
    world.download("copy")
    found = oracle.committed(world.folder / "copy", ("v",))
    assert found == Counter((n,) for n in range(100_000)) and world.names("in") == []


def test_one_of_many_creates_a_document(world: ObjectWorld) -> None:
    out = RemoteOutput(world.url, tuple(OPTIONS[world.scheme].items()))
    out.make("j", "s")
    with ThreadPoolExecutor(8) as threads:
        for epoch in range(20):
            made = list(
                threads.map(lambda n, e=epoch: out.create(f"_epochs/{e}", str(n)), range(8))
            )
            assert made.count(True) == 1
            assert out.read(f"_epochs/{epoch}") == str(made.index(True))


def test_what_is_not_there_or_refused_is_named(
    world: ObjectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = f"{world.scheme}://absent-bucket/in"
    for path, more in ((absent, {}), (absent, {"recursive": True}), (f"{absent}/*/*", {})):
        source = sources.files(path, format="json", schema="v long", **place(world.scheme), **more)
        with pytest.raises(SourceError, match=r"job 'j', stage 'in'.*does not exist"):
            source.open("j", "in", None).poll()
    with pytest.raises(ConfigurationError, match=r"'j', stage 'out'.*absent-bucket.*Correct"):
        sinks.files(absent, format="json", **place(world.scheme)).check("j", "out", is_new_job=True)
    if world.scheme == "abfs":
        key = object_stores.KEY.replace("Eby8", "AAAA")
        monkeypatch.setenv(AZURE, os.environ[AZURE].replace(object_stores.KEY, key))
        with pytest.raises(ConfigurationError, match="authenticate") as told:
            sinks.files(world.url, format="json", **place("abfs")).check("j", "o", is_new_job=True)
        assert key not in "".join(traceback.format_exception(told.value))


def test_a_folder_that_azure_keeps_as_an_object(world: ObjectWorld) -> None:
    """As in an account with a hierarchical namespace, which Azurite does not have."""
    if world.scheme == "gs":
        world.put("in/d/", b"")
    else:
        fs, root = connected(world.url, tuple(OPTIONS["abfs"].items()))
        for name in ("in", "in/d"):
            fs.pipe_file(f"{root}/{name}", b"")
            fs.setxattrs(f"{root}/{name}", hdi_isfolder="true")
    world.put("in/d/a.json", b'{"v": 1}\n')
    for recursive, found in ((False, []), (True, ["in/d/a.json"])):
        listed = RemoteInput(f"{world.url}/in", tuple(OPTIONS[world.scheme].items()), recursive)
        assert [f.path.removeprefix(f"{world.url}/") for f in listed.listing().files] == found
    world.copy(world.input(recursive=True))
    world.download("copy")
    assert oracle.committed(world.folder / "copy", ("v",)) == Counter([(1,)])
