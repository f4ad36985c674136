"""F19 of protocol.md: the disk fills, a member hangs, the clock jumps. A clear word or a wait, and
never a wrong row."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from ast import literal_eval
from pathlib import Path

import pytest

from dagster_jet import JobConfig
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionRestarting,
    JobEvent,
    SnapshotCommitted,
    SnapshotFailed,
)
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.system import failpoint
from tests.long import long

from . import child, full_disk
from .oracle import input_rows, windowed
from .world import World, wait_until

HOUR_S = 3600


@long  # a full store member: test_store_calls.py; a full sink: test_connector_contracts.py
def test_f19_a_full_disk(world: World) -> None:
    """Fills the disks of a store member, of the sinks, of the executors' state, and of Spark's own
    scratch; each is freed again.

    On real small disks, in a process (and a JVM) of its own mount namespace.
    """
    world.fill(files=12)
    run = subprocess.run(
        full_disk.command(world.folder), capture_output=True, text=True, timeout=400, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    lines = [line.partition(": ") for line in run.stdout.splitlines()]
    assert [text for name, _, text in lines if name == "store"][1].startswith("ExecutionRestarting")
    told = {name: text for name, _, text in reversed(lines)}  # of one disk, what was said first
    for disk in ("store", "out", "work", "spark"):  # each was named: else it would still be full
        assert "No space left on device" in told[disk], told
    # Of the others either an epoch complains, or what it leaves behind.
    assert told["store"].startswith("SnapshotFailed")
    assert told["status"] == JobStatus.COMPLETED.value
    world.assert_exactly_once()
    counted = windowed(input_rows(world.folder / "in" / "left"), child.WINDOW_MS)
    totals = [[k, end, {"n": n, "total": total}] for k, _, end, n, total in counted]
    assert sorted(literal_eval(told["totals"]), key=str) == sorted(totals, key=str)


def test_f19_a_member_hangs_for_longer_than_the_lease_lives(world: World) -> None:
    """The job waits for it. Its lease may run out meanwhile: nobody else takes it."""
    world.fill()
    lease_s, hung = 1.0, []

    def hang(event: JobEvent) -> None:
        world.events.append(event)
        if isinstance(event, EpochCompleted) and event.epoch_id == 3 and not hung:
            hung.append(time.monotonic())
            holder = subprocess.Popen(
                [sys.executable, "-c", HOLD_THE_WRITE_LOCK, f"{world.folder}/store/b"],
                stdout=subprocess.PIPE,
            )
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"

    with world.jet(lease_ttl=f"{lease_s} seconds") as jet:
        result = jet.run(
            child.crash_pipeline(world.folder),
            JobConfig(**child.CONFIG),
            until="completed",
            on_event=hang,
        )
    assert hung and time.monotonic() - hung[0] > 2 * lease_s
    assert result.status is JobStatus.COMPLETED
    assert world.events_of(ExecutionRestarting) == []
    world.assert_exactly_once()


HOLD_THE_WRITE_LOCK = """
import lmdb, os, signal, sys, time
with lmdb.open(sys.argv[1], max_dbs=2, map_size=2**36, max_readers=2048) as environment:
    transaction = environment.begin(write=True)
    print("held", flush=True)
    time.sleep(2.5)
    os.kill(os.getpid(), signal.SIGKILL)
"""
"""Hangs with a member in its hands, as a process on a dying disk would, and then dies of it."""


@long  # a member hangs above; it jumps for timers in test_wall_clock_timers.py
@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_f19_the_clock_jumps(world: World, monkeypatch: pytest.MonkeyPatch, jump_s: int) -> None:
    """The clock jumps within an execution and before the next. Snapshots go on, the lease is
    renewed."""
    world.fill()
    wall, wall_ns = time.time, time.time_ns
    jumped: list[JobEvent] = []

    def jump(event: JobEvent) -> None:
        world.events.append(event)
        if isinstance(event, EpochCompleted) and event.epoch_id == 3 and not jumped:
            jumped.append(event)
            monkeypatch.setattr(time, "time", lambda: wall() + jump_s)
            monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + jump_s * 10**9)
            failpoint.configure("epoch.acked:2=raise")

    with world.jet(lease_ttl="1 second") as jet:
        job = jet.submit(
            child.crash_pipeline(world.folder),
            JobConfig(**{**child.CONFIG, "snapshot_interval": "50 ms"}),
            on_event=jump,
        )
        wait_until(lambda: any(is_after_the_jump(e) for e in world.events), "it snapshots on")
        renewed = lease_renewed_at(world)
        wait_until(lambda: lease_renewed_at(world) > renewed, "the lease is renewed", 10)
        # A second driver, whose clock did not jump, leaves the job to its owner.
        monkeypatch.undo()
        refused = subprocess.run(
            [sys.executable, child.__file__, str(world.folder), "{}"],
            env={**os.environ, **world.gateway()},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert "ended by LeaseHeldError" in refused.stdout, refused.stdout
        world.fill(files=2, first=6)
        assert job.complete().restarts == 1
    assert len(world.events_of(ExecutionRestarting)) == 1
    assert world.events_of(SnapshotFailed) == []
    world.assert_exactly_once()


def is_after_the_jump(event: JobEvent) -> bool:
    return isinstance(event, SnapshotCommitted) and event.epoch_id > 5


def lease_renewed_at(world: World) -> int:
    record = world.record()
    assert record is not None and record.lease is not None
    return record.lease.renewed_at_ms


def test_a_disk_that_is_not_small_is_not_filled(tmp_path: Path) -> None:
    """The safety catch of the test itself."""
    with pytest.raises(SystemExit, match="not a small disk"):
        full_disk.fill_up(tmp_path)
