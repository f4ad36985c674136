"""A Delta Lake table that others use meanwhile, and requests that go astray: the real library does
each of these things, and every row is there once."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.delta.columns import check_partition_by, columns_of_rows
from dagster_jet.connectors.delta.data_file import data_file_of
from dagster_jet.connectors.delta.table_log import TableLog
from dagster_jet.connectors.lake.data_folder import data_folder
from dagster_jet.connectors.lake.staged_names import marker_of
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    FencedError,
    JetError,
    PipelineError,
    SinkMismatchError,
)
from dagster_jet.snapshot.manifest import Artifact

from .delta_rows import by_library
from .delta_table import APPLICATION, SCHEMA, Table, by, commit, rows, stage


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path)


# --- late, doubled and lost requests --------------------------------------------------------------


def test_late_request_lands_after_recovery_check(table: Table) -> None:
    sink = table.sink()
    staged = stage(sink, rows(1, 2))
    dead = TableLog.open(str(table.folder), {})
    assert dead is not None and dead.marker(APPLICATION) == -1
    commit(sink, staged, by(2))
    with pytest.raises(deltalake.exceptions.CommitFailedError, match="Concurrent transaction"):
        dead.append([data_file_of(one) for one in staged], APPLICATION, marker_of(1, 1), {})
    assert table.ids() == [1, 2]


def test_replayed_batch_has_new_commit_user(table: Table) -> None:
    """The driver has died before it noted the commit. A later execution is the same user of the
    table: it commits neither these files again, nor others of the same epoch."""
    staged = stage(table.sink(), rows(1, 2))
    commit(table.sink(), staged)
    commit(table.sink(), staged, by(2))
    commit(table.sink(), stage(table.sink(), rows(1, 2), execution=3), by(3))
    log = (table.folder / "_delta_log").glob("*.json")
    actions = [json.loads(line) for path in log for line in path.read_text().splitlines()]
    assert [one["txn"]["appId"] for one in actions if "txn" in one] == [APPLICATION]
    assert table.now.version() == 1 and table.ids() == [1, 2]


def test_epochs_of_a_snapshot_are_one_version(table: Table) -> None:
    sink = table.sink()
    staged = [one for n in (1, 2, 3) for one in stage(sink, rows(n), epoch=n)]
    commit(sink, staged)
    commit(sink, [*staged, *stage(sink, rows(4), epoch=4)], by(2))
    assert table.now.version() == 2 and table.ids() == [1, 2, 3, 4]
    assert table.now.history(1)[0]["dagster_jet.epochs"] == "4-4"


def test_another_writer_commits_in_between(table: Table) -> None:
    sink = table.sink()
    committer = sink.open_committer("j", "out")
    for epoch in range(1, 4):
        staged = stage(sink, rows(epoch), epoch=epoch)
        table.append(100 + epoch)
        committer.commit(staged, by())
    assert table.ids() == [1, 2, 3, 101, 102, 103]


def test_readd_after_optimize(table: Table) -> None:
    sink = table.sink()
    staged = [one for n in (1, 2) for one in stage(sink, rows(n), epoch=n)]
    commit(sink, staged)
    table.now.optimize.compact()
    commit(sink, staged)
    commit(sink, staged, by(2))
    assert table.ids() == [1, 2]
    # The library itself takes the same files with the same transaction once more.
    raw = TableLog(table.now)
    raw.append([data_file_of(one) for one in staged], APPLICATION, marker_of(1, 2), {})
    assert table.ids() == [1, 1, 2, 2]


def test_lower_txn_moves_back(table: Table) -> None:
    sink = table.sink()
    first = stage(sink, rows(1), epoch=1)
    commit(sink, first)
    later = stage(sink, rows(2), epoch=2, timeline=2, execution=2)
    commit(sink, later, by(2, 2))
    with pytest.raises(FencedError, match="later timeline"):
        commit(sink, stage(sink, rows(3), epoch=9), by(1))
    commit(sink, later, by(2, 2))
    assert table.ids() == [1, 2]
    assert table.now.transaction_version(APPLICATION) == marker_of(2, 2)
    # The library itself takes a lower one. What is committed is no orphan then, all the same.
    TableLog(table.now).append([], APPLICATION, 1, {})
    assert table.now.transaction_version(APPLICATION) == 1
    sink.open_committer("j", "out").abort_orphans(by(9), ())
    assert table.ids() == [1, 2]


def test_below_exactly_once_an_epoch_is_each_executions_own(table: Table) -> None:
    sink = table.sink()
    for execution in (1, 2):
        context = replace(by(execution), repeatable=True)
        staged = stage(sink, rows(execution), execution=execution)
        commit(sink, staged, context)
        commit(sink, staged, context)
        assert sink.open_committer("j", "out").has_committed(staged, context)
    table.now.optimize.compact()
    assert sink.open_committer("j", "out").abort_orphans(by(3), ()) == 0
    assert not sink.open_committer("j", "out").has_committed(staged, by(3))
    assert table.ids() == [1, 2]


def test_evidence_survives_checkpoints_and_a_cleaned_log(table: Table) -> None:
    sink = table.sink()
    staged = stage(sink, rows(1))
    commit(sink, staged)
    for n in range(3):
        table.append(10 + n)
    table.now.create_checkpoint()
    for path in sorted((table.folder / "_delta_log").glob("*.json"))[:-1]:
        path.unlink()
    assert sink.open_committer("j", "out").has_committed(staged, by(2))
    commit(sink, staged, by(2))
    assert sorted(row["id"] for row in by_library(str(table.folder))) == [1, 10, 11, 12]


def test_another_table_at_the_same_place_is_not_written(table: Table, tmp_path: Path) -> None:
    sink = table.sink()
    committer = sink.open_committer("j", "out")
    committer.commit(stage(sink, rows(1)), by())
    staged = stage(sink, rows(2), epoch=2)
    table.folder.rename(tmp_path / "away")
    with pytest.raises(JetError, match=r"the table .* is gone"):
        committer.commit(staged, by())
    Table(tmp_path)
    with pytest.raises(JetError, match=r"the table .* is another one now"):
        committer.commit(staged, by())
    assert table.ids() == []


# --- staged files -------------------------------------------------------------------------------


def test_deleted_file_is_committed(table: Table) -> None:
    sink = table.sink()
    lost, kept = stage(sink, rows(1)), stage(sink, rows(2), epoch=2)
    (table.folder / lost[0].target).unlink()
    with pytest.raises(ArtifactLostError, match="with 1 rows is gone"):
        commit(sink, lost + kept)
    assert table.now.version() == 0
    reported: list[Artifact] = []
    context = replace(by(2, accept_loss=True), report_lost=reported.append)
    commit(sink, lost + kept, context)
    assert table.ids() == [2] and reported == [*lost]


def test_an_epoch_that_is_lost_whole_has_a_marker(table: Table) -> None:
    sink = table.sink()
    lost = stage(sink, rows(1))
    (table.folder / lost[0].target).write_bytes(b"cut")
    commit(sink, lost, by(2, accept_loss=True))
    assert sink.open_committer("j", "out").has_committed(lost, by(2)) and table.ids() == []


@pytest.mark.parametrize("is_full", [False, True])
def test_vacuum_eats_staged_files(table: Table, is_full: bool) -> None:
    sink = table.sink()
    staged = stage(sink, rows(1))
    table.now.vacuum(0, dry_run=False, enforce_retention_duration=False, full=is_full)
    if is_full:
        with pytest.raises(ArtifactLostError, match="VACUUM"):
            commit(sink, staged)
        assert table.ids() == []
        return
    commit(sink, staged)
    assert table.ids() == [1]


def test_orphans_are_the_sinks_own_and_not_committed(table: Table) -> None:
    sink = table.sink()
    commit(sink, stage(sink, rows(1), epoch=1))
    kept = stage(sink, rows(2), epoch=2)
    others = stage(sink, rows(3), epoch=3, name="other")
    orphan = stage(sink, rows(4), epoch=3)
    committer = sink.open_committer("j", "out")
    assert committer.abort_orphans(by(2), [kept[0].token, "of/another#sink"]) == 1
    assert not (table.folder / orphan[0].target).exists()
    commit(sink, kept, by(2))
    commit(sink, others, by(2, name="other"))
    assert table.ids() == [1, 2, 3]


def test_a_partition_by_a_column_with_an_underscore_holds_data(tmp_path: Path) -> None:
    for name in ("_topic=a/_day=1/part-1", "_delta_log/part-2", "_change_data/day=1/part-3"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert list(data_folder(str(tmp_path), ()).paths("part-")) == ["_topic=a/_day=1/part-1"]


# --- tables that others change --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta.setTransactionRetentionDuration", "interval 1 days"),
        ("delta.columnMapping.mode", "name"),
        ("delta.constraints.small", "id < 10"),
    ],
)
def test_txn_retention(table: Table, name: str, value: str) -> None:
    """This and other properties are refused at the start, and before a commit."""
    sink = table.sink()
    staged = stage(sink, rows(1))
    table.set_property(name, value)
    shown = name.rpartition(".")[2] if "constraints" in name else name
    with pytest.raises(ConfigurationError, match=shown):
        table.sink()
    with pytest.raises(SinkMismatchError, match=shown):
        commit(sink, staged)
    assert table.ids() == []


def test_an_unknown_feature_is_refused(tmp_path: Path) -> None:
    made = Table(tmp_path, configuration={"delta.enableDeletionVectors": "true"})
    with pytest.raises(ConfigurationError, match="the feature 'deletionVectors'"):
        made.sink()


@pytest.mark.parametrize(
    ("uri", "options", "says"),
    [
        ("/a%20b", {}, "a percent sign"),
        ("gs://bucket/table", {}, "a table at 'gs://bucket/table' is not supported"),
        ("/table", {"mode": "delete"}, "mode: 'delete'"),
        ("/table", {"partition_by": ["a", "a"]}, "has a name twice"),
    ],
)
def test_what_is_no_sink_is_refused(uri: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        sinks.delta(uri, **options)


@pytest.mark.parametrize("folder", ["a b", "a#b", "a?b", "é", "50%"])
def test_a_table_in_a_folder_of_any_name(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    made = Table(tmp_path / folder)
    commit(made.sink(), stage(made.sink(), rows(1)))
    assert made.ids() == [1]


def test_columns_that_do_not_fit_are_named(table: Table) -> None:
    facts = table.sink().table
    assert facts is not None
    columns = facts.columns
    for schema, says in (
        ([("id", pa.int32())], "the column 'id' is integer, in the table it is long"),
        ([("ID", pa.int64())], "the table has no column 'ID', but 'id'"),
        ([("id", pa.int64())], "the rows have no column 'text'"),
        ([*SCHEMA, ("more", pa.int8())], "the table has no column 'more'"),
        ([*SCHEMA], None),
    ):
        assert columns.misfit(columns_of_rows(pa.schema(schema))) == says
    for name, type in (("a b", pa.int64()), ("a", pa.duration("us"))):
        with pytest.raises(PipelineError, match=f"{name!r}"):
            columns_of_rows(pa.schema([(name, type)]))
    for name in ("at", "number"):
        given = columns_of_rows(pa.schema([("id", pa.int64()), ("number", pa.float64())]))
        with pytest.raises(PipelineError, match=f"cannot be partitioned by {name!r}"):
            check_partition_by(given, [name])


def test_a_column_that_is_added_is_null(table: Table) -> None:
    sink = table.sink()
    staged = stage(sink, rows(1))
    rows_of_others = pa.table({"id": pa.array([2], pa.int64()), "more": ["x"]})
    deltalake.write_deltalake(table.folder, rows_of_others, mode="append", schema_mode="merge")
    commit(sink, staged)
    assert {row["id"]: row["more"] for row in by_library(str(table.folder))} == {1: None, 2: "x"}


def test_a_column_that_has_changed_stops_the_commit(table: Table) -> None:
    sink = table.sink()
    staged = stage(sink, rows(1))
    table.change_type("text", "long")
    with pytest.raises(SinkMismatchError, match="the column 'text' is string, in the table it is"):
        commit(sink, staged)
    with pytest.raises(SinkMismatchError, match="the column 'text'"):  # by a later start
        commit(table.sink(), staged, by(2))


def test_a_table_with_other_partitions_is_refused(tmp_path: Path) -> None:
    made = Table(tmp_path, partition_by=["day"])
    assert made.sink()._partition_by == ("day",)
    with pytest.raises(ConfigurationError, match="is partitioned by day"):
        made.sink(partition_by="text")


def test_a_new_job_refuses_the_markers_of_another_life(table: Table) -> None:
    sink = table.sink()
    sink.check("j", "out", is_new_job=True)
    commit(sink, stage(sink, rows(1)))
    sink.check("j", "out", is_new_job=False)
    with pytest.raises(ConfigurationError, match="earlier life"):
        sink.check("j", "out", is_new_job=True)
