"""Several Iceberg tables of one job show one cut, whoever dies meanwhile."""

from __future__ import annotations

import http.client
import json
import threading
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyiceberg.catalog import load_catalog

from dagster_jet.connectors.lake.staged_names import Owner
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.failpoints import FailPoints
from tests.integration import joint_child
from tests.integration.crash_table import JOINT_KILLED, Crash
from tests.integration.joint_child import TABLES
from tests.integration.oracle import Rows, input_rows
from tests.integration.test_delta import TableWorld
from tests.integration.world import write_input
from tests.long import long, long_but_for
from tests.servers import iceberg_catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AUTHORIZED = {"Authorization": f"Bearer {iceberg_catalog.TOKEN}"}
Cut = dict[str, int]
"""Rows by table."""


class JointWorld(TableWorld):
    """A world whose outputs are tables of a REST catalog, with the same rows."""

    driver = staticmethod(joint_child.main)
    pipeline = staticmethod(joint_child.joint_pipeline)

    def at(self, kind: str = "joint") -> JointWorld:
        """`kind`: of the catalog."""
        self.server = iceberg_catalog.rest_catalog()
        self.space = f"s{uuid.uuid4().hex}"
        options = {"type": "rest", "uri": self.server.uri, "warehouse": kind}
        kept = {"options": options, "space": self.space}
        (self.folder / "catalog.json").write_text(json.dumps(kept))
        return self

    def send(self, files: int, rows: int = 5, first: int = 0) -> None:
        for file in range(first, first + files):
            ids = range(file * rows, (file + 1) * rows)
            write_input(self.folder / "in", file, [{"id": n, "text": f"row {n}"} for n in ids])

    def expected(self) -> dict[str, Rows]:
        rows = Counter((row["id"], row["text"]) for row in input_rows(self.folder / "in"))
        return dict.fromkeys(TABLES, rows)

    def committed(self) -> dict[str, Rows]:
        found: dict[str, Rows] = {}
        with closing(load_catalog("lake", **self.server.options)) as catalog:
            for name in TABLES:
                table = f"{self.space}.{name}"
                rows = (
                    catalog.load_table(table).scan().to_arrow().to_pylist()
                    if catalog.table_exists(table)
                    else []
                )
                found[name] = Counter((row["id"], row["text"]) for row in rows)
        return found

    def newest_marker(self, sink: str, owner: Owner) -> int:
        with closing(load_catalog("lake", **self.server.options)) as catalog:
            table = catalog.load_table(f"{self.space}.{sink.removesuffix('_out')}")
            return int(table.properties.get(owner.application(repeatable=False), 0))

    def markers(self) -> set[int]:
        with self.jet() as jet:
            home = (jet.store.store_id, jet.store.config.namespace)
        sinks = [f"{name}_out" for name in TABLES]
        return {self.newest_marker(sink, Owner(*home, self.job, sink)) for sink in sinks}


@dataclass
class Reader:
    """A client that looks at all tables as fast as it can."""

    world: JointWorld
    looks: int = 0
    cuts: set[int] = field(default_factory=set)
    """Numbers of rows that all tables had at once."""
    mixed: list[Cut] = field(default_factory=list)

    @contextmanager
    def looking(self) -> Iterator[None]:
        is_over = threading.Event()
        failures: list[Exception] = []

        def look() -> None:
            try:
                while not is_over.is_set():
                    self.look()
            except Exception as error:
                failures.append(error)

        self._client = http.client.HTTPConnection("127.0.0.1", self.world.server.port)
        thread = threading.Thread(target=look)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._client.close()
        assert not failures, failures

    def look(self) -> None:
        """One request, so that it sees all tables at one moment."""
        self._client.request("GET", f"/v1/looks/{self.world.space}", headers=AUTHORIZED)
        answer = self._client.getresponse()
        text = answer.read()
        found: Cut = json.loads(text) if answer.status == 200 else {}
        if found.keys() != TABLES.keys():
            return  # before the job's first start
        self.looks += 1
        totals = set(found.values())
        if len(totals) == 1:
            self.cuts |= totals
        else:
            self.mixed.append(found)


@pytest.fixture
def world(
    tmp_path: Path,
    spark: SparkSession,
    fail_points: FailPoints,
    monkeypatch: pytest.MonkeyPatch,
) -> JointWorld:
    monkeypatch.setenv("LAKE_TOKEN", iceberg_catalog.TOKEN)
    return JointWorld(tmp_path, fail_points, spark)


@long  # one looks while the driver dies below
@pytest.mark.timeout(1800)
def test_a_reader_sees_no_mixed_cut(world: JointWorld) -> None:
    """Tables with many snapshots are read more slowly, so each round has new ones."""
    looks, cuts = 0, list[int]()
    while looks < 10_000:
        (folder := world.folder / str(len(cuts))).mkdir()
        one = JointWorld(folder, world.fail_points, world.spark).at()
        one.send(15)
        reader = Reader(one)
        with reader.looking():
            assert one.run("drained").status is JobStatus.DRAINED
        assert not reader.mixed, f"{len(reader.mixed)} of {reader.looks}: {reader.mixed[:2]}"
        one.assert_exactly_once()
        assert len(one.markers()) == 1
        looks, cuts = looks + reader.looks, [*cuts, len(reader.cuts)]
    print(f"{looks} looks, cuts seen in each round: {cuts}")
    assert max(cuts) > 3, "it has looked between commits"


@long  # it shows what catalogs without joint commits do
@pytest.mark.parametrize("kind", ["single", "lost"])
def test_tables_that_are_committed_one_by_one_show_mixed_cuts(
    world: JointWorld, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader would see them. The catalog has not the request, and the job says so once."""
    reader = Reader(world.at(kind))
    world.send(15)
    with reader.looking():
        assert world.run("drained").status is JobStatus.DRAINED
    print(f"{reader.looks} looks, {len(reader.mixed)} of mixed cuts")
    assert reader.mixed
    said = [one for one in caplog.messages if "in one step" in one]
    assert len(said) == 1 and f"{world.space}.keyed" in said[0], said
    world.assert_exactly_once()


@pytest.mark.parametrize("crash", long_but_for(JOINT_KILLED, "F9-lake.together.after"), ids=str)
def test_killed(world: JointWorld, crash: Crash) -> None:
    world.at().send(5)
    reader = Reader(world)
    with reader.looking():
        world.run_child(crash.rules, sharded=crash.sharded)
        world.assert_nothing_doubled()
        assert len(world.markers()) == 1
        world.assert_ledger_is_true()
        assert world.run().status is JobStatus.COMPLETED
    assert not reader.mixed and reader.looks
    assert len(world.markers()) == 1
    world.assert_exactly_once()
