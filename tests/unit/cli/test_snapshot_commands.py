"""``dagster-jet snapshots``, ``exports`` and ``job ... export``, on a store without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from dagster_jet.cli import app
from dagster_jet.ownership.record_keeper import JOB_DIRECTORY, record_register
from dagster_jet.snapshot.manifest import ChunkSet, Manifest, checksum
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef
from dagster_jet.snapshot.storage.chunks import PARTITION_COLUMN, ChunkSetName, write_chunk_set
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store, StoreConfig

JOB, PARTITIONS = "shop", 3
FAR = 10_000_000
"""A day of the year 29349, which Python does not have."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig((f"file://{tmp_path}/a",), backup_count=0, partition_count=PARTITIONS)
    with Store.open(config) as store:
        refs = tuple(snapshot(store, i, n) for i, n in ((8, 5), (7, 2)))
        directory = store.map(JOB_DIRECTORY)
        directory.put_all({directory.key(JOB): b""})
        record = ExecutionRecord(JOB, 4, JobStatus.SUSPENDED, snapshots=refs)
        store.register(record_register(JOB)).claim(4, "owner").write(record.to_bytes())
        yield store


def snapshot(store: Store, snapshot_id: int, count: int) -> SnapshotRef:
    """Writes a snapshot of a stage with one key per partition; only the newer one has the last
    key."""
    keys = ["a", "b", "c"] if count == 5 else ["a", "b"]
    columns = {
        PARTITION_COLUMN: pa.array(range(len(keys)), pa.int32()),
        "k": pa.array(keys),
        "__time": pa.array([0] * len(keys), pa.int64()),
        "__count()": pa.array([count if k == "a" else 1 for k in keys], pa.int64()),
        "__rows": pa.array([count if k == "a" else 1 for k in keys], pa.int64()),
        "__max(due)": pa.array([FAR] * len(keys), pa.date32()),
        "__max(eur)": pa.array([float("nan")] * len(keys)),
        "__min(eur)": pa.array([-float("inf")] * len(keys)),
    }
    name = ChunkSetName("totals", snapshot_id, 4, 0, "a")
    chunks: ChunkSet = write_chunk_set(
        store.map(f"jobs/{JOB}/state"), name, pa.table(columns), range(PARTITIONS),
        sequence=0, is_base=True, partition_count=PARTITIONS,
    )  # fmt: skip
    plan = {"totals": {"kind": "rolling_aggregate", "keys": ["k"]}, "inbox": {"kind": "source"}}
    manifest = Manifest(
        JOB, snapshot_id, snapshot_id * 10, 4, 1, "", PARTITIONS, {"inbox": {"next": snapshot_id}},
        {}, {"totals": ((chunks,),)}, (), plan=plan,
    )  # fmt: skip
    SnapshotStore(store, JOB).write(manifest)
    digest = checksum(manifest.to_bytes())
    return SnapshotRef(
        snapshot_id, snapshot_id * 10, 4, manifest.name, digest, 0, manifest.state_bytes, True
    )


def run(tmp_path: Path, *arguments: str) -> Any:
    environment = {"DAGSTER_JET_STORE": f"file://{tmp_path}/a", "COLUMNS": "200"}
    return CliRunner().invoke(app, list(arguments), env=environment)


