"""`initial_snapshot` goes back once, however often a job begins with it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dagster_jet.errors import JetError
from dagster_jet.execution.events import InitialSnapshotSkipped
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef


def refs(*ids: int) -> tuple[SnapshotRef, ...]:
    return tuple(SnapshotRef(i, i, 1, f"m{i}", 0, 0, 0, committed=True) for i in ids)


BEFORE = ExecutionRecord("flights", 7, JobStatus.RUNNING, snapshots=refs(7, 6, 5))


def test_newer_snapshots_are_left_behind_on_a_new_line() -> None:
    rewound = BEFORE.rewound(5)
    assert rewound == replace(BEFORE, timeline=2, snapshots=refs(5), rewound_to=5, rewound_by=7)
    assert ExecutionRecord.from_bytes(rewound.to_bytes()) == rewound


def test_what_was_carried_out_is_not_carried_out_again() -> None:
    """The request is not repeated if the new line has snapshots, or if they have pushed the wanted
    one out."""
    for snapshots in (refs(5), refs(66, 5), refs(68, 67, 66)):
        later = replace(BEFORE.rewound(5), execution_id=8, snapshots=snapshots)
        assert later.rewound(5) == later


def test_the_newest_one_is_gone_back_to_without_a_new_line_and_also_once() -> None:
    rewound = BEFORE.rewound(7)
    assert rewound == replace(BEFORE, rewound_to=7, rewound_by=7)
    later = replace(rewound, snapshots=refs(66, 7, 6))
    assert later.rewound(7) == later


def test_another_wish_is_carried_out() -> None:
    later = replace(BEFORE.rewound(6), execution_id=8, snapshots=refs(66, 6, 5))
    assert later.rewound(5) == replace(
        later, timeline=3, snapshots=refs(5), rewound_to=5, rewound_by=8
    )


def test_a_start_that_has_been_carried_out_is_said_with_who_and_where() -> None:
    later = replace(BEFORE.rewound(5), execution_id=8, snapshots=refs(66, 5))
    for wanted in (None, 6, "kept"):
        assert InitialSnapshotSkipped.by(later, wanted) is None, "it is done now, or nothing is"
    skipped = InitialSnapshotSkipped.by(later, 5)
    assert skipped == InitialSnapshotSkipped("flights", 5, applied_by=7, continues_from=66)
    assert skipped.text == (
        "initial_snapshot 5 was applied already by execution 7; the job continues from snapshot 66."
    )
    completed = InitialSnapshotSkipped.by(replace(later, status=JobStatus.COMPLETED), 5)
    assert completed is not None and completed.text.endswith("the job is COMPLETED and stays so.")


def test_a_start_without_a_wish_makes_the_same_one_count_again() -> None:
    later = replace(BEFORE.rewound(5), snapshots=refs(66, 5))
    between = later.rewound(None)
    assert between == replace(later, rewound_to=None, rewound_by=None)
    assert between.rewound(5).timeline == 3


def test_a_snapshot_that_is_not_retained_changes_nothing() -> None:
    with pytest.raises(JetError, match=r"snapshot 4 is not retained; there are: 7, 6, 5\."):
        BEFORE.rewound(4)


def test_a_record_from_before_rewinds_were_remembered_can_be_read() -> None:
    fields = json.loads(BEFORE.to_bytes())
    del fields["rewound_to"]
    assert ExecutionRecord.from_bytes(json.dumps(fields).encode()) == BEFORE
