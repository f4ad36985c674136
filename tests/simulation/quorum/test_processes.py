"""Real processes on real folders, killed and frozen at any moment; the same judge."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import dagster_jet
from dagster_jet.store.register import NO_BALLOT, Ballot

from . import process as child
from .history import Recorded, is_linearizable, told

IS_FULL = os.environ.get("JET_SIMULATION_FULL_SCOPES") == "1"
SECONDS, SECONDS_MAX = 5.0 if IS_FULL else 3.0, 60.0
SEEDS = 20 if IS_FULL else 1
ROLES = ("owner", "owner", "reader", "reader", "mover", "mover")


class Crowd:
    """The processes of one run; a killed one is followed by another."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self.folder, self.rng = folder, rng
        self.running: list[subprocess.Popen[bytes] | None] = [None] * len(ROLES)
        self.frozen: dict[int, float] = {}
        self.seen: Counter[str] = Counter()

    def keep_going(self) -> None:
        for at, running in enumerate(self.running):
            if running is None:
                self.running[at] = self.start(at)
            elif running.poll() is not None:
                error = running.stderr.read().decode() if running.stderr else ""
                assert running.returncode == -signal.SIGKILL, error
                self.running[at] = self.start(at)
        for at, until in list(self.frozen.items()):
            if time.monotonic() >= until:
                self.wake(at)

    def start(self, at: int) -> subprocess.Popen[bytes]:
        root = str(Path(dagster_jet.__file__).parents[1])
        script, seed = str(Path(child.__file__)), str(self.rng.randrange(1 << 30))
        return subprocess.Popen(
            [sys.executable, script, ROLES[at], str(self.folder), f"{ROLES[at]}{at}", seed],
            env={**os.environ, "PYTHONPATH": root},
            stderr=subprocess.PIPE,
        )

    def disturb(self) -> None:
        at = self.rng.randrange(len(ROLES))
        running = self.running[at]
        if running is None or running.poll() is not None or at in self.frozen:
            return
        if self.rng.random() < 0.25:
            running.kill()
            self.seen["killed"] += 1
        else:
            running.send_signal(signal.SIGSTOP)
            # A process may be frozen in the middle of an LMDB write, with everybody waiting.
            self.frozen[at] = time.monotonic() + self.rng.uniform(0.0, 0.25)
            self.seen["frozen"] += 1

    def wake(self, at: int) -> None:
        running = self.running[at]
        del self.frozen[at]
        if running is not None and running.poll() is None:
            running.send_signal(signal.SIGCONT)

    def end(self) -> None:
        for running in self.running:
            if running is not None:
                running.kill()
                running.wait()
                if running.stderr:
                    running.stderr.close()


def history_of(folder: Path) -> list[Recorded]:
    history: list[Recorded] = []
    for diary in folder.glob("*.diary"):
        calls: dict[int, dict[str, Any]] = {}
        for line in diary.read_bytes().split(b"\n")[:-1]:
            entry = json.loads(line)
            calls.setdefault(entry["call"], {}).update(entry)
        for call in calls.values():
            if call["kind"] == "move" or call.get("never"):
                continue
            value, ballot = call.get("value"), call.get("ballot")
            history.append(
                Recorded(
                    call["kind"],
                    None if value is None else value.encode(),
                    call["begin"],
                    call.get("end"),
                    NO_BALLOT if ballot is None else Ballot(ballot, ""),
                    who=diary.stem,
                )
            )
    return history


def moves_in(folder: Path) -> int:
    return sum(b'"move"' in line for d in folder.glob("mover*.diary") for line in d.open("rb"))


def enough_in(folder: Path) -> bool:
    done = Counter(record.kind for record in history_of(folder) if record.end is not None)
    return moves_in(folder) > 2 and min(done["read"], done["write"], done["claim"]) > 10


@pytest.mark.parametrize("seed", range(SEEDS))
def test_killed_and_frozen_processes_leave_a_linearizable_history(
    tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    child.create(tmp_path)
    crowd = Crowd(tmp_path, rng)
    try:
        began = time.monotonic()
        while time.monotonic() < began + SECONDS or not enough_in(tmp_path):
            assert time.monotonic() < began + SECONDS_MAX, "too little happens"
            crowd.keep_going()
            time.sleep(rng.uniform(0.0, 0.2))
            crowd.disturb()
    finally:
        crowd.end()
    history = history_of(tmp_path)
    done = Counter(record.kind for record in history if record.end is not None)
    moves = moves_in(tmp_path)
    print(f"seed {seed}: {dict(done)}, {moves} changes of the members, {dict(crowd.seen)}")
    assert is_linearizable(history), told(history)
