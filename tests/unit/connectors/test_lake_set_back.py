"""A lake table comes back older while a job runs: its next epoch is not committed to it."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_jet.errors import Reaction, SinkError

from . import delta_table, iceberg_table
from .delta_table import by, rows, stage


@pytest.mark.parametrize("kind", ["catalog of Iceberg", "log of Delta Lake"])
def test_a_table_that_comes_back_older_is_not_written_on(tmp_path: Path, kind: str) -> None:
    is_delta = "Delta" in kind
    table: Any = (delta_table if is_delta else iceberg_table).Table(tmp_path)
    place = tmp_path / ("table/_delta_log" if is_delta else "catalog.db")
    sink = table.sink()

    def copied(source: Path, target: Path) -> None:
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)

    first, second, third = (stage(sink, rows(n), epoch=n) for n in (1, 2, 3))
    with closing(sink.open_committer("j", "out")) as committer:
        committer.commit(first, by())
        copied(place, tmp_path / "copy")
        committer.commit(second, by())
    with closing(sink.open_committer("j", "out")) as committer:
        assert committer.has_committed(second, replace(by(), owns_job=True))
        copied(tmp_path / "copy", place)
        with pytest.raises(SinkError, match="lacks epochs that this execution") as raised:
            committer.commit(third, by())
    assert raised.value.reaction is Reaction.RESTART
    assert table.ids() == [1]
    with closing(sink.open_committer("j", "out")) as starting:
        assert not starting.has_committed(second, replace(by(2), owns_job=True))


def test_it_comes_back_between_two_commits(tmp_path: Path) -> None:
    table = iceberg_table.Table(tmp_path)
    sink = table.sink()
    first, second, third = (stage(sink, rows(n), epoch=n) for n in (1, 2, 3))
    with closing(sink.open_committer("j", "out")) as committer:
        committer.commit(first, by())
        shutil.copy(tmp_path / "catalog.db", tmp_path / "copy")
        committer.commit(second, by())
        shutil.copy(tmp_path / "copy", tmp_path / "catalog.db")
        with pytest.raises(SinkError, match="lacks epochs that this execution"):
            committer.commit(third, by())
    assert table.ids() == [1]
