"""Sinks for a table, as conformance suites make them: picklable, each on a store of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet import Secret, sinks
from dagster_jet.connectors.change_columns import LSN, OLD, OP, ROW, UNCHANGED
from dagster_jet.connectors.sql.sql_sink import SqlSink
from dagster_jet.store import Store, StoreConfig
from dagster_jet.testing.sink_rows import SCHEMA, Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

COLUMNS = {
    "postgresql": "id bigint primary key, text text, number double precision, flag boolean, "
    "at timestamptz, day date, raw bytea, price numeric(10, 2)",
    "mariadb": "id bigint primary key, text longtext, number double, flag boolean, "
    "at datetime(6), day date, raw longblob, price decimal(10, 2)",
    "sqlite": "id integer primary key, text text, number double, flag boolean, "
    "at timestamp, day date, raw blob, price decimal(10, 2)",
}
"""Columns of `check_sink`'s rows."""


def all_rows(run: Callable[[str], Iterable[Sequence[Any]]], table: str = "results") -> list[Row]:
    """Rows of the table with every column, read by a plain client."""
    names = SCHEMA.names
    found = run(f"select {', '.join(names)} from {table}")
    return [dict(zip(names, row, strict=True)) for row in found]


@contextmanager
def without(run: Callable[[str], object], table: str) -> Iterator[None]:
    """Renames the table, as in another database that lacks it; asserts that nobody makes it
    anew."""
    run(f"alter table {table} rename to kept")
    yield
    run(f"create table {table} (nobody_has_made_it int)")
    run(f"drop table {table}")
    run(f"alter table kept rename to {table}")


@contextmanager
def from_a_copy(run: Callable[[str], object]) -> Iterator[None]:
    """The database is as it was an epoch earlier."""
    run("update dagster_jet_epochs set epoch = epoch - 1")
    yield
    run("update dagster_jet_epochs set epoch = epoch + 1")


def set_back(run: Callable[[str], object]) -> dict[str, Callable[[], Any]]:
    """Ways to set back the place of a sink that rolls forward, for `check_sink`."""
    return {
        "a database without epochs": partial(without, run, "dagster_jet_epochs"),
        "a database that was restored": partial(from_a_copy, run),
    }


@dataclass(frozen=True)
class MadeSink:
    """Makes sinks of one table, in this process and in others."""

    folder: str
    env: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, folder: Any, url: str, **options: Any) -> MadeSink:
        """The URL is a secret: its variable is inherited by other processes."""
        env = f"JET_TEST_{abs(hash((str(folder), url)))}"
        os.environ[env] = url
        return cls(str(folder), env, options)

    @cached_property
    def _stores(self) -> list[Store]:
        return []

    def __call__(self) -> Any:
        if not self._stores:
            config = StoreConfig((f"file://{self.folder}/store",), backup_count=0)
            self._stores.append(Store.open(config))
        sink = sinks.sql(Secret(self.env), **{"table": "results", **self.options})
        return sink.with_store(self._stores[0])

    def __reduce__(self) -> Any:
        return type(self), (self.folder, self.env, self.options)

    def close(self) -> None:
        for store in self._stores:
            store.close()


class MadeMirror(MadeSink):
    """Makes a sink that mirrors another table; each of the suite's rows is an insertion."""

    def __call__(self) -> Any:
        made = super().__call__()
        return AsChanges(**{f.name: getattr(made, f.name) for f in fields(made) if f.init})


@dataclass(frozen=True)
class AsChanges(SqlSink):
    def takes(self, schema: pa.Schema) -> bool:
        return False

    def render(self, frame: DataFrame) -> DataFrame:
        return super().render(as_insertions(frame, self.key))


def as_insertions(frame: DataFrame, key: Sequence[str]) -> DataFrame:
    """The rows as changes."""
    from pyspark.sql import functions as F

    number, nothing = F.monotonically_increasing_id(), F.lit(None)
    return frame.withColumns(
        {
            OP: F.lit("insert"),
            LSN: F.lit(1).cast("long"),
            ROW: number,
            OLD: F.struct(*(nothing.cast("long").alias(name) for name in key)),
            UNCHANGED: nothing.cast("array<string>"),
        }
    )
