"""Cost and effect of a commit in a Delta log with many versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.connectors.delta import table_log
from dagster_jet.connectors.delta.table_log import TableLog

from .delta_table import SCHEMA, Table, by, commit, rows, stage

EXPIRES = {"delta.logRetentionDuration": "interval 0 seconds"}


def test_expired_log_files_go_at_every_hundredth_commit_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking for expired files takes longer than the commit."""
    monkeypatch.setattr(table_log, "CLEANED_EVERY", 6, raising=False)
    table = Table(tmp_path, configuration=EXPIRES)
    log, sink, left = table.folder / "_delta_log", table.sink(), []
    for epoch in range(1, 8):
        if epoch == 3:
            table.now.create_checkpoint()
        commit(sink, stage(sink, rows(epoch), epoch=epoch), by())
        left.append(len(list(log.glob("0*.json"))))
    assert left[:5] == [2, 3, 4, 5, 6] and left[5] < 7
    assert table.ids() == list(range(1, 8))


def test_so_they_do_when_rows_are_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are replaced as in the epochs table, beside a stream with a snapshot each second."""
    monkeypatch.setattr(table_log, "CLEANED_EVERY", 6)
    table, left = Table(tmp_path, configuration=EXPIRES), []
    log = TableLog.open(str(table.folder), {})
    assert log is not None
    for number in range(1, 8):
        if number == 3:
            table.now.create_checkpoint()
        assert log.look()
        log.replace(pa.Table.from_batches([rows(7)], SCHEMA), (("id", 7),), "a", number, {})
        left.append(len(list((table.folder / "_delta_log").glob("0*.json"))))
    assert left[:5] == [2, 3, 4, 5, 6] and left[5] < 7
    assert table.ids() == [7]


def test_a_commit_looks_at_the_whole_log_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path)
    sink = table.sink()
    committer = sink.open_committer("j", "out")
    looks: list[int] = []
    look = TableLog.look
    monkeypatch.setattr(TableLog, "look", lambda log: looks.append(log.version) or look(log))
    for epoch in (1, 2, 3):
        committer.commit(stage(sink, rows(epoch), epoch=epoch), by())
        assert committer.output_facts()["table_version"] == table.now.version() == epoch
    assert looks == [0, 1], "the first commit opens the table"
    assert table.ids() == [1, 2, 3]


def test_another_writers_version_in_between_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tmp_path)
    sink = table.sink()
    append = TableLog.append

    def after_another(log: TableLog, *given: Any) -> None:
        table.append(100)
        append(log, *given)

    monkeypatch.setattr(TableLog, "append", after_another)
    committer = sink.open_committer("j", "out")
    committer.commit(stage(sink, rows(1)), by())
    assert committer.output_facts()["table_version"] == table.now.version() == 2
    committer.commit(stage(sink, rows(2), epoch=2), by())
    assert table.ids() == [1, 2, 100, 100]
