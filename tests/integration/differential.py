"""The differential cases of operators once more, with epochs that no single task takes.

Each runs a pipeline that other tests run with a few rows, in two executions of other parallelism,
and compares what is committed with a computation that shares no line with the engine. All of them
can run on a cluster: places are `shared`, and nothing of the driver's process is read by tasks.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.nexmark import oracle as nexmark_oracle
from benchmarks.nexmark import run as nexmark
from benchmarks.nexmark.queries import QUERIES as NEXMARK_QUERIES
from benchmarks.race import oracle as race_oracle
from benchmarks.race.committed import Epochs
from benchmarks.race.data import LAG_MS as RACE_LAG_MS
from benchmarks.race.data import SENTINELS, Stream
from benchmarks.race.engines import jet as race
from benchmarks.race.order import Order
from benchmarks.race.queries import QUERIES as RACE_QUERIES
from dagster_jet import Jet, JobConfig, Pipeline
from dagster_jet.execution.epoch_driver import FEW_GROUPS
from dagster_jet.execution.events import EpochCompleted, ExecutionRestarting, JobEvent

from . import (
    batches_child,
    lateness_child,
    test_allowed_lateness,
    test_operators,
    test_two_runtimes,
    wide_epochs,
)
from .child import open_jet
from .oracle import difference
from .several_tasks import FEW_ROWS, large_from_few_rows_on
from .test_batches import BatchesWorld
from .two_runtimes import random_files
from .world import write_input

Row = dict[str, Any]
Inputs = Mapping[str, Sequence[Callable[[Path], object]]]
"""Functions that put each file there, by folder under ``in``."""

ROWS, KEYS = 30_000, 40_000
"""Rows per file, and number of possible keys; a file has more than 20,000 different ones."""
SHARED = {"shared": True}
TURNS = (("drained", 3), ("completed", 5))
"""End of each execution, and its shards: more and fewer than cores, a divisor of nothing."""
RACE = Stream(events=100_000, per_file=25_000)


def keys() -> list[str]:
    return [f"key-{number}" for number in range(KEYS)]


def rows_of(seed: str, files: int = 4) -> list[list[Row]]:
    """A key has no two rows of one time: which would come first is not certain. By time, as an
    epoch may end within a file."""
    files_of_rows = []
    for batch in test_operators.events(seed, files, ROWS, keys()):
        distinct = {(row["ts"], row["k"]): row for row in batch}
        assert len(distinct) > FEW_ROWS and len({row["k"] for row in batch}) > FEW_GROUPS
        files_of_rows.append([distinct[place] for place in sorted(distinct)])
    return files_of_rows


def play(jet: Jet, p: Pipeline, folder: Path, batches: Mapping[str, list[list[Row]]]) -> None:
    """Runs the pipeline over files in ``in``, half of them in each execution."""
    with large_epochs() as seen:
        for turn, (until, parallelism) in enumerate(TURNS):
            for side, files in batches.items():
                half = len(files) // 2
                for number in range(turn * half, half if turn == 0 else len(files)):
                    write_input(folder / "in" / side, number, files[number])
            jet.run(p, JobConfig(parallelism=parallelism), until=until, on_event=seen.append)


@contextmanager
def large_epochs() -> Iterator[list[JobEvent]]:
    """Checks that there was one, and that nothing had to be done again."""
    seen: list[JobEvent] = []
    with large_from_few_rows_on():
        yield seen
    assert max(event.rows for event in seen if isinstance(event, EpochCompleted)) > FEW_ROWS
    assert not [event.reason for event in seen if isinstance(event, ExecutionRestarting)]


def operator(name: str, jet: Jet, folder: Path) -> None:
    batches = {side: rows_of(f"{name}{side}") for side in test_operators.sides(name)}
    play(jet, test_operators.operator_pipeline(name, folder, **SHARED), folder, batches)
    wrong = test_operators.wrong_rows(name, folder)
    assert not wrong, wrong


def rolling(jet: Jet, folder: Path) -> None:
    play(jet, test_operators.rolling_pipeline(folder, **SHARED), folder, {"": rows_of("rolling")})
    test_operators.check_rolling_totals(folder)


def early(jet: Jet, folder: Path) -> None:
    play(jet, test_operators.early_pipeline(folder, **SHARED), folder, {"": rows_of("early")})
    test_operators.check_early_results(folder)


def late(jet: Jet, folder: Path) -> None:
    everything = test_operators.restless_batches(folder / "in", ROWS, keys())
    with large_epochs() as seen:
        config = JobConfig(parallelism=3, max_items_per_epoch=ROWS)
        p = test_operators.late_pipeline(folder, **SHARED)
        jet.run(p, config, until="completed", on_event=seen.append)
    test_operators.check_late_rows(folder, everything)


def lateness(jet: Jet, folder: Path) -> None:
    """Windows that later epochs correct."""
    everything = test_operators.restless_batches(folder / "in", ROWS, keys())
    p, rows = lateness_child.read(folder, **SHARED)
    lateness_child.versions(rows, "tumbling", folder, "700 ms", **SHARED)
    with large_epochs() as seen:
        config = JobConfig(parallelism=3, max_items_per_epoch=1)
        jet.run(p, config, until="completed", on_event=seen.append)
    given = Counter((row["k"], row["ts"], row["v"]) for row in everything)
    test_allowed_lateness.check_versions(folder, "tumbling", given)


def batches(jet: Jet, folder: Path) -> None:
    world = BatchesWorld(folder).fill(copies=1_200)
    with large_epochs() as seen:
        config = JobConfig(parallelism=3, max_items_per_epoch=1)
        p = batches_child.balances(folder, **SHARED)
        jet.run(p, config, until="completed", on_event=seen.append)
    for name, expected in world.expected().items():
        wrong = difference(world.committed()[name], expected)
        assert not wrong, f"{name}: {wrong}"


def windows_over_windows(jet: Jet, folder: Path) -> None:
    wide_epochs.fill(folder / "in")
    with large_epochs() as seen:
        jet.run(wide_epochs.pipeline(folder), until="completed", on_event=seen.append)
    wide_epochs.check(folder)


def two_runtimes(jet: Jet, folder: Path) -> None:
    """Every kind of stage and all aggregates, beside the runtime without Spark; states, too."""
    files = {
        name: random_files(
            ("large", name), 3, 22_000, lag_ms, [*given, *keys()[:12_000]], distinct=True
        )
        for name, given in test_two_runtimes.KEYS.items()
        for lag_ms in [test_two_runtimes.DISORDER_MS[name]]
    }
    differing = test_two_runtimes.differing(
        test_two_runtimes.compare(jet, folder, files, 2, **SHARED)
    )
    assert not differing, differing


# --- NEXMark --------------------------------------------------------------------------------------


def hand_over(stream: Path, source: Path, files: slice) -> None:
    """Links files, with the modification times that say their order. Sentinels are left out: the
    race ends before them."""
    source.mkdir(parents=True, exist_ok=True)
    for path in sorted(stream.glob("*.json"))[:-SENTINELS][files]:
        os.link(path, source / path.name)


def play_stream(jet: Jet, p: Pipeline, folder: Path, stream: Path) -> None:
    with large_epochs() as seen:
        for (until, parallelism), files in zip(TURNS, (slice(2), slice(2, None)), strict=True):
            hand_over(stream, folder / "in", files)
            jet.run(p, JobConfig(parallelism=parallelism), until=until, on_event=seen.append)


def stream_of(folder: Path) -> Path:
    """The race's events, written once for all cases of a test session."""
    return RACE.write(folder.parent / "race")


