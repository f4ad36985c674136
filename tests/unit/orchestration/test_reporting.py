"""Content and frequency of a stream's reports."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

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
from dagster_jet.orchestration.asset_reports import AssetReports, LastReport
from dagster_jet.orchestration.event_buffer import EventBuffer
from dagster_jet.orchestration.input_versions import KnownVersions
from dagster_jet.orchestration.materialization import InputVersion, ReportedAsset
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
        counted={"bad_rows": 2},
        measured={"version": {"gauge": 7.5}, "size": {"sum": 6.0, "le": {"1.0": 1, "inf": 2}}},
    ),
}


def snapshot(number: int) -> SnapshotCommitted:
    return SnapshotCommitted(
        "j", 2, number, number + 100, 1, 10.5, 4.5, 1_024, 4_096, 6, STAGES, SOURCES
    )


def started(restored_id: int | None) -> ExecutionStarted:
    return ExecutionStarted("j", 3, 2, restored_id, restored_id, 900, STAGES, SOURCES)


def test_a_lag_that_is_minutes_is_shown_in_minutes() -> None:
    """The pipeline's allowed lag decides, not its value now: a plot keeps its unit."""
    hours = replace(SINK, normal_lag_ms=3_600_000)
    (out,) = AssetReports([hours]).committed(snapshot(7), NOW_MS)
    assert out.metadata["lag_min"].value == 8.333 and "lag_s" not in out.metadata


def test_about_eight_numbers_with_units_and_the_rest_in_one_entry() -> None:
    out, sums = AssetReports([SINK, STATE]).committed(snapshot(7), NOW_MS)
    assert {key: value.value for key, value in out.metadata.items()} == {
        "dagster/row_count": 4,
        "late_rows": 3,
        "rejected_rows": 2,
        "rows_read": 70,
        "lost_items": 3,
        "watermark": 1_500.0,
        "lag_s": 500.0,
        "snapshot": 7,
        "snapshot_ms": 15.0,
        "restarts": 1,
        "details": {
            "epoch": 107,
            "execution": 2,
            "snapshot_bytes": 1_024,
            "state_bytes": 4_096,
            "failed_snapshots": 6,
            "rows_in": 5,
            "sources": {
                "in": {
                    "rows_read": 70,
                    "waiting": {"files": 2, "seconds": 0.5},
                    "position": {"files": 3},
                }
            },
        },
    }
    assert isinstance(out.metadata["rows_read"], dg.IntMetadataValue)
    assert isinstance(out.metadata["snapshot_ms"], dg.FloatMetadataValue)
    assert isinstance(out.metadata["watermark"], dg.TimestampMetadataValue)
    assert sums.metadata["watermark"].value == 1_000.0, "a stage's own watermark wins"
    assert (sums.metadata["rows_in"].value, sums.metadata["rows_out"].value) == (70, 5)
    assert sums.metadata["state_rows"].value == 9
    assert sums.metadata["counted_bad_rows"].value == 2
    measured = ("gauge_version", "histogram_size_count", "histogram_size_mean")
    assert [sums.metadata[key].value for key in measured] == [7.5, 3, 2.0]
    held_back = {"by": "in", "partition": "17", "since_ms": 900_000}
    details: Any = sums.metadata["details"].value
    assert details["watermark_held_back"] == held_back
    assert "dagster/row_count" not in sums.metadata


def test_what_is_nought_is_not_shown() -> None:
    event = SnapshotCommitted("j", 2, 7, 107, 0, 1, 1, 0, 0, 0, {"out": StageProgress(5, 5)}, {})
    (out,) = AssetReports([SINK]).committed(event, NOW_MS)
    assert set(out.metadata) == {
        "dagster/row_count", "rows_read", "snapshot", "snapshot_ms", "details",
    }  # fmt: skip


def test_facts_about_a_sinks_commit_are_details() -> None:
    query = "SELECT * FROM delta_scan('/t', version = 12)"
    facts = {"table_version": 12, "files": 2, "time_travel": query, "table_history": "/t/_log"}
    event = replace(snapshot(7), outputs={"out": facts})
    out, sums = AssetReports([SINK, STATE]).committed(event, NOW_MS)
    details: Any = out.metadata["details"].value
    of_state: Any = sums.metadata["details"].value
    assert details["output"] == {"table_version": 12, "files": 2} and "output" not in of_state
    shown = {key: out.metadata[key].value for key in ("time_travel", "table_history")}
    assert shown == {"time_travel": query, "table_history": "/t/_log"}
    assert not shown.keys() & sums.metadata.keys()


def test_versions_are_added_because_dagster_does_not() -> None:
    out, sums = AssetReports([SINK, STATE]).committed(snapshot(7), NOW_MS)
    assert out.tags == {"dagster/data_version": "7", "dagster/code_version": "v1"}
    assert sums.tags == {"dagster/data_version": "7"}


