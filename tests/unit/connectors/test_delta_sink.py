"""The Delta Lake sink without Spark: its contract, and what the real library does beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import deltalake
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.delta import DeltaSink
from dagster_jet.connectors.delta.data_folder import data_folder
from dagster_jet.testing.check_sink import check_sink
from dagster_jet.testing.sink_rows import SCHEMA
from tests.long import long
from tests.servers.members import AwsServer
from tests.servers.proxy import Proxy

from .delta_rows import by_library, by_log
from .s3_folder import BUCKET, S3Folder, environment

STEPS = (
    "delta.write.before",
    "delta.prepare.before",
    "delta.prepare.after",
    "delta.commit.before",
    "delta.commit.after",
)


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


@contextmanager
def not_mounted(folder: Path) -> Iterator[None]:
    away = folder.with_name("away")
    folder.rename(away)
    folder.mkdir()
    yield
    assert not [*folder.iterdir()], "nothing is written before it is known to be the right one"
    folder.rmdir()
    away.rename(folder)


@contextmanager
def an_older_copy(folder: Path) -> Iterator[None]:
    """The log ends before the version with the epoch."""
    newest = max((folder / "_delta_log").glob("*.json"))
    away = folder / "_delta_log" / "_away"
    newest.rename(away)
    yield
    away.rename(newest)


@contextmanager
def without_a_log(folder: Path) -> Iterator[None]:
    """The folder of the log cannot be read."""
    log, away = folder / "_delta_log", folder / "_away"
    log.rename(away)
    log.write_text("")
    yield
    log.unlink()
    away.rename(log)


@contextmanager
def emptied(s3: S3Folder) -> Iterator[None]:
    had = {name: s3.get(name) for name in s3.every_name()}
    for name in had:
        s3.delete(name)
    yield
    assert not s3.every_name(), "nothing is written before it is known to be the right one"
    for name, body in had.items():
        s3.put(name, body)


@pytest.mark.parametrize("by", [(), ("flag", "day")])
def test_a_local_table_keeps_the_contract(tmp_path: Path, by: tuple[str, ...]) -> None:
    folder = tmp_path / "table"
    deltalake.DeltaTable.create(folder, SCHEMA, partition_by=list(by))
    check_sink(
        partial(sinks.delta, str(folder), partition_by=by),
        partial(by_log, folder),
        log_of=None,
        steps=STEPS,
        outages={"a log that cannot be read": partial(without_a_log, folder)},
        set_back={
            "an empty folder": partial(not_mounted, folder),
            "an older copy": partial(an_older_copy, folder),
        },
    )
    key = lambda row: row["id"]  # noqa: E731
    assert sorted(by_library(str(folder)), key=key) == sorted(by_log(folder), key=key)


def of_bucket(url: str, **options: Any) -> DeltaSink:
    return sinks.delta(url, partition_by="flag", storage_options=options)


@long  # test_delta_others.py has a bucket, too
def test_a_table_in_a_bucket_keeps_the_contract(s3: S3Folder, server: AwsServer) -> None:
    with Proxy(urlsplit(s3.server.endpoint_url).port or 0) as proxy:
        through = {"endpoint_url": f"http://127.0.0.1:{proxy.port}", "timeout": "2"}
        make = partial(of_bucket, s3.url, **through)
        options = data_folder(s3.url, make().storage_options).options()
        deltalake.DeltaTable.create(s3.url, SCHEMA, partition_by=["flag"], storage_options=options)
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
