"""Rows that a table never takes: found before they are decided, and got rid of where they are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import Jet, JobConfig, Pipeline, Secret, sinks, sources
from dagster_jet.errors import JetError
from dagster_jet.events import OutputRefused
from dagster_jet.system import failpoint
from tests.integration.connectors.secret_urls import as_secret
from tests.integration.connectors.sql_job import SqliteDatabase
from tests.long import long, long_but_for
from tests.servers.mariadb import mariadb
from tests.servers.postgres import PASSWORD, postgres

SCHEMA = "id long, parent long, text string"


class Place:
    """Files, a database and a job that can be started again and again."""

    def __init__(self, folder: Path, spark: Any, kind: str) -> None:
        servers: dict[str, Any] = {"postgresql": postgres, "mariadb": mariadb}
        self.folder, self.spark = folder, spark
        self.database = servers[kind]() if kind in servers else SqliteDatabase(folder / "a.db")
        self.url: Secret = as_secret(self.database.url)
        spark.sparkContext.environment[self.url.env] = self.database.url
        (folder / "in").mkdir()
        self.events: list[Any] = []

    def put(self, name: str, *rows: dict[str, Any]) -> None:
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (self.folder / f".{name}").write_text(text)
        (self.folder / f".{name}").rename(self.folder / "in" / f"{name}.json")

    def pipeline(self, *, letters: bool = True, **sql: Any) -> Pipeline:
        p = Pipeline("refused")
        source = sources.files(f"{self.folder}/in", format="json", schema=SCHEMA)
        rows = p.read_from(source, name="rows")
        out = rows.write_to(sinks.sql(self.url, table="results", **sql), name="out")
        if letters:
            out.dead_letter_to(sinks.files(f"{self.folder}/refused", format="json"), name="refused")
        return p

    def run(self, pipeline: Pipeline, **options: Any) -> Any:
        store, work_dir = [f"file://{self.folder}/store"], str(self.folder / "work")
        with Jet(store, backup_count=0, work_dir=work_dir) as jet:
            config = JobConfig(restart_attempts_max=0, snapshot_interval="0 ms")
            return jet.run(
                pipeline, config, until="drained", on_event=self.events.append, **options
            )

    def ids(self) -> list[int]:
        return sorted(row[0] for row in self.database.run("select id from results"))

    def refused(self) -> Counter[int]:
        """Refused rows of committed epochs, by the markers."""
        found: Counter[int] = Counter()
        for marker in sorted((self.folder / "refused" / "_epochs").glob("[0-9]*.json")):
            for file in json.loads(marker.read_text())["files"]:
                lines = (self.folder / "refused" / file["name"]).read_text().splitlines()
                found.update(json.loads(json.loads(line)["raw"])["id"] for line in lines)
        return found


@pytest.fixture
def place(tmp_path: Path, spark: Any) -> Iterator[Any]:
    yield lambda kind: Place(tmp_path, spark, kind)


def row(id: int, text: str | None = "a", parent: int | None = None) -> dict[str, Any]:
    return {"id": id, "parent": parent, "text": text}


def test_a_row_that_is_never_taken_is_found_before_it_is_decided(place: Any) -> None:
    # Failed before: the epoch was decided, and no start could commit it.
    at: Place = place("postgresql")
    at.database.run("create table results (id bigint not null, parent bigint, text varchar(5))")
    at.put("1", row(1), row(2, "\0"), row(3, "too long"))
    with pytest.raises(JetError) as told:
        at.run(at.pipeline(letters=False))
    says = str(told.value)
    assert "'out'" in says and "text has a zero byte, which PostgreSQL refuses" in says
    assert "dead_letter_to(sink, name=...)" in says and PASSWORD not in says
    assert at.ids() == []
    at.run(at.pipeline())
    assert at.ids() == [1] and at.refused() == Counter([2, 3])


@pytest.mark.parametrize("kind", long_but_for(["postgresql", "mariadb", "sqlite"], "postgresql"))
def test_what_only_the_database_knows_is_got_rid_of_by_name(place: Any, kind: str) -> None:
    # Failed before: every start tried the same commit again.
    at: Place = place(kind)
    text = "varchar(9)" if kind == "mariadb" else "text"
    at.database.run(
        f"create table results (id bigint, parent bigint, text {text}, check (mod(id, 5) <> 3))"
    )
    at.put("1", *map(row, range(20)))
    with pytest.raises(JetError, match=r"refused_to_dead_letters=True"):
        at.run(at.pipeline(letters=False))
    with pytest.raises(JetError, match="has no dead-letter sink"):
        at.run(at.pipeline(letters=False), refused_to_dead_letters=True)
    assert at.ids() == []
    for step in (
        "sql.commit.rows", "sql.commit.after", "sql.refused.deliver", "sql.refused.delivered",
    ):  # fmt: skip
        failpoint.configure(f"{step}=raise")
        try:
            with pytest.raises(JetError):
                at.run(at.pipeline(), refused_to_dead_letters=True)
        finally:
            failpoint.configure("")
    at.put("2", row(100), row(101))
    at.run(at.pipeline())
    assert at.ids() == [n for n in range(20) if n % 5 != 3] + [100, 101]
    assert at.refused() == Counter([3, 8, 13, 18])
    told = [event for event in at.events if isinstance(event, OutputRefused)]
    assert {(one.sink, one.rows, one.dead_letter_sink) for one in told} == {("out", 4, "refused")}


@pytest.mark.parametrize(
    ("kind", "order_by"),
    [
        ("postgresql", "parent"),
        pytest.param("mariadb", "parent", marks=long),
        ("sqlite", None),
        pytest.param("postgresql", None, marks=long),
        pytest.param("mariadb", None, marks=long),
        pytest.param("sqlite", "parent", marks=long),
    ],
)
def test_a_refused_row_of_an_upsert_does_not_stand_for_its_key(
    place: Any, kind: str, order_by: str | None
) -> None:
    """Failed before: keys 1 and 3 were not written at all."""
    at: Place = place(kind)
    at.database.run(
        "create table results (id bigint primary key, parent bigint, text varchar(9) not null)"
    )
    at.put(
        "1",
        row(1, "old", 1),
        row(1, "good", 2),
        row(1, None, 3),
        row(2, None, 4),
        row(2, "later", 5),
        row(3, "first", 6),
        row(3, None, 7),
        row(3, None, 8),
        row(4, None, 9),
    )
    at.run(at.pipeline(mode="upsert", key=["id"], order_by=order_by))
    rows = sorted(map(tuple, at.database.run("select id, text from results")))
    assert rows == [(1, "good"), (2, "later"), (3, "first")]
    assert at.refused() == Counter([1, 2, 3, 3, 4])


def test_what_only_the_database_refuses_leaves_its_key_as_it_was(place: Any) -> None:
    """`docs/guarantees.md`: of the epoch's rows of a key only the newest one is decided."""
    at: Place = place("postgresql")
    at.database.run(
        "create table results (id bigint primary key, parent bigint, text text, "
        "check (text <> 'bad'))"
    )
    upsert = at.pipeline(mode="upsert", key=["id"])
    at.put("1", row(1, "before"))
    at.run(upsert)
    at.put("2", row(1, "good"), row(1, "bad"), row(2, "good"))
    with pytest.raises(JetError, match="refused_to_dead_letters"):
        at.run(upsert)
    at.run(upsert, refused_to_dead_letters=True)
    rows = sorted(map(tuple, at.database.run("select id, text from results")))
    assert rows == [(1, "before"), (2, "good")]
    assert at.refused() == Counter([1])