def test_an_assets_version_is_the_snapshot_with_which_its_rows_last_changed() -> None:
    reports = AssetReports([SINK, STATE])
    assert len([*reports.committed(snapshot(7), NOW_MS)]) == 2
    assert [*reports.committed(snapshot(8), NOW_MS)] == [], "no new rows"
    more = replace(snapshot(9), stages={**STAGES, "sums": replace(STAGES["sums"], rows_in=71)})
    out, sums = reports.committed(more, NOW_MS)
    assert out.tags["dagster/data_version"] == "7"
    assert sums.tags["dagster/data_version"] == "9"


def test_the_end_of_a_run_without_new_rows_is_observed() -> None:
    reports = AssetReports([SINK], {"out": LastReport("7", (5, 4))})
    (out,) = reports.last_committed(snapshot(8), NOW_MS)
    assert isinstance(out, dg.AssetObservation)
    assert out.metadata["snapshot"].value == 8


def test_a_pipelines_own_sources_are_observed() -> None:
    reports = AssetReports([SINK], sources={"in": dg.AssetKey(["j", "in"])})
    _, source = reports.committed(snapshot(7), NOW_MS)
    assert isinstance(source, dg.AssetObservation) and source.asset_key == dg.AssetKey(["j", "in"])
    assert {key: value.value for key, value in source.metadata.items()} == {
        "rows_read": 70,
        "waiting_files": 2,
        "waiting_seconds": 0.5,
        "lost_items": 3,
        "watermark": 1_500.0,
        "position": {"files": 3},
    }
    assert "dagster/data_version" not in source.tags, "its readers would all be out of sync"


def test_inputs_are_known_so_that_dagster_does_not_call_the_assets_unsynced() -> None:
    asset = ReportedAsset(
        "out",
        dg.AssetKey("out"),
        "v1",
        is_sink=True,
        has_state=False,
        stage_inputs=(STATE.key,),
        outside_inputs=(dg.AssetKey("flights"), dg.AssetKey("airports")),
    )
    inputs = KnownVersions({dg.AssetKey("airports"): InputVersion("v3", "17")})
    _, event = AssetReports([STATE, asset], inputs=inputs).committed(snapshot(7), 0)
    provenance = DataProvenance.from_tags(event.tags or {})
    assert provenance is not None
    versions = {
        STATE.key: "7",
        dg.AssetKey("flights"): "INITIAL",
        dg.AssetKey("airports"): "v3",
    }
    assert {k: v.value for k, v in provenance.input_data_versions.items()} == versions
    assert all(provenance.has_input_asset(key) for key in versions)
    assert provenance.input_storage_ids[dg.AssetKey("airports")] == 17


def test_what_was_restored_is_news_only_to_who_missed_it() -> None:
    (missed,) = AssetReports([SINK]).restored(started(7), NOW_MS)
    assert isinstance(missed, dg.AssetMaterialization)
    assert missed.metadata["restored"].value is True
    assert missed.metadata["snapshot"].value == 7
    assert missed.tags["dagster/data_version"] == "7"
    knows = AssetReports([SINK], {"out": LastReport("6", (5, 4))})
    (known,) = knows.restored(started(7), NOW_MS)
    assert isinstance(known, dg.AssetObservation)
    assert known.metadata["restored"].value is True
    assert [*AssetReports([SINK]).restored(started(None), NOW_MS)] == []


def test_a_job_that_waits_for_input_says_so_now_and_then() -> None:
    fresh = replace(STATE, freshness_seconds=600.0)
    reports = AssetReports([SINK, fresh])
    assert reports.idle_due(NOW_MS) == []
    first = {e.asset_key: e for e in reports.committed(snapshot(7), NOW_MS)}
    assert reports.idle_due(NOW_MS + 299_000) == []
    due = reports.idle_due(NOW_MS + 300_000)
    assert due == [fresh]
    (alive,) = reports.idle(due, NOW_MS + 300_000)
    assert isinstance(alive, dg.AssetMaterialization)
    assert alive.tags == first[STATE.key].tags, "the same data, of the same inputs"
    assert alive.metadata["waiting_for_input"].value is True
    assert alive.metadata["rows_in"].value == 70
    due = reports.idle_due(NOW_MS + 900_000)
    assert due == [SINK, fresh]
    observed, _ = reports.idle(due, NOW_MS + 900_000)
    assert isinstance(observed, dg.AssetObservation) and observed.asset_key == SINK.key


def test_a_long_position_is_left_to_the_manifest() -> None:
    long = SourceProgress(rows_read=1, position={"files": ["x" * 100] * 100}, lag={})
    event = SnapshotCommitted("j", 1, 1, 1, 0, 0, 0, 0, 0, 0, {}, {"in": long})
    out, source = AssetReports([SINK], sources={"in": dg.AssetKey("in")}).committed(event, NOW_MS)
    details: Any = out.metadata["details"].value
    assert details["sources"]["in"]["position"] is None
    assert "position" not in source.metadata


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
    """Times at which a job with a snapshot per second reports."""
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
