"""The sensor's cursor: how long the lease has stood still on our own clock."""

from __future__ import annotations

import pytest

from dagster_jet.orchestration.sensor import LeaseSighting
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, Lease


def record(execution_id: int, renewed_at_ms: int) -> ExecutionRecord:
    lease = Lease("o", "h", 1, 0, renewed_at_ms, ttl_ms=10_000)
    return ExecutionRecord("j", execution_id, JobStatus.RUNNING, lease=lease)


def test_a_lease_that_stands_still_keeps_its_first_sighting() -> None:
    sighting = LeaseSighting().after(record(1, 500), now_ms=1_000)
    sighting = LeaseSighting.from_cursor(sighting.to_cursor())
    assert sighting.after(record(1, 500), now_ms=9_000).seen_at_ms == 1_000
    assert sighting.after(record(1, 600), now_ms=9_000).seen_at_ms == 9_000, "renewed"
    assert sighting.after(record(2, 500), now_ms=9_000).seen_at_ms == 9_000, "another execution"


def test_the_owners_clock_does_not_matter() -> None:
    far_ahead = record(1, renewed_at_ms=10**15)
    sighting = LeaseSighting().after(far_ahead, now_ms=1_000)
    assert sighting.after(far_ahead, now_ms=20_000).seen_at_ms == 1_000


def test_our_clock_going_backwards_starts_the_watch_again() -> None:
    sighting = LeaseSighting().after(record(1, 500), now_ms=9_000)
    assert sighting.after(record(1, 500), now_ms=1_000).seen_at_ms == 1_000


@pytest.mark.parametrize(
    "cursor", [None, "", "nonsense", "[]", "3", '{"other": 1}', '{"seen_at_ms": null}']
)
def test_an_unreadable_cursor_means_nothing_was_seen(cursor: str | None) -> None:
    assert LeaseSighting.from_cursor(cursor) == LeaseSighting()
