"""What is reported of a stream, and how often."""

from __future__ import annotations

import itertools

import dagster as dg
import pytest
from dagster._core.definitions.data_version import DataProvenance

from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionRestarting,
    ExecutionStarted,
    JobEvent,
    SnapshotCommitted,
    SourceProgress,
    StageProgress,
)
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.event_buffer import EventBuffer
from dagster_jet.orchestration.materialization import ReportedAsset, committed, restored
from dagster_jet.orchestration.report_schedule import ReportSchedule

NOW_MS = 2_000_000
SINK = ReportedAsset("out", dg.AssetKey(["j", "out"]), "v1", is_sink=True, has_state=False)
STATE = ReportedAsset("sums", dg.AssetKey(["j", "sums"]), None, is_sink=False, has_state=True)
SOURCES = {
    "in": SourceProgress(
        rows_read=70,
        position={"files": 3},
        lag={"files": 2, "seconds": 0.5},
        watermark_ms=1_500_000,
        lost=3,
    )
}
STAGES = {
    "out": StageProgress(rows_in=5, rows_out=4, late=3, rejected=2),
    "sums": StageProgress(
        rows_in=70,
        rows_out=5,
        watermark_ms=1_000_000,
        state_rows=9,
        held_back_by="in",
        held_back_since_ms=900_000,
        held_back_partition="17",
    ),
}


def snapshot(number: int) -> SnapshotCommitted:
    return SnapshotCommitted(
        "j", 2, number, number + 100, 1, 10.5, 4.5, 1_024, 4_096, 6, STAGES, SOURCES
    )


def started(restored_id: int | None) -> ExecutionStarted:
    return ExecutionStarted("j", 3, 2, restored_id, restored_id, 900, STAGES, SOURCES)


def test_numbers_are_numbers_and_times_are_times() -> None:
    out, sums = committed(snapshot(7), [SINK, STATE], NOW_MS)
    assert {key: value.value for key, value in out.metadata.items()} == {
        keys.SNAPSHOT_ID: 7,
        keys.EPOCH: 107,
        keys.EXECUTION_ID: 2,
        keys.RESTARTS: 1,
        keys.SNAPSHOT_DURATION_MS: 15.0,
        keys.SNAPSHOT_BYTES: 1_024,
        keys.STATE_BYTES: 4_096,
        keys.FAILED_SNAPSHOTS: 6,
        keys.SOURCE_ROWS_READ: 70,
        keys.SOURCE_ITEMS_LOST: 3,
        "dagster_jet/source_position/in": {"files": 3},
        "dagster_jet/source_lag/in/files": 2,
        "dagster_jet/source_lag/in/seconds": 0.5,
        keys.WATERMARK: 1_500.0,
        keys.EVENT_TIME_LAG_SECONDS: 500.0,
        keys.ROWS_IN: 5,
        keys.ROWS_OUT: 4,
        keys.LATE: 3,
        keys.REJECTED: 2,
        "dagster/row_count": 4,
    }
    assert isinstance(out.metadata[keys.ROWS_IN], dg.IntMetadataValue)
    assert isinstance(out.metadata[keys.SNAPSHOT_DURATION_MS], dg.FloatMetadataValue)
    assert isinstance(out.metadata[keys.WATERMARK], dg.TimestampMetadataValue)
    assert sums.metadata[keys.WATERMARK].value == 1_000.0, "a stage's own watermark wins"
    assert sums.metadata[keys.STATE_ROWS].value == 9
    assert sums.metadata[keys.WATERMARK_HELD_BACK_BY].value == "in"
    assert sums.metadata[keys.WATERMARK_HELD_BACK_PARTITION].value == "17"
    assert sums.metadata[keys.WATERMARK_HELD_BACK_SINCE].value == 900.0
    assert "dagster/row_count" not in sums.metadata


def test_versions_are_added_because_dagster_does_not() -> None:
    out, sums = committed(snapshot(7), [SINK, STATE], NOW_MS)
    assert out.tags == {"dagster/data_version": "7", "dagster/code_version": "v1"}
    assert sums.tags == {"dagster/data_version": "7"}


