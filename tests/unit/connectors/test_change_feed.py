"""The change data feed of random tables, compared with what the package `deltalake` reads of it."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from dagster_jet import sources
from dagster_jet.connectors.delta.change_feed import TIME, TYPE, VERSION
from dagster_jet.connectors.delta.delta_reader import DeltaReader
from dagster_jet.connectors.lake.added_rows import Piece, ReadPieces
from dagster_jet.connectors.lake.table_read import TableRead
from dagster_jet.connectors.task_shares import FixedShares
from dagster_jet.errors import BadRowError, ConfigurationError, SourceError

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("v", pa.int64())])
CHANGES = pa.schema(
    [*SCHEMA, (TYPE, pa.string()), (VERSION, pa.int64()), (TIME, pa.timestamp("us", "UTC"))]
)
FEED = {"delta.enableChangeDataFeed": "true"}
Rows = Counter[tuple[Any, ...]]


def reader(folder: Path, start: Any = 0, position: Any = None) -> DeltaReader:
    read = TableRead(str(folder), str(folder), start, False, (), "")
    made = DeltaReader(read, "j", "in", reads_changes=True)
    if position is not None:
        made.restore(json.loads(json.dumps(position)), None)
    return made


def read_split(reader: DeltaReader, split: tuple[Piece, ...]) -> list[dict[str, Any]]:
    read = ReadPieces(reader.source, FixedShares((split,)), CHANGES)
    batches = read([pa.RecordBatch.from_pylist([{"n": 0}])])
    rows = [row for batch in batches for row in batch.to_pylist()]
    reader.verify(split, len(rows))
    return rows


def as_rows(rows: list[dict[str, Any]]) -> Rows:
    return Counter(tuple(row[name] for name in CHANGES.names) for row in rows)


def by_library(folder: Path, first: int) -> Rows:
    """The library refuses a first version that is not there."""
    table = deltalake.DeltaTable(folder)
    if first > table.version():
        return Counter()
    rows = pa.table(table.load_cdf(starting_version=first)).to_pylist()
    return as_rows([{**row, TIME: row[TIME].replace(tzinfo=timezone.utc)} for row in rows])


class History:
    """Random changes of a table by its writers; keys stay unique."""

    def __init__(self, folder: Path, seed: int, gap: str = "") -> None:
        """`gap`: in values of the partitions; the library does not find change files with it."""
        self.gap = gap
        self.folder, self.rng, self.next_id = folder, random.Random(seed), 0
        by = ["p"] if seed % 2 else None
        deltalake.DeltaTable.create(folder, SCHEMA, partition_by=by, configuration=FEED)

    @property
    def table(self) -> deltalake.DeltaTable:
        return deltalake.DeltaTable(self.folder)

    def rows(self, ids: list[int]) -> pa.Table:
        values = [{"id": n, "p": f"p{self.gap}{n % 3}", "v": self.rng.randrange(9)} for n in ids]
        return pa.Table.from_pylist(values, SCHEMA)

    def new(self, count: int) -> pa.Table:
        self.next_id += count
        return self.rows(list(range(self.next_id - count, self.next_id)))

    def step(self) -> None:
        rng, some = self.rng, f"id % 4 = {self.rng.randrange(4)}"
        partition = f"p = 'p{self.gap}{rng.randrange(3)}'"
        match rng.randrange(9):
            case 0 | 1 | 2:
                deltalake.write_deltalake(self.folder, self.new(rng.randrange(1, 9)), mode="append")
            case 3:
                self.table.delete(rng.choice([some, partition]))
            case 4:
                self.table.update(updates={"v": "v + 10"}, predicate=some)
            case 5:
                self.table.update(updates={"p": f"'p{self.gap}0'"}, predicate=some)
            case 6:
                ids = sorted({rng.randrange(self.next_id + 1) for _ in range(4)})
                found = self.rows([*ids, *range(self.next_id + 1, self.next_id + 3)])
                self.next_id += 3
                (
                    self.table.merge(found, "t.id = s.id", source_alias="s", target_alias="t")
                    .when_matched_delete("s.v < 2")
                    .when_matched_update_all("s.v >= 2")
                    .when_not_matched_insert_all()
                    .execute()
                )
            case 7:
                rows = self.new(3)
                deltalake.write_deltalake(self.folder, rows, mode="overwrite")
            case 8:
                self.table.optimize.compact()


@pytest.mark.parametrize("seed", range(8))
def test_random_histories(tmp_path: Path, seed: int) -> None:
    """Read with restores, in epochs of any size, from any version on."""
    history = History(tmp_path / "t", seed)
    rng, first = random.Random(seed), random.Random(seed).randrange(4)
    one, found = reader(history.folder, first), Counter[tuple[Any, ...]]()
    for _ in range(12):
        for _ in range(rng.randrange(3)):
            history.step()
        one = reader(history.folder, first, one.position())
        one.accept(one.poll())
        for _ in range(rng.randrange(4)):
            if split := one.plan(rng.randrange(1, 9)):
                found += as_rows(read_split(one, split))
                assert not (one._waiting and one._waiting[0].is_joined)
    one.accept(one.poll())
    while split := one.plan(5):
        found += as_rows(read_split(one, split))
    assert found == by_library(history.folder, first)


def test_deletions_come_before_insertions(tmp_path: Path) -> None:
    history = History(tmp_path / "t", 1, gap=" %")
    deltalake.write_deltalake(history.folder, history.new(6), mode="append")
    deltalake.write_deltalake(history.folder, history.rows([1, 2]), mode="overwrite")
    one, kinds = reader(history.folder, 2), []
    one.accept(one.poll())
    while split := one.plan(1):
        kinds += [row[TYPE] for row in read_split(one, split)]
    assert kinds == ["delete"] * 6 + ["insert"] * 2
    history.table.update(updates={"v": "v + 10"}, predicate="id = 1")
    one.accept(one.poll())
    split = one.plan(1)
    assert split is not None
    rows = read_split(one, split)
    assert {(row["id"], row["p"], row[TYPE]) for row in rows} == {
        (1, "p %1", "update_preimage"),
        (1, "p %1", "update_postimage"),
    }


def test_a_new_job_reads_the_contents_as_insertions(tmp_path: Path) -> None:
    history = History(tmp_path / "t", 0)
    deltalake.write_deltalake(history.folder, history.new(4), mode="append")
    history.table.delete("id = 2")
    one = reader(history.folder, "earliest")
    one.accept(one.poll())
    split = one.plan(100)
    assert split is not None
    assert {(r["id"], r[TYPE], r[VERSION]) for r in read_split(one, split)} == {
        (n, "insert", 2) for n in (0, 1, 3)
    }
    when = datetime.fromtimestamp(history.table.history()[0]["timestamp"] / 1000, timezone.utc)
    later = reader(history.folder, when)
    later.accept(later.poll())
    split = later.plan(100)
    assert split is not None and [row[TYPE] for row in read_split(later, split)] == ["delete"]


def test_without_a_feed(tmp_path: Path) -> None:
    deltalake.DeltaTable.create(tmp_path / "t", SCHEMA)
    url = str(tmp_path / "t")
    with pytest.raises(
        SourceError, match=r"version 0 .* no change data feed.*enableChangeDataFeed"
    ):
        sources.delta(url, changes=True).at_start("j", "in", on_one_host=True)
    deltalake.DeltaTable(url).alter.set_table_properties(FEED)
    with pytest.raises(SourceError, match=r"version 0 .* no change data feed"):
        reader(tmp_path / "t", 0).poll()
    one = reader(tmp_path / "t", 1)
    one.accept(one.poll())
    deltalake.DeltaTable(url).alter.set_table_properties(dict.fromkeys(FEED, "false"))
    with pytest.raises(SourceError, match=r"version 2 .* no change data feed"):
        one.poll()
    with pytest.raises(ConfigurationError, match="does not go with changes=True"):
        sources.delta(url, changes=True, deletes="skip")


def test_a_version_that_is_vacuumed_away(tmp_path: Path) -> None:
    history = History(tmp_path / "t", 0)
    deltalake.write_deltalake(history.folder, history.new(4), mode="append")
    one = reader(history.folder, 1)
    one.accept(one.poll())
    history.table.delete("true")
    history.table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    one.accept(one.poll())
    split = one.plan(100)
    assert split is not None
    with pytest.raises(BadRowError, match=r"is gone\..*VACUUM.*job of another name"):
        read_split(one, split)


VECTORS = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["deletionVectors"],
    "writerFeatures": ["deletionVectors", "changeDataFeed", "appendOnly", "invariants"],
}


def test_deletion_vectors_that_are_turned_on_meanwhile(tmp_path: Path) -> None:
    """As Spark deletes then: the same file with a vector, without a change file. Failed before: all
    rows of the file were deleted and inserted again, the deleted one, too."""
    history = History(tmp_path / "t", 0)
    deltalake.write_deltalake(history.folder, history.new(3), mode="append")
    log = history.folder / "_delta_log"
    lines = [json.loads(line) for line in (log / f"{1:020d}.json").read_text().splitlines()]
    (add,) = (line["add"] for line in lines if "add" in line)
    feed, rows = reader(history.folder, "latest"), reader(history.folder, "latest")
    rows.reads_changes = False
    for one in (feed, rows):
        one.accept(one.poll())
    commit_actions(log, 2, {"protocol": VECTORS})
    for one in (feed, rows):
        with pytest.raises(SourceError, match="cannot be read any more: it has the feature"):
            one.poll()
    removed = {**add, "extendedFileMetadata": True}
    vector = {"storageType": "i", "pathOrInlineDv": "x", "sizeInBytes": 1, "cardinality": 1}
    commit_actions(log, 3, {"remove": removed}, {"add": {**add, "deletionVector": vector}})
    with pytest.raises(SourceError, match=r"version 3 .* has a file with a deletion vector"):
        feed._changes.of_version(3)
    commit_actions(log, 4, {"add": {**add, "deletionVector": vector}})
    with pytest.raises(SourceError, match=r"version 4 .* has a file with a deletion vector"):
        rows._changes.of_version(4)


def commit_actions(log: Path, version: int, *actions: Any) -> None:
    text = "\n".join(json.dumps(one) for one in ({"commitInfo": {"timestamp": 1}}, *actions))
    (log / f"{version:020d}.json").write_text(text)
