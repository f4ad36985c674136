"""A job's profile: shares that add up, percentiles of what was measured, one sentence."""

from __future__ import annotations

import json

import pytest

from dagster_jet.core.phases import Part, Phase
from dagster_jet.observe.reading.profile import JobProfile, PhaseProfile, profile_of
from dagster_jet.observe.writing.recent_timings import Key, RecentTimings, Timing


def epoch(number: int, **ms: float) -> Timing:
    """`step_hourly`: the phase, then its stage."""
    keys: dict[Key, float] = {}
    for name, took in ms.items():
        phase, _, stage = name.partition("_")
        keys[Phase(phase), stage] = took
    return Timing(number, 100, keys)


def profiled(epochs: list[Timing], snapshots: list[Timing] | None = None) -> JobProfile:
    timings = RecentTimings(first=epoch(1, action=5_000, idle=70))
    timings.epochs.extend(epochs)
    timings.snapshots.extend(snapshots or [])
    return profile_of("shop", 3, timings, 1_000)


def phase(profile: JobProfile, wanted: Phase, stage: str | None = None) -> PhaseProfile:
    (found,) = (p for p in profile.phases if (p.phase, p.stage) == (wanted, stage))
    return found


def test_shares_of_the_epochs_time_add_up_and_idling_has_none() -> None:
    profile = profiled(
        [
            epoch(5, building=30, action=50, spark=30, step_hourly=20, waiting=20, idle=900),
            epoch(6, building=40, action=60, spark=60, idle=100),
        ]
    )
    outer = [p for p in profile.phases if p.part is Part.EPOCH]
    assert sum(p.share or 0 for p in outer) == pytest.approx(1)
    assert (profile.busy_ms, profile.idle_ms) == (200, 1_000)
    assert phase(profile, Phase.IDLE).share is None
    assert phase(profile, Phase.STEP, "hourly").share == 0.1
    assert (profile.first_epoch_id, profile.last_epoch_id, profile.rows) == (5, 6, 200)
    assert profile.rows_per_second == 1_000


def test_the_first_epoch_counts_only_as_long_as_there_is_no_other() -> None:
    cold = profiled([])
    assert (cold.epochs, cold.busy_ms, cold.first_epoch_ms) == (1, 5_000, None)
    warm = profiled([epoch(2, action=10)])
    assert (warm.epochs, warm.busy_ms, warm.first_epoch_ms) == (1, 10, 5_000)


def test_percentiles_are_values_that_were_measured() -> None:
    profile = profiled([epoch(n, action=float(n)) for n in range(1, 101)])
    action = phase(profile, Phase.ACTION)
    assert (action.p50_ms, action.p95_ms, action.max_ms) == (50, 95, 100)


def test_a_stage_that_did_not_run_in_an_epoch_took_no_time_there() -> None:
    profile = profiled([epoch(1, action=10, step_late=9), epoch(2, action=10), epoch(3, action=10)])
    assert phase(profile, Phase.STEP, "late").p50_ms == 0


def test_the_largest_is_what_can_be_changed_not_the_action_as_a_whole() -> None:
    profile = profiled([epoch(1, building=90, action=150, spark=80, step_hourly=70)])
    assert profile.largest == phase(profile, Phase.BUILDING)
    assert profile.summary == (
        "The largest part of an epoch is building frames on the driver: 38% of the time, "
        "p50 90.0 ms."
    )


def test_a_stage_is_named() -> None:
    profile = profiled([epoch(1, building=9, action=90, spark=10, step_hourly=80)])
    assert "the step of hourly: 81%" in profile.summary


def test_who_waits_for_snapshots_hears_what_takes_them_longest() -> None:
    snapshot = epoch(1, manifest=5, record=6, commit=70, commit_out=69)
    profile = profiled([epoch(1, action=10, spark=10, waiting=80)], [snapshot])
    assert "what takes a snapshot longest is committing to all sinks, p50 70.0" in profile.summary
    assert phase(profile, Phase.COMMIT, "out").share is None


def test_phases_stand_in_the_order_of_an_epoch() -> None:
    profile = profiled(
        [epoch(1, waiting=1, step_b=1, step_a=1, action=3, spark=1, planning=1)],
        [epoch(1, commit=1, manifest=1)],
    )
    assert [(p.phase.value, p.stage) for p in profile.phases] == [
        ("planning", None),
        ("action", None),
        ("spark", None),
        ("step", "a"),
        ("step", "b"),
        ("waiting", None),
        ("manifest", None),
        ("commit", None),
    ]


def test_the_document_for_programs() -> None:
    document = json.loads(json.dumps(profiled([epoch(1, action=10, spark=10)]).to_json()))
    assert set(document) == {
        "job", "execution_id", "written_at_ms", "first_epoch_ms", "epochs", "first_epoch_id",
        "last_epoch_id", "snapshots", "rows", "rows_per_second", "busy_ms", "idle_ms", "phases",
        "largest", "summary",
    }  # fmt: skip
    assert document["largest"] == {"phase": "spark", "stage": None}
    assert document["phases"][0] == {
        "phase": "action", "part": "epoch", "stage": None, "share": 1.0, "p50_ms": 10.0,
        "p95_ms": 10.0, "max_ms": 10.0, "total_ms": 10.0,
    }  # fmt: skip


def test_epochs_that_took_no_time() -> None:
    profile = profiled([epoch(1, idle=5)])
    assert (profile.largest, profile.summary) == (None, "No epoch took any time.")
    assert profile.rows_per_second == 0
