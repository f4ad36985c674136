"""A job's rows in a shared table are removed, and nobody else's; other rows are refused."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.reopening import reopen_sink
from dagster_jet.contract import CommitContext, Committer, Sink, TransactionId
from dagster_jet.errors import ConfigurationError, PipelineError
from dagster_jet.store import Store, StoreConfig
from tests.integration.connectors.sql_job import SqliteDatabase

from .delta_table import Table

MON, TUE = datetime.date(2026, 1, 5), datetime.date(2026, 1, 6)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(StoreConfig((f"file://{tmp_path}/store",), backup_count=0)) as store:
        yield store


def rows(*days: datetime.date, **more: Any) -> pa.RecordBatch:
    columns = {"id": list(range(len(days))), "text": ["a"] * len(days), "day": list(days), **more}
    return pa.RecordBatch.from_pydict(columns)


def written(sink: Sink, job: str, batch: pa.RecordBatch) -> Committer:
    writer = sink.open_writer(TransactionId(job, "out", 1, 1, 1, 0, "0"))
    writer.write(batch)
    committer = sink.open_committer(job, "out")
    committer.commit(writer.prepare(), CommitContext(job, "out", 1, 1, recovering=False))
    return committer


def is_removed(sink: Sink, kind: str, store: Store, job: str = "j") -> bool:
    """Returns whether the sink removes the rows when a deletion opens it from the snapshot."""
    opened = reopen_sink({"kind": kind, **sink.destination()}, store)
    context = CommitContext(job, "out", 1, 2, recovering=True)
    committer = opened.open_committer(job, "out")
    return all(committer.remove_output(context) for _ in range(2))


def test_rows_of_a_database_table(tmp_path: Path, store: Store) -> None:
    database = SqliteDatabase(tmp_path / "shop.db")
    database.run("create table results (id integer, text text, day date)")
    by_day = {
        day: sinks.sql(database.url, table="results", owns={"day": str(day)}).with_store(store)
        for day in (MON, TUE)
    }
    for day, sink in by_day.items():
        sink.claim_place(f"j@{day}", "out")
        written(sink, f"j@{day}", rows(day, day))
    assert is_removed(by_day[MON], "sql", store, f"j@{MON}")
    assert database.run("select day, count(*) from results group by day") == [(str(TUE), 2)]


def test_rows_of_a_delta_table(tmp_path: Path, store: Store) -> None:
    table = Table(tmp_path, partition_by=["day"])
    for day in (MON, TUE):
        sink = table.sink(owns={"day": str(day), "text": "it's"})
        written(sink, f"j@{day}", rows(day, text=["it's"]))
    assert len(table.ids()) == 2
    assert is_removed(sink, "delta", store)
    assert [row["day"] for row in table.now.to_pyarrow_table().to_pylist()] == [MON]


def test_another_row_fails_before_it_is_staged(tmp_path: Path) -> None:
    sink = Table(tmp_path).sink(owns={"day": str(MON)})
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "0"))
    missing = pa.array([None], pa.date32())
    far = pa.array([13_890_172], pa.int32()).cast(pa.date32())  # failed before: an OverflowError
    for wrong, day in (
        (rows(MON, TUE), "datetime.date(2026, 1, 6)"),
        (rows(MON, day=missing), "None"),
        (rows(MON, day=far), "'+40000-01-01'"),
    ):
        with pytest.raises(PipelineError) as told:
            writer.write(wrong)
        assert f"day = {day}, and the job owns the rows with '2026-01-05'" in str(told.value)


def test_what_cannot_be_owned_is_refused_at_once(store: Store) -> None:
    url = "sqlite:///x.db"
    with pytest.raises(ConfigurationError, match="mode 'upsert' changes rows that other jobs"):
        sinks.sql(url, table="t", mode="upsert", key="id", owns={"day": "x"})
    with pytest.raises(ConfigurationError, match="held transactions"):
        sinks.sql(url, table="t", transactions="held", owns={"day": "x"})
    with pytest.raises(ConfigurationError, match="the value of 'day' is date"):
        sinks.sql(url, table="t", owns={"day": MON})
    for owns, why in (({"hour": 1}, "no column hour"), ({"id": "x"}, "no value of the column id")):
        with pytest.raises(PipelineError, match=why):
            sinks.sql(url, table="t", owns=owns).takes(rows(MON).schema)
    plain = sinks.sql(url, table="t").with_store(store).open_committer("j", "out")
    assert type(plain).remove_output is Committer.remove_output, "a deletion says so beforehand"
