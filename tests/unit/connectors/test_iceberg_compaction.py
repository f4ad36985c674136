"""Compaction of an Iceberg table, by rows: beside appends, merges, expiry and requests that come
late, and killed."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from contextlib import closing, suppress
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType

from dagster_jet import sources
from dagster_jet.connectors.iceberg.table_version import SNAPSHOTS_KEPT, TableVersion
from dagster_jet.connectors.lake.lake_committer import Change
from dagster_jet.connectors.lake.staged_names import marker_of
from dagster_jet.connectors.lake.table_maintenance import SmallFiles
from tests.long import long

from .delta_table import by, rows, stage
from .iceberg_rows import NAME, by_library, by_manifests, metadata_of, options_at
from .iceberg_table import APPLICATION, Table, commit
from .test_iceberg_merge import KEYED, files, texts, with_deletes

TARGET = 128 << 20
DAY = date(2026, 1, 2)
LATE = re.compile("branch main (has changed|was created)|sequence number")
KEPT = {"history.expire.max-snapshot-age-ms": "0"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path, by=(("day", "identity"),))


def maintain(table: Table, target: int = TARGET) -> dict[str, Any]:
    done = dict(table.sink().maintenance("j", "out").run(0, target))
    assert not done.keys() & {"not_compacted"}, done
    return done


def fill(table: Table, *ids: int, first: int = 1, **options: Any) -> None:
    """Each row is an epoch, and a file of one day."""
    sink = table.sink(**options)
    for epoch, id in enumerate(ids, first):
        commit(sink, stage(sink, rows(id, day=DAY), epoch=epoch), by())


def compacted_files(table: Table) -> set[str]:
    return {path.name for path in (table.folder / "warehouse").rglob("compacted-*")}


def operations(table: Table) -> list[str]:
    return [one["summary"]["operation"] for one in metadata_of(table.folder)["snapshots"]]


def marker(table: Table) -> str:
    found: str = metadata_of(table.folder)["properties"][APPLICATION]
    return found


def test_small_files_of_a_partition_become_one(table: Table) -> None:
    fill(table, *range(1, 9))
    other = stage(table.sink(), rows(90), epoch=9)  # the only one of its partition
    commit(table.sink(), other, by())
    maintenance, before = table.sink().maintenance("j", "out"), marker(table)
    assert maintenance.small_files(TARGET) == SmallFiles(9, 7, TARGET // 4)
    done = maintain(table)
    assert (done["files_added"], done["files_replaced"]) == (1, 8)
    assert maintenance.small_files(TARGET) == SmallFiles(2, 0, TARGET // 4)
    assert sorted(map(len, files(table).values())) == [1, 8]
    assert operations(table)[-1] == "replace" and marker(table) == before
    assert table.ids() == [*range(1, 9), 90]
    summary = metadata_of(table.folder)["snapshots"][-1]["summary"]
    assert (summary["total-records"], summary["total-data-files"]) == ("9", "2")
    again = maintain(table)
    assert (again["files_added"], again["files_replaced"]) == (0, 0)
    assert len(operations(table)) == 10


def test_files_are_packed_up_to_the_target(table: Table) -> None:
    fill(table, *range(1, 9))
    sizes = [path.stat().st_size for path in table.folder.rglob("part-*")]
    assert maintain(table, max(sizes) * 3)["files_replaced"] == 0, "none is below a quarter"
    assert maintain(table, max(sizes) * 5)["files_added"] == 2
    assert sorted(map(len, files(table).values())) == [3, 5] and table.ids() == [*range(1, 9)]


def test_a_late_commit_of_a_dead_driver_is_refused(table: Table) -> None:
    """The snapshot keeps all rows, and the marker of before: only the condition refuses it."""
    fill(table, 1, 2, 3)
    append, upsert = table.sink(), table.sink(**KEYED)
    staged, changed = stage(append, rows(4), epoch=4), stage(upsert, rows(1, text="old"), epoch=4)
    with closing(upsert.open_committer("j", "out")) as dead, table.version() as appending:
        merging = dead.open()
        assert merging is not None
        dead.plan(merging, changed, by())
        maintain(table)
        for late in (
            lambda: appending.append(staged, APPLICATION, marker_of(1, 4), {}).send(),
            lambda: dead.append(Change(merging, changed, APPLICATION, marker_of(1, 4), {})),
        ):
            with pytest.raises(Exception, match=LATE):
                late()
    assert table.ids() == [1, 2, 3] and marker(table) == str(marker_of(1, 3))
    commit(append, staged, by(2))
    commit(append, staged, by(2))
    assert table.ids() == [1, 2, 3, 4]


@pytest.mark.parametrize("what", ["append", "upsert", "lost answer"])
def test_another_commit_comes_first(
    table: Table, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """Files are not written again: they are committed on the snapshot of the other."""
    fill(table, 1, 2, 3)
    for epoch, id in ((4, 31), (5, 32)):
        commit(table.sink(), stage(table.sink(), rows(id, day=None), epoch=epoch), by())
    real, written = TableVersion.compact, list[Any]()

    def after_another(version: TableVersion, *given: Any) -> Exception | None:
        monkeypatch.setattr(TableVersion, "compact", real)
        written.extend(compacted_files(table))
        if what == "append":
            table.append(9)
        elif what == "upsert":
            upsert = table.sink(**KEYED)
            commit(upsert, stage(upsert, rows(2, day=DAY, text="new"), epoch=6), by())
        elif (error := real(version, *given)) is not None:
            return error
        else:
            return ConnectionError("the answer is lost")
        return real(version, *given)

    monkeypatch.setattr(TableVersion, "compact", after_another)
    done = maintain(table)
    wanted = (1, 2) if what == "upsert" else (2, 5)  # the merge has written the files of a day anew
    assert (done["files_added"], done["files_replaced"]) == wanted
    assert compacted_files(table) == set(written) and operations(table).count("replace") == 1
    assert table.ids() == sorted([1, 2, 3, 31, 32, *([9] if what == "append" else [])])
    assert texts(table)[2] == ("new" if what == "upsert" else "row 2")
    maintain(table)
    assert compacted_files(table) == compacted_files(table) & set(files(table))


def test_a_run_that_another_has_overtaken_gives_up(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of the first run go only when none of its requests can land any more."""
    fill(table, 1, 2, 3)
    real, held = SqlCatalog.commit_table, list[Any]()

    def hold(*given: Any) -> Any:
        replaces = any(getattr(one, "snapshot", None) is not None for one in given[3])
        if not replaces:
            return real(*given)
        held.append(given)
        monkeypatch.setattr(SqlCatalog, "commit_table", real)
        first = compacted_files(table)
        second = maintain(table)
        assert (second["files_added"], second["files_replaced"]) == (1, 3)
        assert not compacted_files(table) & first, "no request names them any more"
        raise ConnectionError("no answer")

    monkeypatch.setattr(SqlCatalog, "commit_table", hold)
    done = maintain(table)
    assert (done["files_added"], done["files_replaced"]) == (0, 0) and len(held) == 1
    with pytest.raises(Exception, match=LATE):
        real(*held[0])
    assert table.ids() == [1, 2, 3] and operations(table).count("replace") == 1


