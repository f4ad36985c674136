"""Small epochs that differ in a watermark, in early results or in their clock, although their
frames are made once: each case with what judges its rows. All of them can run on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_jet import Pipeline

from . import test_ingestion_time, test_operators
from .child import open_jet
from .small_epochs import made_for
from .world import write_input

FILES = 9
SHARED = {"shared": True}


@dataclass(frozen=True)
class Case:
    write: Callable[[Path], Any]
    """Writes the input files; returns what `check` is told."""
    pipeline: Callable[[Path], Pipeline]
    check: Callable[[Path, Any], None]
    kinds: int = 3
    """Kinds of epochs: with rows, without, and the last."""


def _write_events(folder: Path, side: str = "") -> None:
    for number, batch in enumerate(test_operators.events("small", FILES)):
        write_input(folder / "in" / side, number, batch)


def _check_sessions(folder: Path, _: None) -> None:
    wrong = test_operators.wrong_rows("session", folder)
    assert not wrong, wrong


def _write_numbers(folder: Path) -> list[int]:
    for number in range(FILES):
        write_input(folder / "in", number, [{"v": 5 * number + n} for n in range(5)])
    return list(range(5 * FILES))


def _check_as_read(folder: Path, numbers: list[int]) -> None:
    """Each epoch has a time of its own, later than the one before."""
    rows = test_ingestion_time.committed(folder / "rows")
    assert sorted(row["v"] for row in rows) == numbers
    read = [{row["read_ms"] for row in rows if row["v"] // 5 == file} for file in range(FILES)]
    times = [time for of_file in read for time in sorted(of_file)]
    assert len(times) == FILES and times == sorted(times)
    counts = test_ingestion_time.committed(folder / "out")
    assert sum(row["n"] for row in counts) == len(numbers)
    assert sum(row["total"] for row in counts) == sum(numbers)


CASES = {
    "sessions": Case(
        lambda folder: _write_events(folder, "left"),
        lambda folder: test_operators.operator_pipeline("session", folder, **SHARED),
        _check_sessions,
    ),
    "late rows": Case(
        lambda folder: test_operators.restless_batches(folder / "in", files=FILES),
        lambda folder: test_operators.late_pipeline(folder, **SHARED),
        test_operators.check_late_rows,
    ),
    "early results": Case(
        _write_events,
        lambda folder: test_operators.early_pipeline(folder, **SHARED),
        lambda folder, _: test_operators.check_early_results(folder),
        kinds=6,
    ),
    "ingestion time": Case(
        _write_numbers,
        lambda folder: test_ingestion_time.counted_as_read(folder, **SHARED),
        _check_as_read,
    ),
}


def run(name: str, folder: Path) -> tuple[int, int]:
    """Runs a case on the process's Spark, and checks its rows. Returns the number of epochs, and
    how often frames were made."""
    case = CASES[name]
    told = case.write(folder)
    with open_jet(folder, "a", 0) as jet:
        found = made_for(jet, case.pipeline(folder))
    case.check(folder, told)
    return found
