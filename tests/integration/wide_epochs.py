"""Epochs of more rows, and of more groups, than one task does alone; keys that are constants.

A window over a window without keys, and a rolling total by a constant: the optimizer knows where
all of their rows go, and the placement on a cluster has to hold all the same.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.execution.epoch_driver import FEW_GROUPS

from .oracle import committed, difference
from .several_tasks import FEW_ROWS

FILES, ROWS, KEYS = 3, 40_000, 5_000
SIZE_MS, STEP_MS, LAST = 10_000, 2_000, 3
assert min(FEW_ROWS, FEW_GROUPS) < ROWS
COLUMNS = {"tops": ("window_end", "most", "last"), "all": ("one", "n")}


def events() -> Iterator[tuple[int, int]]:
    """Keys and event times, one every ms."""
    for ts in range(FILES * ROWS):
        yield ts * 7919 % KEYS, ts


def fill(folder: Path) -> None:
    folder.mkdir(parents=True)
    lines = [json.dumps({"k": k, "ts": ts}) + "\n" for k, ts in events()]
    for number in range(FILES):
        part = lines[number * ROWS : (number + 1) * ROWS]
        (folder / f"{number}.json").write_text("".join(part), "utf-8")


def pipeline(folder: Path) -> Pipeline:
    p = Pipeline("wide")
    source = sources.files(f"{folder}/in", format="json", schema="k long, ts long", shared=True)
    rows = p.read_from(source, name="rows").with_timestamps("ts")
    counts = (
        rows.group_by("k")
        .window(windows.sliding(f"{SIZE_MS} ms", f"{STEP_MS} ms"))
        .aggregate(n=agg.count(), name="counts")
    )
    tops = (
        counts.select("window_start", "window_end", "n", "-k AS neg")
        .window(windows.tumbling(f"{STEP_MS} ms"))
        .aggregate(most=agg.max("n"), last=agg.top_n(LAST, "neg", by="n"), name="tops")
    )
    total = (
        rows.select("'all' AS one", "ts")
        .group_by("one")
        .rolling_aggregate(n=agg.count(), name="total")
    )
    for name, stage in {"tops": tops.select("window_end", "most", "last"), "all": total}.items():
        out = sinks.files(f"{folder}/out/{name}", format="json", shared=True)
        stage.write_to(out, name=f"{name}_out")
    return p


def check(folder: Path) -> None:
    found = {name: committed(folder / "out" / name, COLUMNS[name]) for name in COLUMNS}
    assert not difference(found["tops"], expected_tops())
    assert max(found["all"]) == ("all", FILES * ROWS)


def expected_tops() -> Counter[tuple[int, int, tuple[int, ...]]]:
    """Highest count at the end of each counted window, and the keys that have it."""
    by_end: dict[int, Counter[int]] = {}
    for k, ts in events():
        first = ts - ts % STEP_MS + STEP_MS
        for end in range(first, first + SIZE_MS, STEP_MS):
            by_end.setdefault(end, Counter())[k] += 1
    found: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
    for end, counts in by_end.items():
        best = sorted(((n, -k) for k, n in counts.items()), reverse=True)[:LAST]
        found[end, best[0][0], tuple(neg for _, neg in best)] += 1
    return found
