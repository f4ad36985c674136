"""Exported snapshots, judged by rows: after SIGKILLs around each step, and by another job that goes
on from the cut while the first one goes on, too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import dagster_jet
from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources
from dagster_jet.core.partition import partition_id
from dagster_jet.errors import JetError
from dagster_jet.exports.export import Export
from dagster_jet.exports.export_list import collect_export_garbage
from dagster_jet.snapshot.record import JobStatus, StopCause
from dagster_jet.testing.failpoints import FailPoints
from tests.long import long

from . import child, export_child, oracle
from .crash_table import DELETING_KILLED, EXPORTING_KILLED, IMPORTING_KILLED
from .world import OUTPUTS, World, wait_until, write_input

READER = Path(dagster_jet.__file__).parents[1] / "docs" / "examples" / "read_snapshot.py"
WITHOUT_LIBRARY = """
import runpy, sys
class Blocker:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("dagster_jet", "xxhash", "pyspark"):
            raise ImportError(f"{name} is not to be imported")
sys.meta_path.insert(0, Blocker())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class ExportingWorld(World):
    driver = staticmethod(export_child.main)


@pytest.fixture
def exporting(tmp_path: Path, spark: object, fail_points: FailPoints) -> ExportingWorld:
    return ExportingWorld(tmp_path, fail_points, spark)


@long  # so does one of test_hold_back_changes.py, without kills
def test_another_job_goes_on_from_an_export_and_so_does_the_first(
    exporting: ExportingWorld,
) -> None:
    world = exporting.fill(files=8)
    for place, crash in enumerate(EXPORTING_KILLED):
        # Whoever comes next makes what the dead one was asked for.
        world.run_child(crash.rules, **({"export": "kept"} if place == 0 else {}))
    with world.jet() as jet:
        (export,) = jet.exports()
        assert export.is_done and export.job == child.JOB
        assert jet.store.map_names("exports/") == [export.map_name], "nothing of the dead ones"
        assert collect_export_garbage(jet.store) == 0

    # The first job goes on for many snapshots, to its end.
    world.fill(files=6, first=8)
    world.run(retained_snapshots=2)
    world.assert_exactly_once()
    before_cut = {
        name: up_to(world.folder / "out" / name, columns, export)
        for name, columns in OUTPUTS.items()
    }
    assert any(before_cut.values()), "the export is of no beginning"

    # Another one begins with the export; it dies while it does.
    begins = {"job": "another", "out": "out2"}
    start = {"initial_snapshot": "kept"}
    for crash in IMPORTING_KILLED:
        world.run_child(crash.rules, pipeline=begins, start=start)
    with world.jet() as jet:
        pipeline = child.crash_pipeline(world.folder, **begins)
        assert not [c for c in jet.plan(pipeline, snapshot="kept") if c.is_refused]
        result = jet.run(pipeline, JobConfig(**child.CONFIG), until="completed", **start)
        assert result.status is JobStatus.COMPLETED
        record = jet.job("another").record()
        assert record is not None and (record.timeline, record.rewound_to) == (2, "kept")
    expected = world.expected()
    for name, columns in OUTPUTS.items():
        found = oracle.committed(world.folder / "out2" / name, columns)
        assert found == expected[name] - before_cut[name], name
        assert not before_cut[name] - expected[name]

    with world.jet() as jet:
        read_without_library(world, jet, "kept", ("left", "counts", "rollup"))
        read_without_library(world, jet, None, ("left",))
        read_by_spark(jet, "kept")
    (crash,) = DELETING_KILLED
    world.run_child(crash.rules, delete="kept")
    with world.jet() as jet:
        assert jet.exports() == () and jet.store.map_names("exports/")
        assert collect_export_garbage(jet.store) > 0 and not jet.store.map_names("exports/")


def up_to(folder: Path, columns: tuple[str, ...], export: Export) -> oracle.Rows:
    """Rows that a sink had committed up to the exported epoch, by the markers in its folder."""
    rows: oracle.Rows = Counter()
    for marker in folder.glob("_epochs/*.json"):
        content = json.loads(marker.read_text("utf-8"))
        assert export.epoch_id is not None
        if content["epoch"] <= export.epoch_id:
            for part in content["files"]:
                rows.update(oracle.rows_of(folder / part["name"], columns))
    return rows


def read_without_library(
    world: World, jet: Jet, snapshot: str | None, stages: tuple[str, ...]
) -> None:
    """The example of the page, in a process that cannot import the library, reads the same."""
    found = 0
    for stage in stages:
        out = world.folder / "read.arrow"
        out.unlink(missing_ok=True)
        which = ["--snapshot", snapshot] if snapshot else []
        members = [str(world.folder / "store" / name) for name in "abc"]
        script = [sys.executable, "-c", WITHOUT_LIBRARY, str(READER), *members]
        of = ["--job", child.JOB, "--stage", stage, "--out", str(out)]
        done = subprocess.run(
            [*script, *of, *which], capture_output=True, text=True, env={**os.environ}, check=False
        )
        assert done.returncode == 0, done.stderr
        expected = jet.job(child.JOB).read_state(stage, snapshot=snapshot, as_saved=True)
        assert out.exists() == (expected is not None)
        if expected is not None:
            read = pa.ipc.open_file(out).read_all()
            assert rows_of(read) == rows_of(expected), stage
            found += read.num_rows
    assert found


