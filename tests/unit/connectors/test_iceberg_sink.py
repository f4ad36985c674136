"""The Iceberg sink without Spark: its contract, beside the real library."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.transforms import parse_transform

from dagster_jet import sinks
from dagster_jet.testing.check_sink import check_sink
from dagster_jet.testing.sink_rows import SCHEMA
from tests.long import long

from .iceberg_rows import NAME, by_library, by_manifests, options_at
from .test_delta_sink import STEPS, WAITS


def made(folder: Path, *by: tuple[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    with closing(load_catalog("lake", **options_at(folder))) as catalog:
        catalog.create_namespace("space")
        table = catalog.create_table(NAME, SCHEMA)
        with table.update_spec() as spec:
            for column, transform in by:
                spec.add_field(column, parse_transform(transform))


@contextmanager
def moved_away(path: Path) -> Iterator[None]:
    away = path.with_name("away")
    path.rename(away)
    yield
    path.unlink(missing_ok=True)
    away.rename(path)


@contextmanager
def an_older_copy(folder: Path) -> Iterator[None]:
    """The catalog names the metadata before those with the epoch."""

    def turn() -> None:
        with closing(sqlite3.connect(folder / "catalog.db")) as database, database:
            database.execute(
                "UPDATE iceberg_tables SET metadata_location = previous_metadata_location, "
                "previous_metadata_location = metadata_location"
            )

    turn()
    yield
    turn()


@contextmanager
def without_metadata(folder: Path) -> Iterator[None]:
    path = folder / "warehouse"
    path.rename(folder / "away")
    yield
    (folder / "away").rename(path)


@pytest.mark.parametrize(
    "words",
    [
        pytest.param({}, marks=long, id="at once"),  # one of Delta Lake is not
        pytest.param(WAITS, id="held back"),
    ],
)
@pytest.mark.parametrize(
    "by",
    [
        pytest.param((), marks=long),
        (("flag", "identity"), ("at", "month"), ("text", "bucket[2]")),
    ],
    ids=["whole", "partitioned"],
)
def test_a_local_table_keeps_the_contract(
    tmp_path: Path, by: tuple[tuple[str, str], ...], words: dict[str, Any]
) -> None:
    folder = tmp_path / "a b%20c"
    made(folder, *by)
    options: Any = options_at(folder)
    check_sink(
        partial(sinks.iceberg, "lake", NAME, catalog_options=options, **words),
        partial(by_manifests, folder),
        log_of=None,
        steps=(*STEPS, "lake.gather.before") if words else STEPS,
        outages={"files that are gone": partial(without_metadata, folder)},
        set_back={
            "an empty catalog": partial(moved_away, folder / "catalog.db"),
            "an older copy": partial(an_older_copy, folder),
        },
    )
    key = lambda row: row["id"]  # noqa: E731
    assert sorted(by_library(folder), key=key) == sorted(by_manifests(folder), key=key)
