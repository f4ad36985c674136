"""The epochs table in a bucket, through moto's server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import deltalake
import pytest

from dagster_jet.connectors.delta.epochs_table import EpochsTable
from dagster_jet.connectors.delta.log_folder import options_of
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.errors import SinkError
from tests.long import long
from tests.servers.members import AwsServer
from tests.servers.proxy import Proxy

from .s3_folder import S3Folder
from .s3_folder import s3 as s3
from .s3_folder import server as server
from .test_delta_bucket import creates_version
from .test_epochs_table import cut


def table_of(s3: S3Folder, job: str = "j", endpoint: str = "") -> EpochsTable:
    options = {"endpoint_url": endpoint or s3.server.endpoint_url, "timeout": "3"}
    return EpochsTable.at(f"{s3.url}/epochs", options, "store", "default", job)


def shown(s3: S3Folder) -> dict[str, int]:
    """Epoch by job, as a reader sees them."""
    table = table_of(s3)
    options = dict(options_of(data_folder(table.url, table.storage_options)))
    rows = deltalake.DeltaTable(table.url, storage_options=options).to_pyarrow_table().to_pylist()
    assert len(rows) == 2 * len({row["job"] for row in rows}), "two sinks each"
    return {row["job"]: row["epoch"] for row in rows}


def test_it_has_the_newest_cut_only(s3: S3Folder) -> None:
    table = table_of(s3)
    for epoch in (1, 2, 5):
        table.write(cut(epoch))
        assert shown(s3) == {"j": epoch}
    before = s3.names()
    table.write(cut(5))
    table_of(s3).write(cut(4))
    assert s3.names() == before, "there is nothing to write"


@long  # two writers meet in test_delta_bucket.py, several jobs in test_epochs_table.py
def test_jobs_share_a_table(s3: S3Folder) -> None:
    """Each version is created on condition that there is none."""

    def write(job: str) -> None:
        table = table_of(s3, job)
        for epoch in range(1, 6):
            table.write(cut(epoch))

    jobs = ["a", "b", "c"]
    table_of(s3, "a").write(cut(1))
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(write, jobs))
    assert shown(s3) == dict.fromkeys(jobs, 5)


def test_a_late_write_is_refused(s3: S3Folder) -> None:
    table_of(s3).write(cut(1))
    dead = table_of(s3)
    log = dead._looked_at()
    table_of(s3).write(cut(3))
    with pytest.raises(deltalake.exceptions.CommitFailedError):
        dead._replace(log, cut(2))
    dead.write(cut(2))
    assert shown(s3) == {"j": 3}


@long  # the same client as in test_delta_bucket.py
def test_a_write_whose_answer_is_lost(s3: S3Folder, server: AwsServer) -> None:
    table_of(s3).write(cut(1))
    with Proxy(urlsplit(server.endpoint_url).port or 0, is_http=True) as proxy:
        table = table_of(s3, endpoint=f"http://127.0.0.1:{proxy.port}")
        table.write(cut(2))
        proxy.cut_answer_to(creates_version)
        with pytest.raises(SinkError):
            table.write(cut(3))
        assert shown(s3) == {"j": 3}
        proxy.restore()
        before = s3.names()
        table.write(cut(3))
    assert shown(s3) == {"j": 3} and s3.names() == before
