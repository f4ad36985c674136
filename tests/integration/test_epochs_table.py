"""A reader that has only the lake finds one cut of all tables of a job, whoever dies meanwhile."""

from __future__ import annotations

import importlib.util
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import polars
import pytest
from deltalake.exceptions import TableNotFoundError

from dagster_jet import JobConfig, JobResult
from dagster_jet.execution.events import CutNotWritten, SnapshotCommitted
from dagster_jet.snapshot.record import JobStatus
from tests.long import long
from tests.servers import duckdb_reader
from tests.unit.connectors.iceberg_rows import options_at

from . import child, epochs_child
from .crash_table import EPOCHS_KILLED
from .oracle import Rows, input_rows
from .world import World, wait_until

if TYPE_CHECKING:
    import pyarrow as pa

DOCS = Path(__file__).parents[2] / "docs"
METADATA = "/lake/flights/late/metadata/00042-....metadata.json"
EXAMPLE = DOCS / "examples" / "one_cut.py"
TABLES: dict[str, Callable[[Rows], Rows]] = {
    "all_out": lambda rows: rows,
    "big_out": lambda rows: Counter({r: n for r, n in rows.items() if r[2] >= child.BIG}),
    "doubled_out": lambda rows: Counter({(k, t, 2 * v): n for (k, t, v), n in rows.items()}),
}
"""Rows of each sink's table that follow from those of the first one, by sink."""


