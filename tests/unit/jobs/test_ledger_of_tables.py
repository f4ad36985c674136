"""The ledger names a lake table's version for an epoch, and how to read it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.types import UUIDType
from typer.testing import CliRunner

from dagster_jet import Jet
from dagster_jet.cli import app
from dagster_jet.connectors.reopening import destination_of
from dagster_jet.observe.reading.ledger import LedgerEntry, LedgerOrigin
from tests.servers import duckdb_reader
from tests.unit.connectors import delta_table, iceberg_table
from tests.unit.connectors.delta_table import by, rows, stage
from tests.unit.connectors.iceberg_rows import metadata_at, metadata_of
from tests.unit.orchestration.recorded_job import RecordedJob

COLUMNS = "`id` bigint, `text` string, `day` date"


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        yield jet


def write(jet: Jet, job: RecordedJob, sink: Any, commit: Callable[..., None], *ids: int) -> Any:
    """An epoch, staged, decided and committed. Returns what was staged."""
    epoch = ids[0]
    staged = stage(sink.with_store(jet.store), rows(*ids), epoch=epoch)
    job.places = {"out": destination_of(sink)}
    job.commits(epoch, {"out": len(ids)}, artifacts=staged)
    commit(sink.with_store(jet.store), staged, by())
    return staged


def entry_of(jet: Jet) -> LedgerEntry:
    entry = jet.job("j").ledger().entries["out"]
    assert (entry.origin, entry.note) == (LedgerOrigin.MARKERS, "")
    return entry


def read(query: str) -> list[int]:
    return sorted(row["id"] for row in duckdb_reader.rows_of(query))


def test_a_delta_table(jet: Jet, tmp_path: Path) -> None:
    table, job = delta_table.Table(tmp_path), RecordedJob(jet, "j", listed=True)
    write(jet, job, table.sink(), delta_table.commit, 1, 2)
    staged = write(jet, job, table.sink(), delta_table.commit, 3)
    table.append(99)
    entry = entry_of(jet)
    assert entry.epoch_id == entry.decided_epoch_id == 3
    query = entry.output["time_travel"]
    assert entry.output == {
        "table_version": table.now.version(),
        "table_history": f"{table.folder}/_delta_log",
        "schema": COLUMNS,
        "time_travel": query,
        "files": 1,
        "rows": 1,
        "bytes": (table.folder / staged[0].target).stat().st_size,
    }
    assert Path(entry.output["table_history"]).is_dir()
    then = table.ids()
    write(jet, job, table.sink(), delta_table.commit, 4)
    assert then == [1, 2, 3, 99] == read(query)
    assert entry_of(jet).output["table_version"] == entry.output["table_version"] + 1


def test_an_iceberg_table(jet: Jet, tmp_path: Path) -> None:
    table, job = iceberg_table.Table(tmp_path / "lake"), RecordedJob(jet, "j", listed=True)
    write(jet, job, table.sink(), iceberg_table.commit, 1, 2)
    staged = write(jet, job, table.sink(), iceberg_table.commit, 3)
    table.append(99)
    entry, metadata = entry_of(jet), metadata_of(table.folder)
    query = entry.output["time_travel"]
    at = f"file://{metadata_at(table.folder)}"
    assert entry.output == {
        "snapshot_id": str(metadata["current-snapshot-id"]),
        "sequence_number": metadata["last-sequence-number"],
        "metadata_location": at,
        "table_history": at,
        "schema": COLUMNS,
        "time_travel": query,
        "files": 1,
        "rows": 1,
        "bytes": table.path_of(staged[0]).stat().st_size,
    }
    then = table.ids()
    write(jet, job, table.sink(), iceberg_table.commit, 4)
    assert then == [1, 2, 3, 99] == read(query)


def test_columns_that_spark_has_no_type_for_are_left_out(jet: Jet, tmp_path: Path) -> None:
    """The ledger says the rest. A start refuses the column by itself."""
    table, job = iceberg_table.Table(tmp_path / "lake"), RecordedJob(jet, "j", listed=True)
    write(jet, job, table.sink(), iceberg_table.commit, 1)
    with table.opened() as found, found.update_schema() as change:
        change.add_column("other", UUIDType())
    entry = entry_of(jet)
    assert entry.epoch_id == 1 and "schema" not in entry.output
    assert read(entry.output["time_travel"]) == [1]


def test_the_terminal_shows_the_query(jet: Jet, tmp_path: Path) -> None:
    table, job = delta_table.Table(tmp_path), RecordedJob(jet, "j", listed=True)
    write(jet, job, table.sink(), delta_table.commit, 1)
    environment = {"DAGSTER_JET_STORE": f"file://{tmp_path}/store", "COLUMNS": "300"}
    shown = CliRunner().invoke(app, ["ledger", "j"], env=environment).stdout
    assert "time travel" in shown and "delta_scan(" in shown
    (row,) = json.loads(CliRunner().invoke(app, ["ledger", "j", "--json"], env=environment).stdout)
    assert row["output"] == dict(entry_of(jet).output)
