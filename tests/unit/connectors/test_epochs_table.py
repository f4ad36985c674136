"""The epochs table: the newest cut of each job, whoever writes late, twice or at once."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pytest

from dagster_jet.connectors.delta.columns import columns_of_rows
from dagster_jet.connectors.delta.epochs_table import SCHEMA, EpochsTable
from dagster_jet.connectors.delta.table_log import TableLog
from dagster_jet.connectors.lake.cut import Cut, TableAt
from dagster_jet.errors import ConfigurationError, SinkError
from dagster_jet.execution import cut_publisher
from dagster_jet.execution.cut_publisher import CutPublisher
from dagster_jet.snapshot.manifest import Manifest


def cut(epoch: int, timeline: int = 1, version: int | None = None) -> Cut:
    at = TableAt("out", "delta", None, "/lake/t", "/lake/t", version or epoch, None)
    return Cut(timeline, epoch, epoch + 1, 1_000 * epoch, (at, replace(at, sink="big")))


def table_of(folder: Path, job: str = "j", namespace: str = "default") -> EpochsTable:
    return EpochsTable.at(f"{folder}/epochs", {}, "store", namespace, job)


def shown(folder: Path) -> set[tuple[str, str, int, int]]:
    """Namespace, job, epoch and version."""
    rows = deltalake.DeltaTable(folder / "epochs").to_pyarrow_table().to_pylist()
    assert len(rows) == 2 * len({(row["namespace"], row["job"]) for row in rows})
    return {(row["namespace"], row["job"], row["epoch"], row["version"]) for row in rows}


def versions(folder: Path) -> int:
    return deltalake.DeltaTable(folder / "epochs").version()


def test_it_has_the_newest_cut_only(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    for epoch in (1, 2, 5):
        table.write(cut(epoch))
        assert shown(tmp_path) == {("default", "j", epoch, epoch)}
    before = versions(tmp_path)
    table.write(cut(5))
    table_of(tmp_path).write(cut(4))
    assert versions(tmp_path) == before, "there is nothing to write"
    table.write(cut(3, timeline=2))
    assert shown(tmp_path) == {("default", "j", 3, 3)}, "the job went back"
    history = deltalake.DeltaTable(tmp_path / "epochs").history()
    told = [one["dagster_jet.epochs"] for one in history if "dagster_jet.epochs" in one]
    assert told == ["3", "5", "2", "1"]


def test_a_late_write_is_refused(tmp_path: Path) -> None:
    table_of(tmp_path).write(cut(1))
    dead = table_of(tmp_path)
    log = dead._looked_at()
    table_of(tmp_path).write(cut(3))
    with pytest.raises(deltalake.exceptions.CommitFailedError):
        dead._replace(log, cut(2))
    dead.write(cut(2))
    assert shown(tmp_path) == {("default", "j", 3, 3)}


def test_jobs_share_a_table(tmp_path: Path) -> None:
    jobs = [("j", "default"), ("j's", "default"), ("j", "other")]

    def write(job: tuple[str, str]) -> None:
        table = table_of(tmp_path, *job)
        for epoch in range(1, 8):
            table.write(cut(epoch))

    table_of(tmp_path).write(cut(1))
    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(write, jobs))
    assert shown(tmp_path) == {(namespace, job, 7, 7) for job, namespace in jobs}


def test_it_does_not_grow_without_limit(tmp_path: Path) -> None:
    kept = {"delta.deletedFileRetentionDuration": "interval 0 seconds"}
    TableLog.create(f"{tmp_path}/epochs", {}, columns_of_rows(SCHEMA), (), kept)
    table = table_of(tmp_path)
    for epoch in range(1, 103):
        table.write(cut(epoch))
    assert shown(tmp_path) == {("default", "j", 102, 102)}
    assert len(list((tmp_path / "epochs").glob("*.parquet"))) < 10
    log = tmp_path / "epochs" / "_delta_log"
    assert json.loads((log / "_last_checkpoint").read_text())["version"] >= 99


def test_another_table_is_left_alone(tmp_path: Path) -> None:
    import pyarrow as pa

    deltalake.write_deltalake(tmp_path / "epochs", pa.table({"id": [1]}))
    with pytest.raises(ConfigurationError, match="is another table: the table has no column 'job'"):
        table_of(tmp_path).write(cut(1))
    assert versions(tmp_path) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"uri": "gs://bucket/epochs"}, "not supported"),
        ({"uri": "~/epochs"}, "would be a folder"),
        ({"uri": "s3://b/epochs", "options": {"access_key_id": "x"}}, "given in plain text"),
    ],
)
def test_a_place_that_cannot_be_used_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        EpochsTable.at(given["uri"], given.get("options", {}), "store", "default", "j")


def test_of_several_sinks_of_one_table_the_last_commit_counts() -> None:
    place = {"kind": "delta", "path": "/lake/t"}
    iceberg = {"kind": "iceberg", "catalog": "lake", "table": "a.b", "branch": "main"}
    sinks: dict[str, dict[str, Any]] = {"a": place, "b": {**place, "mode": "append"}, "c": iceberg}
    facts = {"a": {"table_version": 7}, "b": {"table_version": 6}}
    manifest = Manifest("j", 5, 4, 3, 2, "v1", 4, {}, {}, {}, ())
    found = Cut.of(manifest, sinks, facts, 9)
    assert [(at.sink, at.version, at.snapshot_id) for at in found.tables] == [
        ("a", 7, None),
        ("b", 7, None),
        ("c", None, None),
    ]
    assert (found.timeline, found.epoch_id, found.snapshot_id) == (2, 4, 5)


# --- beside the job -------------------------------------------------------------------------------


def test_the_newest_cut_waits_and_older_ones_do_not() -> None:
    may_write, written = threading.Event(), list[int]()

    def write(one: Cut) -> None:
        may_write.wait(10)
        written.append(one.epoch_id)

    publisher = CutPublisher("j", write, lambda *_: None)
    for epoch in range(1, 50):
        publisher.offer(cut(epoch))
    may_write.set()
    publisher.close()
    assert written[-1] == 49 and len(written) <= 2


def test_a_cut_is_tried_again(tmp_path: Path) -> None:
    """The place is away at first, and nothing else is committed meanwhile."""
    (tmp_path / "away").write_text("")
    failures: list[tuple[int, str]] = []
    is_back = threading.Event()

    def failed(one: Cut, reason: str, number: int) -> None:
        failures.append((number, reason))
        (tmp_path / "away").unlink()
        is_back.set()

    table, written = table_of(tmp_path / "away"), threading.Event()

    def write(one: Cut) -> None:
        table.write(one)
        written.set()

    publisher = CutPublisher("j", write, failed)
    publisher.offer(cut(1))
    assert is_back.wait(10) and written.wait(20)
    publisher.close()
    assert shown(tmp_path / "away") == {("default", "j", 1, 1)}
    assert [number for number, _ in failures] == [1] and "Not a directory" in failures[0][1]


def test_a_place_that_does_not_answer_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cut_publisher, "_ENDING_S", 0.5)
    monkeypatch.setitem(os.environ, "AWS_ACCESS_KEY_ID", "any")
    monkeypatch.setitem(os.environ, "AWS_SECRET_ACCESS_KEY", "any")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        options = {"endpoint_url": f"http://127.0.0.1:{port}", "region": "us-east-1"}
        table = EpochsTable.at("s3://bucket/epochs", options, "store", "default", "j")
        publisher = CutPublisher("j", table.write, lambda *_: None)
        began = time.monotonic()
        for epoch in range(1, 100):
            publisher.offer(cut(epoch))
        assert time.monotonic() - began < 1
        publisher.close()
        assert time.monotonic() - began < 4


def test_what_others_have_broken_is_said(tmp_path: Path) -> None:
    table_of(tmp_path).write(cut(1))
    for path in (tmp_path / "epochs" / "_delta_log").glob("*1.json"):
        path.write_text("{")
    with pytest.raises(SinkError, match="cannot be used"):
        table_of(tmp_path).write(cut(2))
