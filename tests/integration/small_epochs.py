"""Small epochs of stages in a row, judged by a computation that shares no line with the engine.

The second window has the keys of the first. The third has others, so that on a cluster its rows go
to another executor.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from unittest import mock

from dagster_jet import Jet, JobConfig, Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.spark import epoch
from dagster_jet.spark.frames import epoch_frames, prepared_frames

from .child import open_jet
from .oracle import Rows, committed, difference, input_rows, windowed
from .world import WINDOW_COLUMNS, write_input

FILES = 8
WINDOW_MS, ROLLUP_MS, LAG_MS = 500, 2_000, 400
KEYS = {"same": "k", "other": "substring(k, 1, 4) AS k"}
"""Keys of the second stage's rows."""


def pipeline(folder: Path, keys: str) -> Pipeline:
    p = Pipeline(f"small_{keys}")
    source = sources.files(
        f"{folder}/in", format="json", schema="k string, ts long, v long", shared=True
    )
    rows = p.read_from(source, name="rows").with_timestamps("ts", allowed_lag=f"{LAG_MS} ms")
    counts = (
        rows.group_by("k")
        .window(windows.tumbling(f"{WINDOW_MS} ms"))
        .aggregate(n=agg.count(), total=agg.sum("v"), name="counts")
    )
    chosen = counts.select(KEYS[keys], "window_end", "n", "total")
    rollup = (
        chosen.group_by("k")
        .window(windows.tumbling(f"{ROLLUP_MS} ms"))
        .aggregate(n=agg.sum("n"), total=agg.sum("total"), name="rollup")
    )
    for name, stage in {"counts": counts, "rollup": rollup}.items():
        out = sinks.files(f"{folder}/{keys}/{name}", format="json", shared=True)
        stage.write_to(out, name=f"{name}_out")
    return p


def expected(folder: Path, keys: str) -> dict[str, Rows]:
    counts = windowed(input_rows(folder / "in"), WINDOW_MS)
    size = 4 if keys == "other" else None
    results = [{"k": k[:size], "last": end - 1, "n": n, "total": total}
               for k, _, end, n, total in counts]  # fmt: skip
    return {
        "counts": counts,
        "rollup": windowed(results, ROLLUP_MS, time="last", n="n", total="total"),
    }


class CountedFrames(epoch_frames.EpochFrames):
    """Counts for how many epochs, or kinds of epochs, frames were made."""

    made = 0

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        CountedFrames.made += 1


def made_for(jet: Jet, p: Pipeline, rows: int = 1) -> tuple[int, int]:
    """Runs a pipeline with a file, or this number of rows, per epoch. Returns the number of its
    epochs, and for how many of them, or kinds of them, frames were made."""
    CountedFrames.made = 0
    with (
        mock.patch.object(epoch, "EpochFrames", CountedFrames),
        mock.patch.object(prepared_frames, "EpochFrames", CountedFrames),
    ):
        result = jet.run(p, JobConfig(max_items_per_epoch=rows, parallelism=3), until="completed")
    return result.epochs, CountedFrames.made


def run(folder: Path) -> dict[str, tuple[int, int]]:
    """Runs the pipelines on the process's Spark; by pipeline, its epochs, and how often frames were
    made.

    Raises:
        AssertionError: it says which rows are wrong.
    """
    rng, found = random.Random("small epochs"), {}
    for number in range(FILES):
        rows = [{"k": f"key-{rng.randrange(12)}", "ts": number * 300 + rng.randrange(LAG_MS),
                 "v": rng.randrange(100)} for _ in range(30)]  # fmt: skip
        write_input(folder / "in", number, rows)
    with open_jet(folder, "a", 0) as jet:
        for keys in KEYS:
            found[keys] = made_for(jet, pipeline(folder, keys))
            for name, rows_of in expected(folder, keys).items():
                wrong = difference(committed(folder / keys / name, WINDOW_COLUMNS), rows_of)
                assert not wrong, f"{keys}, {name}: {wrong}"
    return found
