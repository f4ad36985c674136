"""Upserts and mirrors of a Delta Lake table: the real library merges, and others use the table."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.delta import DeltaSink
from dagster_jet.connectors.lake import lake_committer
from dagster_jet.connectors.lake.lake_committer import Change
from dagster_jet.connectors.lake.staged_changes import staged_at
from dagster_jet.connectors.lake.staged_names import marker_of
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    FencedError,
    PipelineError,
    SinkMismatchError,
)

from .delta_table import APPLICATION, SCHEMA, Table, by, commit, rows, stage

KEYED: dict[str, Any] = {"mode": "upsert", "key": "id"}
MIRROR: dict[str, Any] = {"mode": "mirror", "key": "id"}
CHANGES = pa.schema(
    [
        *SCHEMA,
        ("op", pa.string()),
        ("_lsn", pa.int64()),
        ("_row", pa.int64()),
        ("_old", pa.struct([("id", pa.int64())])),
        ("_unchanged", pa.list_(pa.string())),
    ]
)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path, partition_by=["day"])


def change(op: str, new: int | None = None, old: int | None = None, **more: Any) -> dict[str, Any]:
    row = {"id": old} if new is None else rows(new).to_pylist()[0]
    old_row = {} if old is None else {"_old": {"id": old}}
    return {**row, "op": op, "_lsn": 1, "_row": 1, **old_row, **more}


def changes(*given: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(list(given), CHANGES)


def staged_files(table: Table) -> list[Path]:
    return sorted(Path(staged_at(str(table.folder))).glob("part-*"))


def texts(table: Table) -> dict[int, str]:
    assert table.ids() == sorted({row["id"]: 0 for row in table.now.to_pyarrow_table().to_pylist()})
    return {row["id"]: row["text"] for row in table.now.to_pyarrow_table().to_pylist()}


def test_aborted_checkpoint_merged_into_next(table: Table) -> None:
    """A snapshot has failed, so its epoch is committed together with the next one, in which a key
    has changed again: the newest row of the key counts."""
    sink = table.sink(**KEYED)
    table.append(1, 7)
    staged = [*stage(sink, rows(1, 2)), *stage(sink, rows(2, 3, text="new"), epoch=2)]
    commit(sink, staged)
    assert texts(table) == {1: "row 1", 2: "new", 3: "new", 7: None}
    assert table.now.version() == 2 and staged_files(table) == []
    commit(sink, staged, by(2))
    assert table.now.version() == 2
    assert table.now.history(1)[0]["dagster_jet.epochs"] == "1-2"


@pytest.mark.parametrize("others", [(), (7,)], ids=["an empty table", "other keys"])
def test_zero_row_delete_does_not_conflict(
    table: Table, monkeypatch: pytest.MonkeyPatch, others: tuple[int, ...]
) -> None:
    """Two sinks upsert a key that the table does not have. Neither has a row to remove, and still
    the second one is made again, on what the first one has committed."""
    for id in others:
        table.append(id)
    sink = table.sink(**KEYED)
    ours, theirs = stage(sink, rows(1, text="newer")), [stage(sink, rows(1), name="other")]

    def after_another(point: str) -> None:
        if point == "lake.commit.before" and theirs:
            commit(sink, theirs.pop(), by(name="other"))

    monkeypatch.setattr(lake_committer, "fail_point", after_another)
    commit(sink, ours)
    assert not theirs and texts(table)[1] == "newer"
    assert table.ids() == [1, *others]


def test_changes_of_a_mirror(table: Table) -> None:
    sink = table.sink(**MIRROR)
    first = stage(sink, changes(change("insert", 1), change("insert", 2), change("insert", 3)))
    second = stage(
        sink,
        changes(
            change("update", 4, 1), change("delete", old=2), change("update", 3, 3, text="new")
        ),
        epoch=2,
    )
    commit(sink, first)
    commit(sink, [*first, *second])
    assert texts(table) == {3: "new", 4: "row 4"}
    third = stage(sink, changes(change("truncate"), change("insert", 9)), epoch=3)
    commit(sink, third, by(2))
    assert texts(table) == {9: "row 9"} and staged_files(table) == []


@pytest.mark.parametrize("far", [2_932_897, -719_163, 10_000_000], ids=["10000", "0000", "29349"])
@pytest.mark.parametrize("others", [True, False], ids=["among others", "alone"])
def test_a_far_key_of_a_partition_may_be_deleted_and_changed(
    tmp_path: Path, far: int, others: bool
) -> None:
    """Dates before the year 1 or after 9999: no row of the table has such a key, because they are
    refused in phase 1. The source's table had it before the mirror began."""
    table = Table(tmp_path, partition_by=["day"])
    sink = table.sink(mode="mirror", key="day")

    def staged(epoch: int, *given: tuple[str, int | None, int | None]) -> Any:
        more = {"id": epoch, "text": "t", "_lsn": epoch, "_row": 1}
        made = [
            {**more, "op": op, "day": old if new is None else new, "_old": old and {"day": old}}
            for op, new, old in given
        ]
        numbers = pa.RecordBatch.from_pylist(made, _keyed_by_day(pa.int32()))
        return stage(sink, numbers.cast(_keyed_by_day(pa.date32())), epoch=epoch)

    near = [("insert", 20_000, None), ("insert", 20_001, None)]
    commit(sink, staged(1, *near))
    with_others = [("delete", None, 20_000)] if others else []
    commit(sink, staged(2, ("delete", None, far), *with_others), by(2))
    commit(sink, staged(3, ("update", 20_002, far)), by(3))
    found = [row["day"] for row in table.now.to_pyarrow_table().to_pylist()]
    wanted = {20_001, 20_002} | (set() if others else {20_000})
    assert sorted(found) == [date.fromordinal(719_163 + day) for day in sorted(wanted)]


