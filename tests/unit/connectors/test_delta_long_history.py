"""What a commit does to a log with many versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from dagster_jet.connectors.delta import table_log

from .delta_table import Table, by, commit, rows, stage


def test_expired_log_files_go_at_every_hundredth_commit_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To look for them takes longer than the commit."""
    monkeypatch.setattr(table_log, "CLEANED_EVERY", 6, raising=False)
    expires = {"delta.logRetentionDuration": "interval 0 seconds"}
    table = Table(tmp_path, configuration=expires)
    log, sink, left = table.folder / "_delta_log", table.sink(), []
    for epoch in range(1, 8):
        if epoch == 3:
            table.now.create_checkpoint()
        commit(sink, stage(sink, rows(epoch), epoch=epoch), by())
        left.append(len(list(log.glob("0*.json"))))
    assert left[:5] == [2, 3, 4, 5, 6] and left[5] < 7
    assert table.ids() == list(range(1, 8))
