"""`sinks.foreach_epoch`: the contract of sinks with a function that honours ids, and one that does
not; crashes at each step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.foreach_epoch import ForeachEpochSink
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.contract.refused import REFUSED_SHARD
from dagster_jet.errors import ConfigurationError, SinkError, SinkUnavailableError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.store import Store, StoreConfig
from dagster_jet.system import failpoint
from dagster_jet.system.failpoint import FailPointError
from dagster_jet.testing.check_sink import check_sink
from tests.contract.connector_places import as_sqlite, locked, read_table, table


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0, partition_count=5)
    with Store.open(config) as opened:
        yield opened


def load(path: Path, rows: pa.Table, epoch: str) -> None:
    """Rows and id in one transaction, as in the docs."""
    try:
        with closing(sqlite3.connect(path, timeout=0)) as database, database:
            if database.execute("insert or ignore into loaded values (?)", [epoch]).rowcount:
                values = [list(map(as_sqlite, row.values())) for row in rows.to_pylist()]
                database.executemany("insert into results values (?,?,?,?,?,?,?,?)", values)
    except sqlite3.OperationalError as error:
        raise ConnectionError(str(error)) from error


def test_a_function_that_honours_ids_keeps_the_contract(tmp_path: Path, store: Store) -> None:
    table(tmp_path)
    with closing(sqlite3.connect(tmp_path / "a.db")) as database:
        database.execute("create table loaded (id text primary key)")
    check_sink(
        lambda: sinks.foreach_epoch(partial(load, tmp_path / "a.db"), rows_as="arrow").with_store(
            store
        ),
        partial(read_table, tmp_path),
        several_processes=False,
        outages={"a locked table": partial(locked, tmp_path / "a.db")},
        steps=("staging.put.before", "staging.finished", "foreach.called", "foreach.marked"),
    )


def staged(
    sink: ForeachEpochSink, epoch_id: int, *values: int, shard: int = 0
) -> tuple[Artifact, ...]:
    writer = sink.open_writer(TransactionId("j", "out", 1, 5, epoch_id, shard, "a0"))
    writer.write(pa.record_batch({"v": pa.array(values)}))
    return writer.prepare()


def test_a_repeated_call_has_the_same_rows_and_the_same_id(store: Store) -> None:
    calls: list[tuple[list[int], str]] = []

    def note(rows: pa.Table, epoch: str) -> None:
        calls.append((rows.column("v").to_pylist(), epoch))

    sink = sinks.foreach_epoch(note, rows_as="arrow").with_store(store)
    artifacts = (*staged(sink, 7, 1, 2), *staged(sink, 8, 3))
    context = CommitContext("j", "out", 1, 5, recovering=False)
    failpoint.configure("foreach.called:1=raise")
    with pytest.raises(FailPointError):
        sink.open_committer("j", "out").commit(artifacts, context)
    failpoint.configure("")
    later = CommitContext("j", "out", 1, 6, recovering=True)
    sink.open_committer("j", "out").commit(artifacts, later)
    ids = [f"{store.store_id[:8]}-j-out-5-{epoch}" for epoch in (7, 7, 8)]
    assert calls == list(zip([[1, 2], [1, 2], [3]], ids, strict=True))
    sink.open_committer("j", "out").commit(artifacts, later)
    assert len(calls) == 3, "the marker is there"
    assert sink.open_committer("j", "out").abort_orphans(later, ()) == 2, "both markers"


def test_rows_that_another_sink_refuses_have_an_id_of_their_own(store: Store) -> None:
    """As a dead-letter sink it gets them beside the epoch's own letters, of the same execution."""
    calls: list[tuple[list[int], str]] = []

    def note(rows: pa.Table, epoch: str) -> None:
        calls.append((rows.column("v").to_pylist(), epoch))

    sink = sinks.foreach_epoch(note, rows_as="arrow").with_store(store)
    own, refused = staged(sink, 7, 1), staged(sink, 7, 2, shard=REFUSED_SHARD)
    context = CommitContext("j", "out", 1, 5, recovering=False)
    sink.open_committer("j", "out").commit(own, context)
    for _ in range(2):
        sink.open_committer("j", "out").commit(refused, replace(context, repeatable=True))
    name = f"{store.store_id[:8]}-j-out-5-7"
    assert calls == [([1], name), ([2], f"{name}-refused")]


