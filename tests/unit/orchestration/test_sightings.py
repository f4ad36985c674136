"""The sensor's cursor: how long objects have stood still on the clock of this boot."""

from __future__ import annotations

import pytest

from dagster_jet.orchestration.sightings import BootTime, ObjectKind, Sightings, WatchedObject

LEASE, RENEWED, RUN = (
    WatchedObject(ObjectKind.LEASE, "1"),
    WatchedObject(ObjectKind.LEASE, "2"),
    WatchedObject(ObjectKind.RUN, "x"),
)


def at(ms: int, boot: str = "b") -> BootTime:
    return BootTime(boot, ms)


def test_what_stands_still_keeps_its_first_sighting() -> None:
    seen = Sightings().after([LEASE, RUN], at(1_000))
    seen = Sightings.from_cursor(seen.to_cursor()).after([LEASE, RENEWED], at(9_000))
    assert seen.age_ms(LEASE, at(9_500)) == 8_500
    assert seen.age_ms(RENEWED, at(9_500)) == 500, "renewed"
    assert seen.age_ms(RUN, at(9_500)) == 0, "gone"


def test_another_boot_or_machine_starts_the_watch_again() -> None:
    seen = Sightings().after([LEASE], at(9_000))
    assert seen.after([LEASE], at(50_000, "another")).age_ms(LEASE, at(50_001)) == 1
    assert seen.after([LEASE], at(1_000)).age_ms(LEASE, at(1_001)) == 1, "or an unnamed one"


def test_the_clock_of_a_boot_is_one_for_all_its_processes() -> None:
    first, second = BootTime.now(), BootTime.now()
    assert first.boot == second.boot and first.ms <= second.ms


@pytest.mark.parametrize(
    "cursor", [None, "", "nonsense", "[]", "3", '{"seen_at_ms": 1}', '{"boot": "b", "since_ms": 3}']
)
def test_an_unreadable_cursor_means_nothing_was_seen(cursor: str | None) -> None:
    assert Sightings.from_cursor(cursor) == Sightings()