def test_inputs_are_known_so_that_dagster_does_not_call_the_assets_unsynced() -> None:
    asset = ReportedAsset(
        "out",
        dg.AssetKey("out"),
        "v1",
        is_sink=True,
        has_state=False,
        stage_inputs=(dg.AssetKey(["p", "hourly"]),),
        outside_inputs=(dg.AssetKey("flights"),),
    )
    (event,) = committed(snapshot(7), [asset], 0)
    provenance = DataProvenance.from_tags(event.tags or {})
    assert provenance is not None
    versions = {dg.AssetKey(["p", "hourly"]): "7", dg.AssetKey("flights"): "INITIAL"}
    assert {k: v.value for k, v in provenance.input_data_versions.items()} == versions
    assert all(provenance.has_input_asset(key) for key in versions)


def test_what_was_restored_is_reported_and_nothing_if_nothing_was() -> None:
    (out,) = restored(started(7), [SINK], NOW_MS)
    assert out.metadata[keys.RESTORED].value is True
    assert out.metadata[keys.SNAPSHOT_ID].value == 7
    assert out.tags["dagster/data_version"] == "7"
    assert list(restored(started(None), [SINK], NOW_MS)) == []


def test_a_long_position_is_left_to_the_manifest() -> None:
    long = SourceProgress(rows_read=1, position={"files": ["x" * 100] * 100}, lag={})
    event = SnapshotCommitted("j", 1, 1, 1, 0, 0, 0, 0, 0, 0, {}, {"in": long})
    (out,) = committed(event, [SINK], NOW_MS)
    assert "dagster_jet/source_position/in" not in out.metadata


def test_at_most_one_report_per_interval_and_the_newest_counts() -> None:
    schedule = ReportSchedule(30)
    schedule.offer(snapshot(1))
    assert schedule.take(now=100) == snapshot(1), "the first at once"
    for number in range(2, 12):
        schedule.offer(snapshot(number))
        assert schedule.take(now=100 + number) is None
    assert schedule.take(now=130) == snapshot(11), "held back, then due though nothing new came"
    assert schedule.take(now=200) is None
    schedule.offer(snapshot(12))
    schedule.note_report(now=200)
    assert schedule.take(now=229) is None
    assert schedule.take_last(now=229) == snapshot(12), "the last one always"
    assert schedule.take_last(now=229) is None


def reports_until(end_s: int, schedule: ReportSchedule) -> list[int]:
    """When a job with a snapshot per second reports."""
    found = []
    for second in range(end_s):
        schedule.offer(snapshot(second))
        if schedule.take(now=1_000 + second) is not None:
            found.append(second)
    return found


def test_the_longer_a_run_lasts_the_less_often_it_reports() -> None:
    at = reports_until(86_400, ReportSchedule(30, 300))
    gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert gaps == sorted(gaps)
    assert gaps[:99] == [30] * 99
    assert gaps[-1] == 300
    assert len(at) < 600


@pytest.mark.parametrize(("longest", "gap"), [(30, 30), (0, 30)])
def test_it_does_not_where_it_must_not(longest: float, gap: int) -> None:
    at = reports_until(40_000, ReportSchedule(30, longest))
    assert {later - earlier for earlier, later in itertools.pairwise(at)} == {gap}


def test_every_snapshot_where_nobody_asks_for_less() -> None:
    assert reports_until(1_000, ReportSchedule(0, 300)) == list(range(1_000))


def test_the_event_buffer_keeps_the_newest_snapshot_and_everything_else_in_order() -> None:
    event_buffer = EventBuffer()
    restarting = ExecutionRestarting("j", 2, "executor lost", 1, 500)
    given: list[JobEvent] = [
        started(None), snapshot(1), EpochCompleted("j", 2, 1, 5, 3.0), restarting, snapshot(2),
        started(2), snapshot(3),
    ]  # fmt: skip
    for event in given:
        event_buffer.put(event)
    assert event_buffer.drain() == [started(None), restarting, started(2), snapshot(3)]
    assert event_buffer.drain() == []


def test_an_event_buffer_that_nobody_drains_stays_bounded() -> None:
    event_buffer = EventBuffer(capacity=3)
    for number in range(1_000):
        event_buffer.put(snapshot(number))
    assert event_buffer.drain() == [snapshot(999)]