def read_by_spark(jet: Jet, snapshot: str | int) -> None:
    """Partition by partition in the tasks: the same living rows."""
    expected = jet.job(child.JOB).read_state("counts", snapshot=snapshot)
    assert expected is not None
    frame = jet.job(child.JOB).read_state_frame("counts", snapshot=snapshot)
    assert rows_of(frame.toArrow()) == rows_of(expected)
    keys = list(zip(expected["k"].to_pylist(), expected["__window_end"].to_pylist(), strict=True))
    assert len(keys) == len(set(keys)), "one row per key and window"


def rows_of(table: pa.Table) -> Counter[tuple[str, ...]]:
    names = sorted(table.column_names)
    return Counter(tuple(repr(row[name]) for name in names) for row in table.to_pylist())


def is_beyond(jet: Jet, export: Export) -> bool:
    assert export.epoch_id is not None
    return jet.job(child.JOB).snapshots()[0].epoch_id > export.epoch_id


def compare(jet: Jet, before: str | int, after: str | int) -> None:
    """`Job.diff` says what plain rows say: windows that came, that closed, that were added to."""

    def windows(snapshot: str | int) -> dict[tuple[object, object], dict[str, object]]:
        state = jet.job(child.JOB).read_state("counts", snapshot=snapshot)
        rows = state.to_pylist() if state is not None else []
        # What a window holds; the engine's own columns (hash, partition) are no content.
        names = ("__count()", "__rows", "__sum(v)", "__window_end", "k")
        return {(row["k"], row["__window_end"]): {n: row[n] for n in names} for row in rows}

    ours, theirs = windows(before), windows(after)
    difference = {one.stage: one for one in jet.job(child.JOB).diff(before, after)}["counts"]
    added = [theirs[key] for key in theirs.keys() - ours.keys()]
    removed = [ours[key] for key in ours.keys() - theirs.keys()]
    assert added, "later files are of later windows"
    for found, expected in ((difference.added, added), (difference.removed, removed)):
        assert Counter(map(repr, found.select(sorted(found.column_names)).to_pylist())) == Counter(
            repr(dict(sorted(row.items()))) for row in expected
        )
    changed = {
        (row["k"], row["__window_end"]): (row["before"], row["after"])
        for row in difference.changed.to_pylist()
    }

    def without_key(row: dict[str, object]) -> dict[str, object]:
        return {name: row[name] for name in row.keys() - {"k", "__window_end"}}

    assert changed == {
        key: (without_key(ours[key]), without_key(theirs[key]))
        for key in ours.keys() & theirs.keys()
        if ours[key] != theirs[key]
    }


def test_a_job_elsewhere_is_cancelled_at_its_last_snapshot_and_goes_on_from_it(
    exporting: ExportingWorld,
) -> None:
    world = exporting.fill(files=4)
    process = world.start_child("")
    try:
        with world.jet() as jet:
            wait_until(lambda: bool(jet.job(child.JOB).snapshots()), "the job runs")
            job = jet.job(child.JOB)
            first = job.export_snapshot("first", timeout=120)
            world.fill(files=2, first=4)
            wait_until(lambda: is_beyond(jet, first), "what came after it is in a snapshot")
            final = job.cancel_and_export_snapshot("final", timeout=120)
            process.join(60)
            record = jet.job(child.JOB).record()
            assert record is not None and record.cause is StopCause.CANCEL
            assert record.status is JobStatus.FAILED
            assert final.snapshot_id == record.snapshots[0].snapshot_id
            assert first.epoch_id is not None and final.epoch_id is not None
            assert first.epoch_id < final.epoch_id
            compare(jet, "first", "final")
            compare(jet, "first", final.snapshot_id)
            read_by_spark(jet, final.snapshot_id)
            with pytest.raises(
                JetError, match="'other' does not exist; the finished exports are: final, first"
            ):
                world.run(initial_snapshot="other")
    finally:
        process.kill()
        process.join()
    # Nothing had been read after it: going back to it doubles nothing.
    world.fill(files=2, first=6)
    world.run(initial_snapshot="final")
    world.assert_exactly_once()
    record = world.record()
    assert record is not None and record.timeline == 2


@long
def test_a_source_is_renamed_where_another_job_begins(exporting: ExportingWorld) -> None:
    """The files that the first job has read are not read again, however often the other one is
    started: its journal has places of its own."""
    folder = exporting.folder
    # Names whose journals share most of their partitions.
    former, present = (
        "rows",
        next(
            name
            for name in map("events{}".format, range(10_000))
            if 0 < (partition_id(name) - partition_id("rows")) % 271 < 5
        ),
    )

    def pipeline(job: str, source: str) -> Pipeline:
        p = Pipeline(job)
        files = sources.files(f"{folder}/numbers", format="json", schema="v long")
        p.read_from(files, name=source).write_to(
            sinks.files(f"{folder}/{job}", format="json"), name="out"
        )
        return p

    def write(first: int, count: int) -> None:
        for number in range(first, first + count):
            write_input(folder / "numbers", number, [{"v": number}])

    config = JobConfig(parallelism=2, max_items_per_epoch=1, snapshot_interval="0 ms")
    write(0, 40)
    with exporting.jet() as jet:
        jet.run(pipeline("first", former), config, until="drained")
        jet.job("first").export_snapshot("kept", timeout=60)
        begins = {"initial_snapshot": "kept", "renamed": {former: present}}
        for turn in range(3):
            write(40 + 4 * turn, 4)
            jet.run(pipeline("second", present), config, until="drained", **begins)
    found = [oracle.committed(folder / job, ("v",)) for job in ("first", "second")]
    assert found[0] == Counter((v,) for v in range(40))
    assert found[1] == Counter((v,) for v in range(40, 52))
