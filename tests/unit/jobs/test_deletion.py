"""A job is deleted: nothing of it is left that counts, whatever dies in between."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dagster_jet import JetResource, build_jet_control_job, sinks
from dagster_jet.connectors.files import FilesSink
from dagster_jet.connectors.reopening import destination_of
from dagster_jet.connectors.sql.markers import Fence, Markers, Owner
from dagster_jet.contract import CommitContext
from dagster_jet.errors import (
    ConfigurationError,
    FencedError,
    JobStateError,
    LeaseHeldError,
    StoreUnavailableError,
)
from dagster_jet.jobs.deletion import delete_job, reset_job, sinks_that_keep_rows
from dagster_jet.ownership.record_keeper import (
    JOB_DIRECTORY,
    RecordKeeper,
    read_record,
    record_register,
)
from dagster_jet.ownership.supervision import (
    Intent,
    read_supervision,
    reserve_generation,
    set_intent,
)
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef, StopCause
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import OwnedRegister, Store, StoreConfig

MAPS = ("undecided", "staged/out", "progress", "profile")
POINTS = (
    "delete.marked",
    "files.remove.files",
    "delete.released",
    "delete.maps",
    "delete.unlisted",
)
EXECUTION_ID = 7


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(config_in(tmp_path)) as opened:
        yield opened


def config_in(folder: Path) -> StoreConfig:
    return StoreConfig(tuple(f"file://{folder}/{m}" for m in "abc"), partition_count=5)


def make_job(store: Store, name: str, out: Path, *, committed: bool = True) -> OwnedRegister:
    """Makes a job as an execution leaves it; returns the register that a sleeping one still
    holds."""
    sink = sinks.files(str(out), format="json")
    assert isinstance(sink, FilesSink)
    sink.with_store(store).check(name, "out", is_new_job=True)
    (out / "part-0000000001-0000-7.json").write_text("{}\n")
    files = [{"name": "part-0000000001-0000-7.json"}]
    marker = {"job": name, "sink": "out", "files": files}
    (out / "_epochs/0000000001.json").write_text(json.dumps(marker))
    (out / f".staging/{name}/out/6-2-0-a.json").write_text("{}\n")
    directory = store.map(JOB_DIRECTORY)
    directory.put_all({directory.key(name): b""})
    manifest = Manifest(
        name, 3, 1, EXECUTION_ID, 1, "v", 5, {}, {}, {}, (), sinks={"out": destination_of(sink)}
    )
    digest = SnapshotStore(store, name).write(manifest)
    for map_name in MAPS:
        map = store.map(f"jobs/{name}/{map_name}")
        map.put_all({map.key(f"{n}"): b"x" for n in range(20)})
    reserve_generation(
        store, name, 0, requested_at_ms=0, attempts=1, execution_id_seen=0, snapshot_id_seen=0
    )
    ref = SnapshotRef(3, 1, EXECUTION_ID, manifest.name, digest, 0, 0, committed=committed)
    record = ExecutionRecord(name, EXECUTION_ID, JobStatus.SUSPENDED, snapshots=(ref,))
    owned = store.register(record_register(name)).claim(EXECUTION_ID, "owner")
    owned.write(record.to_bytes())
    return owned


def left_of(store: Store, name: str) -> list[str]:
    directory = store.map(JOB_DIRECTORY)
    listed = [key.name for key in directory.keys("") if key.name == name]
    return store.map_names(f"jobs/{name}/") + listed


def check_gone(store: Store, name: str, asleep: OwnedRegister) -> None:
    assert left_of(store, name) == [] and read_record(store, name) is None
    with pytest.raises(JobStateError, match="no job of this name"):
        delete_job(store, name)
    with pytest.raises(FencedError):
        asleep.write(b"{}")
    supervision = read_supervision(store, name)
    assert supervision is not None and supervision.generation == 1, "no run key comes twice"
    assert supervision.intent is Intent.PAUSED


def test_what_a_job_keeps_is_deleted_and_nothing_else(store: Store, tmp_path: Path) -> None:
    names = ("shop", "shop2", "shop@2024-01-01")
    asleep = {name: make_job(store, name, tmp_path / name) for name in names}
    before = {name: left_of(store, name) for name in names}
    deleted = delete_job(store, "shop", release_sinks=False)
    assert deleted.entries == 20 * len(MAPS) + 1 and not deleted.released
    check_gone(store, "shop", asleep["shop"])
    for name in names[1:]:
        assert left_of(store, name) == before[name] and read_record(store, name) is not None
    assert (tmp_path / "shop/_epochs/.owner").exists()
    # The next job of this name is a new one, and no id of the former comes again.
    keeper = RecordKeeper(store, "shop", 60_000, None)
    record = keeper.claim(change=None)
    assert record.execution_id > EXECUTION_ID + 1 and not record.snapshots
    assert record.first_execution_id == record.execution_id
    keeper.release(record)
    later = RecordKeeper(store, "shop", 60_000, None)
    assert later.claim(change=None).first_execution_id == record.execution_id
    later.release(later.record)
    with pytest.raises(ConfigurationError, match="epochs of an earlier life"):
        sinks.files(str(tmp_path / "shop"), format="json").check("shop", "out", is_new_job=True)


def test_a_reset_keeps_what_somebody_wants_of_the_job(store: Store, tmp_path: Path) -> None:
    make_job(store, "shop", tmp_path / "out")
    set_intent(store, "shop", Intent.DRAINED)
    assert reset_job(store, "shop").released == ("out",)
    supervision = read_supervision(store, "shop")
    assert read_record(store, "shop") is None
    assert supervision is not None and supervision.intent is Intent.DRAINED


def test_marks_in_the_places_of_sinks_go_on_request(store: Store, tmp_path: Path) -> None:
    make_job(store, "shop", tmp_path / "out")
    deleted = delete_job(store, "shop", release_sinks=True)
    assert deleted.released == ("out",) and not deleted.kept
    left = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*"))
    assert left == [".staging", "_epochs/0000000001.json", "part-0000000001-0000-7.json"]


def test_the_control_job_removes_marks_by_default_as_the_command_line_does(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/a"
    control, resource = build_jet_control_job("shop"), JetResource(store=[url], backup_count=0)
    asked = {"ops": {"ask_shop": {"config": {"action": "delete"}}}}
    with Store.open(StoreConfig((url,), backup_count=0)) as store:
        make_job(store, "shop", tmp_path / "out")
        assert control.execute_in_process(asked, resources={"jet": resource}).success
        assert left_of(store, "shop") == []
    assert not (tmp_path / "out/_epochs/.owner").exists()


def test_output_goes_on_request_and_nothing_of_others(store: Store, tmp_path: Path) -> None:
    make_job(store, "shop", tmp_path / "out")
    theirs = {"job": "other", "sink": "out", "files": [{"name": "part-theirs.json"}]}
    (tmp_path / "out/_epochs/0000000009.json").write_text(json.dumps(theirs))
    (tmp_path / "out/part-theirs.json").write_text("{}\n")
    assert sinks_that_keep_rows(store, "shop") == []
    deleted = delete_job(store, "shop", remove_output=True)
    assert deleted.emptied == deleted.released == ("out",)
    left = sorted(str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out").rglob("*.*"))
    assert left == [".staging", "_epochs/0000000009.json", "part-theirs.json"]


def test_the_place_of_another_sink_is_left_alone(store: Store, tmp_path: Path) -> None:
    make_job(store, "shop", tmp_path / "out")
    (tmp_path / "out/_epochs/.owner").write_text("other/out")
    delete_job(store, "shop", release_sinks=True)
    assert (tmp_path / "out/_epochs/.owner").read_text() == "other/out"
    assert (tmp_path / "out/_epochs/.store").exists()


def test_a_database_forgets_the_epochs_of_a_job(store: Store, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    sink = sinks.sql(url, table="results", create_table=True).with_store(store)
    sink.check("shop", "out", is_new_job=True)
    place, owner = sink.place, Owner(store.store_id, "default", "shop", "out")
    with place.connected() as connection:
        for other in (owner, replace(owner, sink="other")):
            Fence(Markers(place), other, other.id()).ensure(connection)
    with pytest.raises(ConfigurationError, match="epochs of an earlier life"):
        sink.check("shop", "out", is_new_job=True)
    for _ in range(2):
        committer = sink.open_committer("shop", "out")
        assert committer.give_up_place(CommitContext("shop", "out", 1, 9, recovering=True))
    sink.check("shop", "out", is_new_job=True)
    with place.connected() as connection:
        rows = connection.exec_driver_sql("select sink from dagster_jet_epochs").all()
    assert [row[0] for row in rows] == ["other"]


KILLED = """
import sys
from pathlib import Path
from dagster_jet.jobs.deletion import delete_job
from dagster_jet.store import Store, StoreConfig
urls = tuple(f"file://{sys.argv[1]}/{m}" for m in "abc")
with Store.open(StoreConfig(urls, partition_count=5)) as store:
    delete_job(store, "shop", remove_output=True)
