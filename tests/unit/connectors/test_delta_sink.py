"""The Delta Lake sink without Spark: its contract, and what the real library does beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pytest

from dagster_jet import sinks
from dagster_jet.testing.check_sink import check_sink
from dagster_jet.testing.sink_rows import SCHEMA
from tests.contract.connector_places import not_mounted
from tests.long import long

from .delta_rows import by_library, by_log

STEPS = (
    "lake.write.before",
    "lake.prepare.before",
    "lake.prepare.after",
    "lake.commit.before",
    "lake.commit.after",
)
WAITS: dict[str, Any] = {"min_file_bytes": 1 << 20, "max_delay": "1 minute"}


@contextmanager
def an_older_copy(folder: Path) -> Iterator[None]:
    """The log ends before the version with the epoch."""
    newest = max((folder / "_delta_log").glob("*.json"))
    away = folder / "_delta_log" / "_away"
    newest.rename(away)
    yield
    away.rename(newest)


@contextmanager
def without_a_log(folder: Path) -> Iterator[None]:
    """The folder of the log cannot be read."""
    log, away = folder / "_delta_log", folder / "_away"
    log.rename(away)
    log.write_text("")
    yield
    log.unlink()
    away.rename(log)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({}, id="at once"),
        pytest.param(WAITS, marks=long, id="held back"),  # one of Iceberg is not
    ],
)
@pytest.mark.parametrize("by", [pytest.param((), marks=long), ("flag", "day")])
def test_a_local_table_keeps_the_contract(
    tmp_path: Path, by: tuple[str, ...], words: dict[str, Any]
) -> None:
    folder = tmp_path / "table"
    deltalake.DeltaTable.create(folder, SCHEMA, partition_by=list(by))
    check_sink(
        partial(sinks.delta, str(folder), partition_by=by, **words),
        partial(by_log, folder),
        log_of=None,
        steps=(*STEPS, "lake.gather.before") if words else STEPS,
        outages={"a log that cannot be read": partial(without_a_log, folder)},
        set_back={
            "an empty folder": partial(not_mounted, folder),
            "an older copy": partial(an_older_copy, folder),
        },
    )
    key = lambda row: row["id"]  # noqa: E731
    assert sorted(by_library(str(folder)), key=key) == sorted(by_log(folder), key=key)
