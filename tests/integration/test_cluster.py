"""Two executor JVMs: every shard stays where its runs are, and one of the two may die.

The rows are the oracle's, recomputed from the input files one event at a time.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dagster_jet import __version__

from . import cluster_child
from .cluster_child import DEADLY, DIE_AT_ONCE, GAP_MS, KEYS, LAG_MS, RATE, ROLLUP_MS, WINDOW_MS
from .oracle import Rows, committed, difference, input_rows, windowed
from .world import write_input

FILES, DEADLY_FILE = 8, 4
NOTICED_S = 30.0
"""Seconds on an idle machine. Spark left to itself waits for ten minutes."""
CORES = 4
PARALLELISM = 3
"""Number of shards that divides nothing: shards of unequal size, executors with unequally many."""


def fill(folder: Path) -> None:
    """No two rows of a file have one time, so that a running total has one truth."""
    rng = random.Random("cluster")
    for number in range(FILES):
        times = rng.sample(range(LAG_MS + 300), 30)
        rows = [
            {"k": f"key-{rng.randrange(12)}", "ts": number * 300 + time, "v": rng.randrange(100)}
            for time in sorted(times)
        ]
        if number == DEADLY_FILE:
            for row in rows:  # whichever shards the victim has, one of them will meet it
                row["v"] = DEADLY
        write_input(folder / "in", number, rows)


def expected(folder: Path) -> dict[str, Rows]:
    rows = input_rows(folder / "in")
    counts = windowed(rows, WINDOW_MS)
    results = [{"k": k, "last": end - 1, "n": n, "total": total} for k, _, end, n, total in counts]
    return {
        "counts": counts,
        "rollup": windowed(results, ROLLUP_MS, time="last", n="n", total="total"),
        "sessions": Counter(_sessions(rows)),
        "totals": Counter(_totals(folder / "in")),
    }


def _sessions(rows: list[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    by_key: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in rows:
        by_key[row["k"]].append((row["ts"], row["v"]))
    for key, events in by_key.items():
        current: list[tuple[int, int]] = []
        for event in [*sorted(events), None]:
            if current and (event is None or event[0] >= current[-1][0] + GAP_MS):
                first, last = current[0][0], current[-1][0]
                yield key, first, last + GAP_MS, len(current), max(v for _, v in current)
                current = []
            if event is not None:
                current.append(event)


def _totals(folder: Path) -> Iterator[tuple[Any, ...]]:
    totals: Counter[str] = Counter()
    for row in input_rows(folder):  # by arrival: file by file
        totals[row["k"]] += row["v"]
        yield row["k"], row["ts"], totals[row["k"]]


def numbers_counted(found: Rows) -> Rows:
    """Counts of consecutive numbers by key and second. Only the length of the first second is
    taken from the rows found: the job began within it."""
    first, *others = sorted({row[1] for row in found})
    ends = [sum(row[2] for row in found.elements() if row[1] == first)]
    ends += [ends[0] + RATE * number for number in range(1, len(others) + 1)]
    expected: Rows = Counter()
    for window, begin, end in zip((first, *others), [0, *ends], ends, strict=False):
        for k in range(KEYS):
            values = [value for value in range(begin, end) if value % KEYS == k]
            if values:
                expected[k, window, len(values), values[0]] += 1
    return expected


COLUMNS = {
    "counts": ("k", "window_start", "window_end", "n", "total"),
    "rollup": ("k", "window_start", "window_end", "n", "total"),
    "sessions": ("k", "window_start", "window_end", "n", "top"),
    "totals": ("k", "ts", "total"),
}


def test_shards_stay_on_their_executors_and_one_of_these_dies(tmp_path: Path) -> None:
    fill(tmp_path)
    command = [sys.executable, "-m", cluster_child.__name__, str(tmp_path), str(PARALLELISM)]
    with open(tmp_path / "log.txt", "wb") as log:
        child = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            child.wait(480)
        finally:
            child.kill()
            child.wait()
    said = (tmp_path / "log.txt").read_text("utf-8")
    assert child.returncode == 0, said[-5000:]
    report = json.loads(said.splitlines()[-1])
    killed = (tmp_path / "killed").read_text()

    for name, columns in COLUMNS.items():
        found = committed(tmp_path / "out" / name, columns)
        assert not difference(found, expected(tmp_path)[name]), name
    assert report["first_shards"] == CORES, "counted before all executors had joined"
    assert report["shards"] == [CORES], "a loss has divided the state anew"
    assert f"has dagster_jet {__version__}; the driver has dagster_jet 0.0.0" in report["refused"]
    assert report["restarts"] == len(report["restored"]) - 1 <= 2, said  # one to spread again
    assert len(report["failures"]) == 1
    assert "are lost" in report["failures"][0]
    assert report["noticed_s"] < NOTICED_S
    waited_s, reason = report["last_to_work"]
    assert waited_s < NOTICED_S and "are lost" in reason
    waited_s, reason = report["while_placing"]
    assert waited_s < NOTICED_S and "are lost" in reason
    assert report["joined_meanwhile"] in ([1, True], [2, False]), "with shards it needs no restart"
    assert report["restored"][0] is None and report["restored"][1] is not None
    moved = {shard: homes for shard, homes in report["homes"].items() if len(homes) > 1}
    assert not moved, f"{len(moved)} of {len(report['homes'])} shards moved: {moved}"
    by_execution = defaultdict(set)
    for shard, homes in report["homes"].items():
        by_execution[shard.split()[0]].update(homes)
    before, after, *_ = (by_execution[execution] for execution in sorted(by_execution, key=int))
    assert killed in before and killed not in after
    assert len(before) == 2
    assert report["died_at_once"] == DIE_AT_ONCE
    assert len(report["lost"]) <= 1 + DIE_AT_ONCE, f"a loss was noticed twice: {report['lost']}"
    assert len(report["spreads"]) <= 1, report["spreads"]
    assert len(report["joined"][-1]) == 2, f"the one that has joined has no shards: {report}"
    found = committed(tmp_path / "joined", ("k", "window_start", "n", "least"))
    assert not difference(found, numbers_counted(found))