"""


@pytest.mark.parametrize("point", POINTS)
def test_a_second_call_completes_what_a_crash_has_left(
    store: Store, tmp_path: Path, point: str
) -> None:
    asleep = make_job(store, "shop", tmp_path / "out")
    died = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "JET_FAIL_POINTS": f"{point}=kill"},
        check=False,
    )
    assert died.returncode == -signal.SIGKILL
    record = read_record(store, "shop")
    assert record is not None and record.cause is StopCause.DELETE and record.cause.stays_down
    with pytest.raises(JobStateError, match=r"being deleted.*elete it once more"):
        RecordKeeper(store, "shop", 1_000, None).claim(change=None)
    delete_job(store, "shop", remove_output=True)
    check_gone(store, "shop", asleep)
    assert not list((tmp_path / "out").rglob("*.json"))
    assert not (tmp_path / "out/_epochs/.owner").exists()


def test_what_is_decided_or_not_wholly_there_is_not_deleted(store: Store, tmp_path: Path) -> None:
    make_job(store, "owes", tmp_path / "owes", committed=False)
    make_job(store, "shop", tmp_path / "shop")
    before = (left_of(store, "owes"), read_record(store, "owes"))
    with pytest.raises(JobStateError, match="snapshot 3 is decided but not committed"):
        delete_job(store, "owes", release_sinks=True)
    with pytest.raises(JobStateError, match="no job of this name"):
        delete_job(store, "nobody")
    assert (left_of(store, "owes"), read_record(store, "owes")) == before
    (tmp_path / "c").rename(tmp_path / "away")
    with pytest.raises(StoreUnavailableError, match="members of the store do not answer"):
        delete_job(store, "shop")
    (tmp_path / "away").rename(tmp_path / "c")
    assert read_record(store, "shop") is not None


def test_a_running_job_is_not_deleted(store: Store, tmp_path: Path) -> None:
    keeper = RecordKeeper(store, "shop", 600, None)
    keeper.claim(change=None)
    try:
        with pytest.raises(LeaseHeldError, match="is alive"):
            delete_job(store, "shop")
    finally:
        keeper.release(keeper.record)
    delete_job(store, "shop")
    assert left_of(store, "shop") == []
