"""A sink that commits together with another one keeps the contract; the suite names what breaks."""

from __future__ import annotations

import sqlite3
from collections.abc import Hashable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dagster_jet.connectors.staging import segments_by_epoch
from dagster_jet.contract import CommitPart
from dagster_jet.system.failpoint import fail_point
from dagster_jet.testing import Beside, check_sink
from tests.contract.connector_places import SqliteTable, TableCommitter, read_table, table
from tests.long import long

MARKS = "create table if not exists jet_epochs (job, sink, timeline, epoch, execution)"
STEPS = ("planted.before", "planted.between", "planted.after")


@dataclass(frozen=True)
class Joint(SqliteTable):
    """Tables of one file are changed by one transaction."""

    def open_committer(self, job: str, stage: str) -> Any:
        return type(self).Committer(self)

    class Committer(TableCommitter):
        def together_with(self) -> Hashable:
            return self.sink.path

        def commit_together(self, parts: Sequence[CommitPart]) -> bool:
            fail_point("planted.before")
            with closing(sqlite3.connect(self.sink.path, timeout=1)) as database, database:
                database.execute(MARKS)
                for part in parts:
                    self.commit_part(database, part)
                    fail_point("planted.between")
            fail_point("planted.after")
            return True

        def commit_part(self, database: sqlite3.Connection, part: CommitPart) -> None:
            of, by = part.context, part.committer
            assert isinstance(by, TableCommitter)
            for epoch, segments in segments_by_epoch(by.sink.area, part.artifacts):
                mark = (of.job, of.sink, of.timeline, epoch, 0)
                same = "(job, sink, timeline, epoch, execution) = (?, ?, ?, ?, ?)"
                if database.execute(f"select 1 from jet_epochs where {same}", mark).fetchone():
                    continue
                for segment in segments:
                    by._insert(database, segment, of)
                database.execute("insert into jet_epochs values (?, ?, ?, ?, ?)", mark)


class OneByOne(Joint):
    class Committer(Joint.Committer):
        def commit_part(self, database: sqlite3.Connection, part: CommitPart) -> None:
            super().commit_part(database, part)
            database.commit()


class NoMark(Joint):
    class Committer(Joint.Committer):
        def commit_part(self, database: sqlite3.Connection, part: CommitPart) -> None:
            super().commit_part(database, part)
            database.execute("delete from jet_epochs")


class AllOrNothingToDo(Joint):
    """Takes all sinks' epochs for committed if the first sink has its own."""

    class Committer(Joint.Committer):
        def commit_together(self, parts: Sequence[CommitPart]) -> bool:
            first, *_ = parts
            with closing(sqlite3.connect(self.sink.path, timeout=1)) as database, database:
                database.execute(MARKS)
                newest = database.execute(
                    "select max(epoch) from jet_epochs where sink = ?", (first.context.sink,)
                ).fetchone()[0]
            if (newest or 0) >= min(one.epoch_id for one in first.artifacts):
                return True
            return super().commit_together(parts)


class OtherPlaces(Joint):
    class Committer(Joint.Committer):
        def together_with(self) -> Hashable:
            return self.sink.path, self.sink.table, self.sink.staging


class HalfAndNo(Joint):
    """Commits only the first sink, and returns that it cannot commit together."""

    class Committer(Joint.Committer):
        def commit_together(self, parts: Sequence[CommitPart]) -> bool:
            super().commit_together(parts[:1])
            return False


class Alone(Joint):
    class Committer(Joint.Committer):
        def commit_together(self, parts: Sequence[CommitPart]) -> bool:
            return False


def check(folder: Path, kind: type[Joint], *, in_one_step: bool = True) -> None:
    first = table(folder, kind)
    with closing(sqlite3.connect(first.path)) as database:
        database.execute("create table beside as select * from results where false")
    check_sink(
        partial(table, folder, kind),
        partial(read_table, folder),
        several_processes=False,
        beside=Beside(
            partial(kind, first.path, "beside", f"{folder}/staged_beside"),
            partial(read_table, folder, "beside"),
            STEPS,
            in_one_step=in_one_step,
        ),
    )


def test_a_sink_that_commits_together_keeps_the_contract(tmp_path: Path) -> None:
    check(tmp_path, Joint)


def test_a_place_that_cannot_do_it_keeps_the_contract(tmp_path: Path) -> None:
    check(tmp_path, Alone, in_one_step=False)


@pytest.mark.parametrize(
    ("kind", "in_one_step", "broken"),
    [
        (OneByOne, True, "leaves both sinks committed or none.*the other one does not"),
        pytest.param(NoMark, True, "changes nothing.*is there twice", marks=long),
        pytest.param(
            AllOrNothingToDo, True, "that is committed already.*rows are missing", marks=long
        ),
        pytest.param(OtherPlaces, True, "they name the places", marks=long),
        pytest.param(
            HalfAndNo, False, "commits none.*rows are visible that must not be", marks=long
        ),
        (Alone, True, "commit_together returns False"),
    ],
)
def test_the_suite_names_the_broken_clause(
    tmp_path: Path, kind: type[Joint], in_one_step: bool, broken: str
) -> None:
    with pytest.raises(AssertionError, match=f"(?s)breaks its contract: .*{broken}"):
        check(tmp_path, kind, in_one_step=in_one_step)
