"""A Delta Lake table in a bucket, through moto's server: its contract, requests that go astray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import deltalake
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.delta import DeltaSink, log_folder
from dagster_jet.connectors.delta.columns import columns_of_rows
from dagster_jet.connectors.delta.log_folder import options_of
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.data_writer import DataWriter
from dagster_jet.contract import TransactionId
from dagster_jet.errors import (
    ConfigurationError,
    Reaction,
    SinkError,
    SinkUnavailableError,
)
from dagster_jet.testing.check_sink import check_sink
from dagster_jet.testing.sink_rows import SCHEMA as ROWS
from tests.long import long
from tests.servers.members import AwsServer
from tests.servers.proxy import Proxy

from .delta_rows import by_library
from .delta_table import SCHEMA, by, commit, rows, stage
from .s3_folder import BUCKET, S3Folder
from .s3_folder import s3 as s3
from .s3_folder import server as server
from .test_delta_sink import STEPS


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
    sink = sinks.delta(s3.url, storage_options=s3.storage_options)
    opened = options_of(data_folder(s3.url, sink.storage_options))
    return Counter(row["id"] for row in by_library(s3.url, opened))


def creates_version(said: bytes) -> bool:
    return said.startswith(b"PUT ") and b"_delta_log/" in said.partition(b"\r\n")[0]


@long  # it fails behind its commit in test_delta_sink.py, and a request comes twice below
def test_a_version_whose_answer_is_lost(
    s3: S3Folder, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_folder, "_S3_ANSWERS_WITHIN", "2s")  # it is asked again for so long
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


@pytest.mark.parametrize("keeps_conditions", [True, False], ids=["conditional put", "without"])
def test_two_s3_writers_same_version(
    s3: S3Folder, server: AwsServer, proxy: Proxy, keeps_conditions: bool
) -> None:
    """Delta #1410. Another writer creates a version while the request for the same one is on its
    way. That is refused, and its rows are in the next version. Without the condition the other
    writer's rows are gone, so a start refuses a server that ignores it."""
    sink, asked = in_bucket(s3, proxy), list[str]()
    theirs = {epoch: stage(sink, rows(100 + epoch), epoch=epoch, name="other") for epoch in (1, 2)}
    beside = sinks.delta(s3.url, partition_by="day", storage_options=s3.storage_options)
    beside = beside.at_start("j", "other", on_one_host=False)

    def create_it_first(said: bytes) -> bool:
        if creates_version(said):
            asked.append(said.split(b" ")[1].decode().rpartition("/")[2].partition(".")[0])
            if theirs:
                commit(beside, theirs.pop(min(theirs)), by(name="other"))
        return False

    if not keeps_conditions:
        server.ignore("PUT If-None-Match")
    proxy.hold_next(create_it_first)
    for epoch in (1, 2):
        commit(sink, stage(sink, rows(epoch), epoch=epoch), by())
    if keeps_conditions:
        assert list(map(int, asked)) == [1, 2, 3, 4], "each was asked for when it was taken"
        assert in_table(s3) == Counter([1, 2, 101, 102])
    else:
        assert list(map(int, asked)) == [1, 2]
        assert in_table(s3) == Counter([1, 2]), "two rows of the other writer are lost"


def test_a_partition_by_a_column_with_an_underscore_holds_data(s3: S3Folder) -> None:
    for name in ("_topic=a/_day=1/part-1", "_delta_log/part-2", "_change_data/day=1/part-3"):
        s3.client.put_object(Bucket=BUCKET, Key=f"{s3.prefix}/{name}", Body=b"")
    found = data_folder(s3.url, tuple(s3.storage_options.items())).paths("part-")
    assert list(found) == ["_topic=a/_day=1/part-1"]


def test_uploads_that_a_dead_execution_has_begun_are_removed(s3: S3Folder, proxy: Proxy) -> None:
    sink = in_bucket(s3, proxy)
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "a0"))
    assert isinstance(writer, DataWriter)
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


@contextmanager
def emptied(s3: S3Folder) -> Iterator[None]:
    had = {name: s3.get(name) for name in s3.every_name()}
    for name in had:
        s3.delete(name)
    yield
    assert not s3.every_name(), "nothing is written before it is known to be the right one"
    for name, body in had.items():
        s3.put(name, body)


def of_bucket(url: str, **options: Any) -> DeltaSink:
    return sinks.delta(url, partition_by="flag", storage_options=options)


@long  # the tests above have a bucket, too
def test_a_table_in_a_bucket_keeps_the_contract(s3: S3Folder, server: AwsServer) -> None:
    with Proxy(urlsplit(s3.server.endpoint_url).port or 0) as proxy:
        through = {"endpoint_url": f"http://127.0.0.1:{proxy.port}", "timeout": "2"}
        make = partial(of_bucket, s3.url, **through)
        options = options_of(data_folder(s3.url, make().storage_options))
        deltalake.DeltaTable.create(s3.url, ROWS, partition_by=["flag"], storage_options=options)
        check_sink(
            make,
            partial(by_library, s3.url, options),
            log_of=None,
            steps=STEPS,
            outages={"a connection that is cut": proxy.cut},
            secrets=(str(options["aws_secret_access_key"]),),
            set_back={"an emptied bucket": partial(emptied, s3)},
        )
    assert not s3.uploads()


def test_maintenance_in_a_bucket(s3: S3Folder) -> None:
    """Partitions have names that a listing may show in another spelling."""
    sink = sinks.delta(s3.url, partition_by="text", storage_options=s3.storage_options)
    sink._of_rows.append(columns_of_rows(SCHEMA))
    sink.claim_place("j", "out")
    options = options_of(data_folder(s3.url, sink.storage_options))
    kept = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    deltalake.DeltaTable(s3.url, storage_options=options).alter.set_table_properties(kept)
    sink = sink.at_start("j", "out", on_one_host=False)
    odd = {"text": "é/ =%20+"}
    lost = stage(sink, rows(1, **odd))
    for epoch in (1, 2):
        commit(sink, stage(sink, rows(epoch, **odd), epoch=epoch, execution=2))
    staged = stage(sink, rows(3, **odd), epoch=3)
    done = sink.maintenance("j", "out").run(0, 1 << 20)
    assert (done["files_replaced"], done["files_removed"], done["files_staged"]) == (2, 3, 1)
    names = s3.every_name()
    assert staged[0].target in names and lost[0].target not in names
    commit(sink, staged)
    assert in_table(s3) == Counter([1, 2, 3])
    assert sink.maintenance("j", "out").run(0, 1 << 20)["files_removed"] == 2
    assert in_table(s3) == Counter([1, 2, 3])