def raced(query: str, jet: Jet, folder: Path) -> None:
    stream = stream_of(folder)
    order = Order(query, str(folder / "in"), str(folder / "out"), "", RACE_LAG_MS)
    play_stream(jet, race.pipeline(order, **SHARED), folder, stream)
    answer = RACE.answer(folder.parent / "race", query)
    files = Epochs(folder / "out").files()
    verdict = race_oracle.check(RACE_QUERIES[query], answer, files, stream, RACE.events)
    assert verdict.is_exact, verdict


def nexmark_query(query: str, jet: Jet, folder: Path) -> None:
    """Runs a Nexmark query that is not raced, and checks its answer."""
    stream, output = stream_of(folder), folder / "out"
    p = nexmark.pipeline(query, folder / "in", output, RACE.model, **SHARED)
    play_stream(jet, p, folder, stream)
    verdict = nexmark_oracle.check(query, RACE.model, folder / "in", output)
    assert verdict.is_exact and verdict.expected, verdict


CASES: Mapping[str, Callable[[Jet, Path], None]] = {
    **{name: partial(operator, name) for name in test_operators.OPERATORS},
    "rolling": rolling,
    "early": early,
    "late": late,
    "lateness": lateness,
    "map_stateful in batches": batches,
    "windows over windows": windows_over_windows,
    "two runtimes": two_runtimes,
    **{f"race {query}": partial(raced, query) for query in RACE_QUERIES},
    **{
        f"nexmark {query}": partial(nexmark_query, query)
        for query in NEXMARK_QUERIES
        if query not in RACE_QUERIES
    },
}


def run(case: str, folder: Path) -> None:
    """Runs one of them on the process's Spark.

    Raises:
        AssertionError: it says which rows are wrong.
    """
    folder.mkdir()
    with open_jet(folder, "a", 0) as jet:
        CASES[case](jet, folder)