@pytest.mark.parametrize(
    ("repeatable", "retained", "left"), [(False, True, 4), (False, False, 50), (True, False, 1)]
)
def test_a_marker_stays_while_a_commit_may_name_its_epoch(
    store: Store, repeatable: bool, retained: bool, left: int
) -> None:
    """An execution of 50 epochs; then its last commit is repeated by itself and by another one."""
    called: list[int] = []
    sink = sinks.foreach_epoch(
        lambda rows, _: called.extend(rows.column("v").to_pylist()), rows_as="arrow"
    ).with_store(store)
    committer = sink.open_committer("j", "out")
    for epoch_id in range(1, 51):
        artifacts = staged(sink, epoch_id, epoch_id)
        context = CommitContext(
            "j",
            "out",
            1,
            5,
            recovering=False,
            repeatable=repeatable,
            retained_epoch_id=max(0, epoch_id - 3) if retained else 0,
        )
        committer.commit(artifacts, context)
    committer.commit(artifacts, context)
    later = replace(context, execution_id=6, recovering=True)
    sink.open_committer("j", "out").commit(artifacts, later)
    assert called == list(range(1, 51))
    epochs = range(51 - left, 51)
    assert set(sink.area("j", "out").names()) == {f"5-{epoch}-done/000000" for epoch in epochs}


@pytest.mark.parametrize("hit", [1, 2, 3])
def test_markers_of_a_snapshot_stay_until_it_is_committed(store: Store, hit: int) -> None:
    """The process dies between the epochs of a snapshot, whose first is older than all retained
    snapshots."""
    called: list[int] = []
    sink = sinks.foreach_epoch(
        lambda rows, _: called.extend(rows.column("v").to_pylist()), rows_as="arrow"
    ).with_store(store)
    committer = sink.open_committer("j", "out")
    context = CommitContext("j", "out", 1, 5, recovering=False, retained_epoch_id=9)
    committer.commit(staged(sink, 1, 1), context)
    artifacts = tuple(artifact for n in (2, 3, 4) for artifact in staged(sink, n, n))
    failpoint.configure(f"foreach.marked:{hit}=raise")
    with pytest.raises(FailPointError):
        committer.commit(artifacts, context)
    failpoint.configure("")
    later = replace(context, execution_id=6, recovering=True)
    sink.open_committer("j", "out").commit(artifacts, later)
    assert called == [1, 2, 3, 4]
    committer.commit(staged(sink, 9, 9), context)
    assert "5-1-done/000000" not in sink.area("j", "out").names()


@pytest.mark.parametrize(
    ("error", "kind"),
    [(ConnectionRefusedError(), SinkUnavailableError), (KeyError("v"), SinkError)],
)
def test_an_error_names_the_line_and_says_what_follows(
    store: Store, error: Exception, kind: type[Exception]
) -> None:
    def fail(rows: Any, epoch: str) -> None:
        raise error

    sink = sinks.foreach_epoch(fail, rows_as="arrow").with_store(store)
    said = r"test_foreach_epoch.py:\d+ `raise error`: .*fail raised .* 1 rows of the epoch '.*-5-7'"
    with pytest.raises(kind, match=said) as caught:
        sink.open_committer("j", "out").commit(
            staged(sink, 7, 1), CommitContext("j", "out", 1, 5, recovering=False)
        )
    assert type(caught.value) is kind


def test_a_function_has_the_same_name_in_each_process() -> None:
    """The text of an object, or of a partial, has its address and differs."""

    class Load:
        def __call__(self, rows: Any, epoch: str) -> None: ...

    for function in (load, partial(partial(load, Path("a")), epoch="b")):
        assert sinks.foreach_epoch(function).describe()["function"] == "load"
    assert sinks.foreach_epoch(Load()).describe()["function"].endswith("<locals>.Load")


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be called"):
        sinks.foreach_epoch(3)
    with pytest.raises(ConfigurationError, match="rows_as: 'pandas' is unknown"):
        sinks.foreach_epoch(print, rows_as="pandas")