def _keyed_by_day(kind: pa.DataType) -> pa.Schema:
    types = {"day": kind, "_old": pa.struct([("day", kind)])}
    return pa.schema([(field.name, types.get(field.name, field.type)) for field in CHANGES])


def test_changes_that_change_nothing_have_a_marker(table: Table) -> None:
    """The library commits nothing then, and no transaction either."""
    sink = table.sink(**MIRROR)
    staged = stage(sink, changes(change("delete", old=5)))
    commit(sink, staged)
    assert sink.open_committer("j", "out").has_committed(staged, by(2))


def test_a_late_merge_is_refused(table: Table) -> None:
    """An upsert would bring old values back, as `late_request_lands_after_recovery_check` does."""
    sink = table.sink(**KEYED)
    old = stage(sink, rows(1))
    committer: Any = sink.open_committer("j", "out")
    with committer.errors_named(by()):
        dead = committer.open()
    commit(sink, old)
    kept = stage(sink, rows(1))  # what the dead driver has in memory
    commit(sink, stage(sink, rows(1, text="new"), epoch=2))
    with pytest.raises(deltalake.exceptions.CommitFailedError):
        committer.append(Change(dead, kept, APPLICATION, marker_of(1, 1), {}))
    assert texts(table) == {1: "new"}
    later = stage(sink, rows(2), epoch=3, timeline=2, execution=2)
    commit(sink, later, by(2, 2))
    with pytest.raises(FencedError, match="later timeline"):
        commit(sink, stage(sink, rows(1), epoch=9), by(1))