def answer(tmp_path: Path, *arguments: str) -> Any:
    shown = run(tmp_path, *arguments, "--json")
    assert shown.exit_code == 0, shown.stderr
    return json.loads(shown.stdout, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def refused(tmp_path: Path, *arguments: str) -> str:
    shown = run(tmp_path, *arguments)
    assert shown.exit_code == 2, shown.stdout
    said: str = shown.stderr
    return said


@pytest.mark.usefixtures("store")
def test_a_snapshot_is_kept_listed_and_deleted(tmp_path: Path) -> None:
    assert [row["snapshot"] for row in answer(tmp_path, "snapshots", JOB)] == [8, 7]
    (exported,) = answer(tmp_path, "job", JOB, "export", "--name", "kept")
    assert (exported["job"], exported["epoch"], exported["state"]) == (JOB, 80, "done")
    assert exported["bytes"] > 0 and exported["exported"]
    assert answer(tmp_path, "exports") == [exported]
    listed = answer(tmp_path, "snapshots", JOB, "list")
    assert [(row["snapshot"], row["export"]) for row in listed] == [
        (8, None),
        (7, None),
        (8, "kept"),
    ]
    assert "kept" in run(tmp_path, "exports").stdout
    assert answer(tmp_path, "snapshots", JOB, "delete", "kept") == {"deleted": "kept"}
    assert answer(tmp_path, "exports") == []


@pytest.mark.usefixtures("store")
def test_what_a_snapshot_holds(tmp_path: Path) -> None:
    answer(tmp_path, "job", JOB, "export", "--name", "kept")
    for which, epoch in (("7", 70), ("kept", 80)):
        shown = answer(tmp_path, "snapshots", JOB, "show", which)
        assert (shown["epoch"], shown["sources"]) == (epoch, {"inbox": {"next": epoch // 10}})
        (state,) = shown["state"]
        assert (state["stage"], state["kind"]) == ("totals", "rolling_aggregate")
    said = run(tmp_path, "snapshots", JOB, "show", "7").stdout
    assert "Snapshot 7 of shop: epoch 70" in said and "totals" in said and "inbox" in said
    rows = answer(tmp_path, "snapshots", JOB, "show", "7", "--stage", "totals")
    assert {row["k"]: row["__count()"] for row in rows} == {"a": 2, "b": 1}
    assert {row["__max(due)"] for row in rows} == {"+29349-01-26"}, "failed before: OverflowError"
    assert {row["__max(eur)"] for row in rows} == {"NaN"}, "failed before: it was no JSON"
    assert [row["__min(eur)"] for row in rows] == ["-Infinity"] * 2


@pytest.mark.usefixtures("store")
def test_what_has_changed_between_two(tmp_path: Path) -> None:
    answer(tmp_path, "job", JOB, "export", "--name", "kept")
    counted = [{"stage": "totals", "added": 1, "removed": 0, "changed": 1}]
    assert answer(tmp_path, "snapshots", JOB, "diff", "7", "8") == counted
    assert answer(tmp_path, "snapshots", JOB, "diff", "7", "kept") == counted
    added, changed = answer(tmp_path, "snapshots", JOB, "diff", "7", "8", "--stage", "totals")
    assert (added["change"], added["k"]) == ("added", "c")
    assert (changed["change"], changed["k"]) == ("changed", "a")
    assert changed["before"]["__count()"] == 2 and changed["after"]["__count()"] == 5
    assert added["__max(due)"] == changed["after"]["__max(due)"] == "+29349-01-26"
    said = run(tmp_path, "snapshots", JOB, "diff", "7", "8", "--stage", "totals").stdout
    assert "from snapshot 7 to 8" in said and "added" in said


@pytest.mark.usefixtures("store")
def test_what_cannot_be_done_is_a_sentence(tmp_path: Path) -> None:
    assert "'diff' takes 2 snapshots, 1 are given" in refused(
        tmp_path, "snapshots", JOB, "diff", "7"
    )
    assert "snapshot 9 is not retained; there are: 8, 7." in refused(
        tmp_path, "snapshots", JOB, "show", "9"
    )
    assert "'lost' does not exist; the finished exports are: none." in refused(
        tmp_path, "snapshots", JOB, "show", "lost"
    )
    assert "the snapshot has no state of this name; it has state of: totals." in refused(
        tmp_path, "snapshots", JOB, "diff", "7", "8", "--stage", "other"
    )
    assert "the export has no name" in refused(tmp_path, "job", JOB, "export")
    assert "cannot cancel_and_export: the job is SUSPENDED" in refused(
        tmp_path, "job", JOB, "cancel_and_export", "--name", "final"
    )
    assert "is not a valid name for an exported" in refused(
        tmp_path, "job", JOB, "export", "--name", "7"
    )
    answer(tmp_path, "job", JOB, "export", "--name", "kept")
    assert "belongs to job 'shop'" in refused(tmp_path, "snapshots", "other", "delete", "kept")
    assert "belongs to job 'shop'" in refused(tmp_path, "snapshots", "other", "show", "kept")