def read_cut() -> Callable[..., dict[str, pa.Table]]:
    """The reader that the page shows."""
    code = EXAMPLE.read_text("utf-8")
    assert f"```python\n{code}```\n" in (DOCS / "connectors" / "delta.md").read_text("utf-8")
    spec = importlib.util.spec_from_file_location("one_cut", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Callable[..., dict[str, pa.Table]] = module.read_cut
    return found


def sql_of_page() -> list[str]:
    """The statements that the page shows for DuckDB."""
    page = (DOCS / "connectors" / "delta.md").read_text("utf-8")
    (block,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    return [statement.strip() for statement in block.split(";\n") if statement.strip()]


def filled(statement: str, values: Mapping[str, Any]) -> str:
    """The statement of a page, about a test's own tables."""
    for shown, own in values.items():
        assert statement.count(shown) == 1, (shown, statement)
        statement = statement.replace(shown, str(own))
    return statement


def as_rows(rows: Iterable[Mapping[str, Any]]) -> Rows:
    return Counter((row["k"], row["ts"], row["v"]) for row in rows)


class EpochsWorld(World):
    """A world whose outputs are lake tables, and a table that names their versions."""

    driver = staticmethod(epochs_child.main)

    @property
    def epochs(self) -> Path:
        return self.folder / "out" / "epochs"

    def wanted(self) -> Rows:
        return Counter((r["k"], r["ts"], r["v"]) for r in input_rows(self.folder / "in" / "left"))

    def cut(self) -> list[dict[str, Any]]:
        table = deltalake.DeltaTable(self.epochs).to_pyarrow_table()
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def go_on(
        self, until: str = "completed", epochs: Path | None = None, guarantee: str = "exactly-once"
    ) -> JobResult:
        config = JobConfig(**{**child.CONFIG, "guarantee": guarantee})
        with self.jet(epochs_table=str(epochs or self.epochs)) as jet:
            pipeline = epochs_child.pipeline(self.folder)
            return jet.run(pipeline, config, until=until, on_event=self.see)


@pytest.fixture
def epochs_world(world: World) -> EpochsWorld:
    return EpochsWorld(world.folder, world.fail_points, world.spark)


@dataclass
class Reader:
    """Looks at the cut as fast as it can, by the function of the page."""

    world: EpochsWorld
    looks: int = 0
    seen: list[Rows] = field(default_factory=list)
    """The rows of the first table, as they grew."""
    failures: list[BaseException] = field(default_factory=list)

    @contextmanager
    def looking(self) -> Iterator[None]:
        is_over = threading.Event()
        read = read_cut()

        def look() -> None:
            try:
                while not is_over.wait(0.05):
                    self.look(read)
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            assert not self.failures, self.failures

    def look(self, read: Callable[..., dict[str, pa.Table]]) -> None:
        try:
            place = options_at(self.world.folder / "lake")
            found = read(str(self.world.epochs), child.JOB, **place)
        except TableNotFoundError:
            return
        if not found:
            return  # the starting positions
        rows = {sink: as_rows(table.to_pylist()) for sink, table in found.items()}
        of_all = rows["all_out"]
        self.check(rows, of_all)
        self.looks += 1
        if not self.seen or of_all != self.seen[-1]:
            assert not (self.seen[-1] if self.seen else Counter()) - of_all, "it went back"
            self.seen.append(of_all)

    @staticmethod
    def check(rows: Mapping[str, Rows], of_all: Rows) -> None:
        wanted = {sink: derive(of_all) for sink, derive in TABLES.items()}
        assert {s: r for s, r in wanted.items() if r} == rows, "a mixed cut"


@long  # a mixed cut is looked for in test_joint_commits.py, too
@pytest.mark.parametrize("deaths", EPOCHS_KILLED, ids=lambda it: "-".join(it))
def test_a_reader_sees_no_mixed_cut(epochs_world: EpochsWorld, deaths: tuple[str, ...]) -> None:
    here, reader = epochs_world, Reader(epochs_world)
    here.fill(files=12)  # some are left for each start
    with reader.looking():
        for rules in deaths:
            here.run_child(f"{rules}=kill", until="drained")
        assert here.go_on().status is JobStatus.COMPLETED
        has_all = lambda: reader.seen[-1:] == [here.wanted()]  # noqa: E731
        wait_until(lambda: has_all() or bool(reader.failures), "the reader sees all rows")
    assert len(reader.seen) > 2 and not here.events_of(CutNotWritten)
    newest = here.events_of(SnapshotCommitted)[-1]
    cut = here.cut()
    assert {(at["epoch"], at["snapshot"]) for at in cut} == {(newest.epoch_id, newest.snapshot_id)}
    assert [at["sink"] for at in cut] == list(TABLES), "files have no versions"
    # Readers that nobody here wrote.
    at = {one["sink"]: one for one in cut}
    of_all, doubled = at["all_out"], at["doubled_out"]
    frame = polars.scan_delta(of_all["location"], version=of_all["version"])
    assert as_rows(frame.collect().to_dicts()) == here.wanted()
    of_job, of_delta, of_iceberg = sql_of_page()
    rows = duckdb_reader.rows_of(
        filled(of_job, {"/lake/epochs": here.epochs, "flights": child.JOB})
    )
    at = {row["sink"]: row for row in rows}
    place = {"/lake/late_flights": at["all_out"]["location"], "42": at["all_out"]["version"]}
    assert as_rows(duckdb_reader.rows_of(filled(of_delta, place))) == here.wanted()
    place = {METADATA: doubled["location"], "6301834275630918340": doubled["snapshot_id"]}
    found = as_rows(duckdb_reader.rows_of(filled(of_iceberg, place)))
    assert found == TABLES["doubled_out"](here.wanted())


@long  # a driver that sleeps is in test_crashes.py
def test_a_dead_drivers_cut_comes_too_late(epochs_world: EpochsWorld) -> None:
    """It has looked at the table, and sleeps: meanwhile another driver writes later cuts."""
    here = epochs_world
    here.fill(files=6)
    with here.asleep("epochs.write.before:2", until="drained"):
        assert here.go_on().status is JobStatus.COMPLETED
        cut, versions = here.cut(), deltalake.DeltaTable(here.epochs).version()
    assert here.cut() == cut and deltalake.DeltaTable(here.epochs).version() == versions
    assert {at["epoch"] for at in cut} == {here.events_of(SnapshotCommitted)[-1].epoch_id}


def test_a_place_that_fails_does_not_stop_the_job(epochs_world: EpochsWorld) -> None:
    here = epochs_world
    here.fill(files=3)
    (here.folder / "file").write_text("")
    nowhere = here.folder / "file" / "epochs"
    here.go_on("drained", epochs=nowhere)
    assert len(here.events_of(SnapshotCommitted)) >= 2
    told = here.events_of(CutNotWritten)
    assert told and "Not a directory" in told[-1].reason and told[-1].failures == len(told)
    # The next start writes the newest cut, although there is nothing to commit.
    assert here.go_on().status is JobStatus.COMPLETED
    assert {at["epoch"] for at in here.cut()} == {here.events_of(SnapshotCommitted)[-1].epoch_id}


def test_a_job_that_is_not_exactly_once_has_no_cut(epochs_world: EpochsWorld) -> None:
    here = epochs_world
    here.fill(files=2)
    assert here.go_on(guarantee="at-least-once").status is JobStatus.COMPLETED
    assert (here.folder / "out" / "all").is_dir() and not here.epochs.exists()
    assert not here.events_of(CutNotWritten)