def test_another_writer_commits_in_between(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library fails a MERGE beside any other commit, so it is made again."""
    sink = table.sink(**KEYED)
    staged = stage(sink, rows(1, 2))
    execute, meanwhile = deltalake.table.TableMerger.execute, [9, 10]

    def after_another(merger: Any) -> Any:
        if meanwhile:
            table.append(meanwhile.pop())
        return execute(merger)

    monkeypatch.setattr(deltalake.table.TableMerger, "execute", after_another)
    commit(sink, staged)
    assert table.ids() == [1, 2, 9, 10]


def test_staged_changes_of_others_stay_and_orphans_go(table: Table) -> None:
    sink = table.sink(**KEYED)
    committed, kept, orphan = (stage(sink, rows(n), epoch=n) for n in (1, 2, 3))
    table.now.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert len(staged_files(table)) == 3
    body = staged_files(table)[0].read_bytes()
    commit(sink, committed)
    path = Path(staged_at(str(table.folder))) / committed[0].target
    path.write_bytes(body)  # as after a crash between the commit and the removal
    assert sink.open_committer("j", "out").abort_orphans(by(2), [kept[0].token]) == 2
    commit(sink, kept, by(2))
    assert table.ids() == [1, 2] and not path.exists() and orphan
    lost = stage(sink, rows(5), epoch=5)
    (Path(staged_at(str(table.folder))) / lost[0].target).unlink()
    with pytest.raises(ArtifactLostError, match="with 1 rows is gone"):
        commit(sink, lost, by(2))
    commit(sink, lost, by(2, accept_loss=True))
    assert sink.open_committer("j", "out").has_committed(lost, by(2))


def test_names_of_any_case_are_columns(tmp_path: Path) -> None:
    schema = pa.schema([("Key", pa.string()), ("aValue", pa.int64()), ("select", pa.bool_())])
    made = Table(tmp_path, schema)
    sink = made.sink(mode="upsert", key="Key")
    for epoch in (1, 2):
        row = {"Key": "k's", "aValue": epoch, "select": True}
        commit(sink, stage(sink, pa.RecordBatch.from_pylist([row], schema), epoch=epoch))
    assert made.now.to_pyarrow_table().to_pylist() == [row]


def test_what_has_no_key_is_refused(table: Table) -> None:
    upsert, mirror = table.sink(**KEYED), table.sink(**MIRROR)
    found = upsert.refused(pa.concat_batches([rows(1), rows(2, id=None)]))
    assert [one.reason.rpartition(": ")[2] for one in found.values()] == ["id is null"]
    assert not mirror.can_leave_out() and not mirror.refused(changes(change("delete", old=1)))
    for given, says in (
        (change("delete"), "the key column id is null in a change"),
        (change("update", 1, 1, _unchanged=["text"]), "does not have the value of text"),
    ):
        with pytest.raises(SinkMismatchError, match=says):
            stage(mirror, changes(given))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "upsert"}, "mode 'upsert' needs a key"),
        ({"key": "id"}, "mode 'append' needs no key"),
        ({"mode": "mirror", "key": "id", "order_by": "id"}, "mode 'mirror' has no use"),
        ({"mode": "merge", "key": "id"}, "mode: 'merge'"),
    ],
)
def test_what_is_no_mode_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        sinks.delta("/table", **options)


def test_a_table_that_only_grows_is_not_merged(tmp_path: Path) -> None:
    made = Table(tmp_path, configuration={"delta.appendOnly": "true"})
    made.sink()
    with pytest.raises(ConfigurationError, match=r"delta\.appendOnly"):
        made.sink(**KEYED)


def test_columns_that_are_no_key_are_named(table: Table) -> None:
    from dagster_jet.connectors.lake.keys import check_changes, check_keyed_by

    columns = pa.schema([*SCHEMA, ("number", pa.float64())])
    for key, order in ((["number"], None), (["more"], None), (["id"], "more")):
        with pytest.raises(PipelineError, match=r"number|more"):
            check_keyed_by(columns, key, order)
    with pytest.raises(PipelineError, match="the rows have no column op"):
        check_changes(SCHEMA, ["id"], "/table")


def test_it_is_reopened_with_its_key(table: Table) -> None:
    sink = table.sink(**KEYED)
    staged = stage(sink, rows(1))
    commit(replace(DeltaSink.reopen(sink.destination()), home=sink.home), staged)
    assert table.ids() == [1]
