"""Tasks are told which execution of a job writes to a sink now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dagster_jet.connectors.kafka.newest_execution import NewestExecution
from dagster_jet.connectors.staging import StoreArea
from dagster_jet.store import Store, StoreConfig
from dagster_jet.store.members import file


def test_a_note_that_arrives_late_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note is that of a driver believed dead, whose successor has written its own meanwhile."""
    members = [f"file://{tmp_path}/{name}" for name in "ab"]
    with Store.open(StoreConfig(tuple(members), backup_count=1)) as store:
        newest = NewestExecution(StoreArea(store, "j", "out"))
        newest.note(1)
        meanwhile = [lambda: newest.note(6)]
        for name in ("put_many", "replace_many"):
            write = getattr(file.FileMember, name)

            def later(self: Any, items: Any, write: Any = write) -> Any:
                if meanwhile:
                    meanwhile.pop()()
                return write(self, items)

            monkeypatch.setattr(file.FileMember, name, later)
        newest.note(5)
        assert not meanwhile and newest.noted() == 6