@pytest.mark.parametrize("kind", long_but_for(["postgresql", "mariadb"], "postgresql"))
def test_a_table_may_refer_to_one_of_the_same_job(place: Any, kind: str) -> None:
    """Failed before, where the child's sink was first: "violates foreign key constraint"."""
    at: Place = place(kind)
    at.database.run("create table parents (id bigint primary key)")
    at.database.run("create table results (id bigint primary key, parent bigint, text varchar(9), "
                    "foreign key (parent) references parents (id))")  # fmt: skip
    p = at.pipeline()
    [source] = [node.name for node in p.graph.sources]
    assert source == "rows"
    at.put("1", row(1, parent=1), row(2, parent=2))

    def both() -> Pipeline:
        p = Pipeline("refused")
        files = sources.files(f"{at.folder}/in", format="json", schema=SCHEMA)
        rows = p.read_from(files, name="rows")
        rows.write_to(sinks.sql(at.url, table="results"), name="a_child")
        parents = rows.select("parent as id").filter("id < 10")
        parents.write_to(sinks.sql(at.url, table="parents"), name="b_parent")
        return p

    at.run(both())
    assert at.ids() == [1, 2]
    at.put("2", row(3, parent=10))
    with pytest.raises(JetError, match="foreign key"):
        at.run(both())


def test_a_sink_whose_rows_spark_knows_to_be_none_refuses_none(place: Any) -> None:
    # Failed before: Spark starts no task for such rows, and the dead letters were waited for.
    at: Place = place("sqlite")
    for table in ("results", "others"):
        at.database.run(f"create table {table} (id bigint, parent bigint, text text)")
    at.put("1", row(1))
    p = at.pipeline()
    other = sources.files(f"{at.folder}/in", format="json", schema=SCHEMA)
    rows = p.read_from(other, name="again").filter("1 = 0")
    none = rows.write_to(sinks.sql(at.url, table="others"), name="none")
    none.dead_letter_to(sinks.files(f"{at.folder}/none", format="json"), name="none_refused")
    at.run(p)
    assert at.ids() == [1] and at.refused() == Counter()
