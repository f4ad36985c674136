"""Profile of a real job, asked for by a process that has nothing of the job but its store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from dagster_jet import JobConfig
from dagster_jet.execution.events import EpochCompleted, SnapshotCommitted
from tests.long import long

from . import child
from .world import World, wait_until

STAGES, SINKS = ("counts", "rollup"), ("counts_out", "rollup_out", "big_out")
Profile = dict[str, Any]


def asked(world: World) -> Profile:
    """Output of the command line, in a process of its own."""
    members = " ".join(f"file://{world.folder}/store/{member}" for member in "abc")
    ran = subprocess.run(
        [sys.executable, "-m", "dagster_jet.cli", "profile", child.JOB, "--json"],
        env={**os.environ, "DAGSTER_JET_STORE": members},
        capture_output=True,
        text=True,
        check=True,
    )
    profile: Profile = json.loads(ran.stdout)
    return profile


def total_ms(profile: Profile, *phases: str) -> float:
    return sum(p["total_ms"] for p in profile["phases"] if p["phase"] in phases)


def names(profile: Profile, phase: str) -> list[str]:
    return [p["stage"] for p in profile["phases"] if p["phase"] == phase]


def shares(profile: Profile, part: str) -> float:
    return sum(p["share"] or 0 for p in profile["phases"] if p["part"] == part)


def is_sorted(values: Iterable[Any]) -> bool:
    found = list(values)
    return found == sorted(found)


def check(profile: Profile, events: list[EpochCompleted]) -> None:
    """Compares the stored profile with the job's own events, epoch by epoch."""
    assert (profile["job"], profile["execution_id"]) == (child.JOB, 1)
    first, last = profile["first_epoch_id"], profile["last_epoch_id"]
    profiled = [event for event in events if first <= event.epoch_id <= last]
    assert profile["epochs"] == len(profiled) > 0
    assert profile["rows"] == sum(event.rows for event in profiled)
    # The driver's phases are all of the epoch that it has timed, and a little on the way.
    inside = total_ms(profile, "planning", "building", "sharing", "action", "checking")
    timed = sum(event.duration_ms for event in profiled)
    assert inside > timed - 0.5 * len(profiled)
    assert total_ms(profile, "action") < timed
    assert abs(shares(profile, "epoch") - 1) < 0.001
    assert abs(shares(profile, "action") - _share(profile, "action")) < 0.02
    assert all(is_sorted((p["p50_ms"], p["p95_ms"], p["max_ms"])) for p in profile["phases"])
    assert profile["largest"]["phase"] in {p["phase"] for p in profile["phases"]}
    assert profile["summary"].startswith("The largest part of an epoch is ")


def _share(profile: Profile, phase: str) -> float:
    (found,) = (p for p in profile["phases"] if p["phase"] == phase)
    share: float = found["share"]
    return share


def test_a_job_that_runs_elsewhere_and_one_that_has_ended(world: World) -> None:
    world.fill(files=4)
    with world.jet() as jet:
        job = jet.submit(
            child.crash_pipeline(world.folder), JobConfig(**child.CONFIG), on_event=world.see
        )
        wait_until(lambda: bool(world.events_of(SnapshotCommitted)), "the job runs")
        running = asked(world)
        check(running, world.events_of(EpochCompleted))
        job.complete(60)
    ended = asked(world)
    events = world.events_of(EpochCompleted)
    check(ended, events)
    # The first one starts Python workers: it does not count.
    assert (ended["first_epoch_id"], ended["last_epoch_id"]) == (2, events[-1].epoch_id)
    assert ended["first_epoch_ms"] > events[0].duration_ms
    assert names(ended, "step") == sorted(STAGES)
    assert names(ended, "writing") == sorted(SINKS)
    assert names(ended, "commit") == [None, *sorted(SINKS)]
    assert ended["snapshots"] == len(world.events_of(SnapshotCommitted))
    for phase in ("planning", "building", "action", "checking", "manifest", "record", "note"):
        assert total_ms(ended, phase) > 0, phase
    world.assert_exactly_once()


@long  # the profile of exactly-once is above
@pytest.mark.parametrize("config", [{"guarantee": "none"}, {"guarantee": "at-least-once"}])
def test_below_exactly_once_sinks_commit_between_epochs(
    world: World, config: Mapping[str, Any]
) -> None:
    world.fill(files=2).run(**config)
    profile = asked(world)
    check(profile, world.events_of(EpochCompleted))
    assert total_ms(profile, "publishing") > 0
    assert names(profile, "commit") in ([], [None])