def test_files_of_a_dead_run_stay_while_its_request_may_land(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(table, 1, 2, 3)
    held, real = list[Any](), SqlCatalog.commit_table

    def die(*given: Any) -> Any:
        if any(getattr(one, "snapshot", None) is not None for one in given[3]):
            held.append(given)
            raise KeyboardInterrupt
        return real(*given)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(SqlCatalog, "commit_table", die)
        maintain(table)
    assert len(compacted_files(table)) == 1
    SqlCatalog.commit_table(*held[0])  # it lands after all
    assert maintain(table)["files_replaced"] == 0
    assert table.ids() == [1, 2, 3] and operations(table)[-1] == "replace"


@pytest.mark.parametrize(
    "point", [pytest.param("lake.compact.written", marks=long), "lake.compact.after"]
)
def test_killed(table: Table, point: str) -> None:
    """The table has changed completely or not at all; the next run removes what is left."""
    fill(table, *range(1, 6))
    place = options_at(table.folder)
    code = (
        "from dagster_jet import sinks; "
        f"sink = sinks.iceberg('lake', {NAME!r}, catalog_options={place!r}); "
        f"sink.maintenance('j', 'out').run(0, {TARGET})"
    )
    environment = {**os.environ, "JET_FAIL_POINTS": f"{point}=kill"}
    child = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert child.returncode == -signal.SIGKILL, child.stderr.decode()
    left, is_committed = compacted_files(table), point.endswith("after")
    assert table.ids() == [*range(1, 6)] and len(left) == 1
    fill(table, 6, first=6)
    assert maintain(table)["files_replaced"] == (2 if is_committed else 6)
    assert table.ids() == [*range(1, 7)]
    kept = table.folder.rglob("compacted-*")
    assert (left <= {path.name for path in kept}) is is_committed


def test_what_is_not_compacted_is_named(table: Table, tmp_path: Path) -> None:
    fill(table, 1, 2)
    with_deletes(table)
    with table.version() as version:
        done = table.sink().maintenance("j", "out")._compact(version, TARGET)
    assert "files that delete rows" in str(done["not_compacted"]) and not done["files_replaced"]
    schema = pa.schema([("id", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
    made = Table(tmp_path / "nested", schema)
    with made.opened() as opened:
        for id in (1, 2):
            opened.append(pa.Table.from_pylist([{"id": id, "s": {"a": 1}}], schema))
        with opened.update_schema() as columns:
            columns.add_column(("s", "b"), LongType())
    done = made.sink().maintenance("j", "out").run(0, TARGET)
    assert "parts of its column 's' are others" in str(done["not_compacted"])
    assert made.ids() == [1, 2] and not compacted_files(made)


def test_files_of_older_partition_fields_are_left_alone(table: Table) -> None:
    fill(table, 1, 2)
    with table.opened() as opened, opened.update_spec() as spec:
        spec.remove_field("day")
    fill(table, 3, 4, first=3)
    assert table.sink().maintenance("j", "out").small_files(TARGET).small == 1
    assert maintain(table)["files_replaced"] == 2
    assert sorted(map(len, files(table).values())) == [1, 1, 2] and table.ids() == [1, 2, 3, 4]


# --- at random ------------------------------------------------------------------------------------


class Reader:
    """A source that reads the table through all of it, restarted at random."""

    def __init__(self, table: Table) -> None:
        self._table, self._at, self.ids = table, None, list[int]()

    def read(self) -> None:
        place: Any = options_at(self._table.folder)
        made = sources.iceberg("lake", NAME, catalog_options=place)
        with closing(made.at_start("j", "in", on_one_host=True).open("j", "in", None)) as reader:
            if self._at is not None:
                reader.restore(self._at, None)
            reader.accept(reader.poll())
            while split := reader.plan(3):
                for one in split:
                    found = pq.ParquetFile(one.file.path).read()["id"].to_pylist()
                    self.ids += found[one.first : one.end]
            reader.acknowledge(reader.unacknowledged())
            self._at = reader.position()


@pytest.mark.parametrize("seed", [1, *(pytest.param(n, marks=long) for n in range(2, 9))])
def test_appends_compaction_expiry_and_late_requests_at_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Compares rows after each step; a source reads each row once."""
    chance, real = random.Random(seed), SqlCatalog.commit_table
    fields: Any = chance.choice([(), (("day", "identity"),)])
    few = {SNAPSHOTS_KEPT: "2"} if seed % 2 else {}  # the sink expires, too
    table = Table(tmp_path, by=fields, properties={**KEPT, **few})
    sink, reader, wanted = table.sink(), Reader(table), list[int]()
    held, epoch, execution = list[Any](), 0, 1

    def hold(*given: Any) -> Any:
        if not any(getattr(one, "snapshot", None) is not None for one in given[3]):
            return real(*given)
        held.append(given)
        raise KeyboardInterrupt

    def lands_late() -> None:
        """Requests of dead drivers and of dead runs: each is refused, or changes no row."""
        for request in held:
            if request in landed:
                continue
            try:
                real(*request)
                landed.append(request)
            except Exception as error:
                assert LATE.search(str(error)), error

    landed = list[Any]()
    for _ in range(14):
        what = chance.choice(["append", "append", "other", "late", "dead", "maintain", "maintain"])
        if what == "other":
            wanted.append(1000 + epoch)
            table.append(1000 + epoch)
        elif what == "maintain":
            maintain(table, chance.choice([TARGET, 12_000]))
        elif what == "dead" and wanted:
            with monkeypatch.context() as patched, suppress(KeyboardInterrupt):
                patched.setattr(SqlCatalog, "commit_table", hold)
                maintain(table)
            if chance.random() < 0.5:
                lands_late()
        else:
            epoch += 1
            ids = [epoch * 10 + n for n in range(chance.randrange(1, 4))]
            staged = stage(sink, rows(*ids, day=DAY), epoch=epoch, execution=execution)
            if what == "late":  # decided; the driver dies with its request on the way
                with (
                    table.version() as dead,
                    suppress(KeyboardInterrupt),
                    monkeypatch.context() as p,
                ):
                    p.setattr(SqlCatalog, "commit_table", hold)
                    dead.append(staged, APPLICATION, marker_of(1, epoch), {}).send()
                execution += 1
                if chance.random() < 0.5:
                    maintain(table)  # the staged files stay
            commit(sink, staged, by(execution))
            wanted += ids
        if chance.random() < 0.7:
            lands_late()
        if chance.random() < 0.4:
            reader.read()
        for read in (by_manifests, by_library):
            assert sorted(row["id"] for row in read(tmp_path)) == sorted(wanted), (seed, what)
        if epoch:
            assert marker(table) == str(marker_of(1, epoch))
    reader.read()
    assert sorted(reader.ids) == sorted(wanted)
