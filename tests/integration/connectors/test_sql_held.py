"""Held transactions of real servers: PREPARE TRANSACTION of PostgreSQL, XA of MariaDB.

The names of the first tests are what seed 002 says of transactional connectors.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    Reaction,
    SinkError,
    SinkUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.testing.check_sink import check_sink
from tests.integration.connectors.late_commit import commit_until_done
from tests.integration.connectors.sql_places import COLUMNS, MadeSink, all_rows, without
from tests.integration.world import wait_until
from tests.long import long
from tests.servers import SharedServer, launch, own_folder, shared_server, stop
from tests.servers import mariadb as maria_server
from tests.servers import postgres as postgres_server
from tests.servers.proxy import Proxy

JOB, STAGE = "check_sink", "out"
SERVERS = {"postgresql": postgres_server, "mariadb": maria_server}
KINDS = pytest.mark.parametrize("kind", list(SERVERS))


class Held:
    """A table, and what an execution does to it."""

    def __init__(self, folder: Path, kind: str, database: Any) -> None:
        self.kind, self.database = kind, database
        columns = COLUMNS[kind].replace(" primary key", "")
        database.run(f"create table results ({columns})")
        self.make = MadeSink.of(folder, database.url, transactions="held", writers=3)
        self.sink = self.make()
        self.sink.check(JOB, STAGE, is_new_job=True)

    def writer(self, epoch: int, *, execution: int = 1, shard: int = 0, attempt: str = "a") -> Any:
        id = TransactionId(JOB, STAGE, 1, execution, epoch, shard, attempt)
        return self.sink.open_writer(id)

    def prepared(self, epoch: int, *ids: int, execution: int = 1, **more: Any) -> list[Artifact]:
        writer = self.writer(epoch, execution=execution, **more)
        writer.write(pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())}))
        found = list(writer.prepare())
        writer.close()
        return found

    def commit(self, artifacts: list[Artifact], execution: int = 1, **more: Any) -> None:
        committer = self.sink.open_committer(JOB, STAGE)
        committer.commit(artifacts, replace(self.context(execution), **more))
        committer.close()

    def abort_orphans(self, execution: int) -> int:
        committer = self.sink.open_committer(JOB, STAGE)
        found = committer.abort_orphans(self.context(execution), ())
        committer.close()
        return int(found)

    def context(self, execution: int) -> CommitContext:
        return CommitContext(JOB, STAGE, 1, execution, recovering=True)

    def ids(self) -> list[int]:
        return [id for (id,) in self.database.run("select id from results order by id")]

    def left(self) -> list[str]:
        """Names of this table's prepared transactions, as the server lists them."""
        if self.kind == "postgresql":
            asked = "select gid from pg_prepared_xacts where database = current_database()"
            return [gid for (gid,) in self.database.run(asked)]
        names = [row[3].decode() for row in self.database.run("xa recover")]
        noted = self.database.run("select transaction from dagster_jet_held")
        return [name for name in names if (name.removeprefix("jet."),) in noted]


@pytest.fixture
def held(tmp_path: Path, kind: str) -> Iterator[Held]:
    server = SERVERS[kind]
    found = Held(tmp_path, kind, server.new_database(shared_server(kind, server.prepared)))
    yield found
    found.make.close()


@KINDS
def test_t1_begins_while_t0_is_undecided(held: Held) -> None:
    t0 = held.prepared(1, 10)
    t1 = held.writer(2)
    t1.write(pa.RecordBatch.from_pydict({"id": pa.array([20], pa.int64())}))
    assert held.ids() == [], "neither is visible"
    held.commit(t0)
    assert held.ids() == [10], "T0 is, while T1 is written"
    decided = list(t1.prepare())
    t1.close()
    t2 = held.prepared(3, 30)  # under T0's id: a pool of two
    held.commit(decided)
    held.commit(t2)
    assert held.ids() == [10, 20, 30] and held.left() == []


@KINDS
@pytest.mark.parametrize(
    "how",
    [
        pytest.param(signal.SIGTERM, marks=long, id="stopped"),
        pytest.param(signal.SIGKILL, id="killed"),
    ],
)
def test_commit_after_restart(tmp_path: Path, kind: str, how: int) -> None:
    """The server of a prepared transaction stops, or is killed, and starts again."""
    server, folder = SERVERS[kind], own_folder(kind)
    running = launch(kind, folder, server.prepared(folder))
    try:
        held = Held(tmp_path, kind, server.new_database(running))
        t0, undecided = held.prepared(1, 10, 11), held.prepared(2, 20)
        stop(running, how)
        with pytest.raises(SinkError, match="cannot be written now"):
            held.commit(t0, execution=2)
        running = launch(kind, folder, server.prepared(folder))
        held.commit(t0, execution=2)
        assert held.abort_orphans(execution=2) == len(undecided)
        assert held.ids() == [10, 11] and held.left() == []
        held.make.close()
    finally:
        stop(running)


@KINDS
def test_a_server_that_comes_back_older_is_given_no_later_epoch(tmp_path: Path, kind: str) -> None:
    """Both transactions are prepared in the copy. The job has committed the first one since."""
    server, folder, copy = SERVERS[kind], own_folder(kind), own_folder(kind) / "copy"

    def restarted(old: SharedServer, *commands: list[str]) -> SharedServer:
        stop(old, signal.SIGKILL)
        for command in commands:
            subprocess.run(command, check=True)
        return launch(kind, folder, server.prepared(folder))

    running = launch(kind, folder, server.prepared(folder))
    try:
        held = Held(tmp_path, kind, server.new_database(running))
        first, second = held.prepared(1, 10), held.prepared(2, 20)
        running = restarted(running, ["cp", "-a", str(folder), str(copy)])
        committer = held.sink.open_committer(JOB, STAGE)
        commit_until_done(committer, first, held.context(1))
        assert held.ids() == [10]
        back = ["rm", "-r", str(folder)], ["cp", "-a", str(copy), str(folder)]
        running = restarted(running, *back)
        with pytest.raises(SinkUnavailableError):  # the connection has ended with the server
            committer.commit(second, held.context(1))
        with pytest.raises(SinkError, match="and its marker is gone") as raised:
            committer.commit(second, held.context(1))
        assert raised.value.reaction is Reaction.RESTART
        assert held.ids() == [] and len(held.left()) == 2
        starting = held.sink.open_committer(JOB, STAGE)
        assert not starting.has_committed(first, replace(held.context(2), owns_job=True))
        for one in (starting, committer, held.make):
            one.close()
    finally:
        stop(running)


@KINDS
def test_ids_not_in_the_snapshot_are_rolled_back(held: Held) -> None:
    decided = [*held.prepared(1, 10), *held.prepared(1, 11, shard=2)]
    held.prepared(2, 20)
    held.prepared(2, 21, shard=2)
    held.commit(decided, execution=2)
    assert held.abort_orphans(execution=2) == 2
    assert held.ids() == [10, 11] and held.left() == []


def test_a_recover_that_lists_nothing_is_survived_by_probing(tmp_path: Path) -> None:
    """Transactions exist and hold locks, but no list has them, as Artemis does in the seed."""
    database = postgres_server.postgres()
    database.run("create schema shadow")
    database.run(
        "create view shadow.pg_prepared_xacts as select * from pg_catalog.pg_prepared_xacts limit 0"
    )
    path = "?options=-csearch_path%3Dshadow,public,pg_catalog"
    blind = type(database)(database.port, database.name + path)
    database.run(f"alter database {database.name} set search_path = shadow, public, pg_catalog")
    held = Held(tmp_path, "postgresql", blind)
    decided, _ = held.prepared(1, 10), held.prepared(2, 20)
    assert held.left() == [], "the list is empty"
    truth = "select count(*) from pg_catalog.pg_prepared_xacts where database = current_database()"
    assert database.run(truth) == [(2,)]
    held.commit(decided, execution=2)
    assert held.abort_orphans(execution=2) == 1
    assert held.ids() == [10] and database.run(truth) == [(0,)]
    held.make.close()


@pytest.fixture
def blind_mariadb() -> Iterator[None]:
    """`XA RECOVER` answers with a transaction of a stranger alone."""
    import sqlalchemy as sa

    def blind(c: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> tuple[str, Any]:
        is_list = statement == "xa recover"
        return ("select 1, 8, 0, 'stranger'" if is_list else statement), parameters

    sa.event.listen(sa.engine.Engine, "before_cursor_execute", blind, retval=True)
    yield
    sa.event.remove(sa.engine.Engine, "before_cursor_execute", blind)


@pytest.mark.parametrize("kind", ["mariadb"])
def test_an_xa_recover_that_leaves_ours_out_is_survived_by_probing(
    held: Held, blind_mariadb: None
) -> None:
    decided, _ = held.prepared(1, 10), held.prepared(2, 20)
    assert len(held.left()) == 2
    held.commit(decided, execution=2)
    assert held.abort_orphans(execution=2) == 1
    assert held.ids() == [10] and held.left() == []


@pytest.mark.parametrize("kind", ["mariadb"])
def test_a_transaction_that_is_a_connections_own_is_not_taken_for_lost(
    held: Held, blind_mariadb: None
) -> None:
    """MariaDB gives it to nobody else meanwhile, and is silent about it here."""
    import pymysql

    name, database = held.writer(1)._name, held.database
    connection = pymysql.connect(
        host="127.0.0.1", port=database.port, user=database.user, password=database.password,
        database=database.name, autocommit=True,
    )  # fmt: skip
    with connection.cursor() as cursor:
        note = f"'{name}', '{name.partition('.')[0]}', '{JOB}', '{STAGE}', 1, 1"
        for statement in (
            f"insert into dagster_jet_held values ({note}, false)",
            f"xa start 'jet.{name}'",
            "insert into results (id) values (10)",
            "update dagster_jet_held set is_committed = true",
            f"xa end 'jet.{name}'",
            f"xa prepare 'jet.{name}'",
        ):
            cursor.execute(statement)
    decided = [Artifact(STAGE, 1, name, "table results", 1, 1, 0)]
    with pytest.raises(SinkUnavailableError, match="among a connection's own"):
        held.commit(decided)
    connection.close()

    def is_committed() -> bool:
        with suppress(SinkUnavailableError):
            held.commit(decided)
        return held.ids() == [10]

    wait_until(is_committed, "the server has seen it go")


@KINDS
def test_the_fate_of_a_committed_transaction_is_asked_of_its_marker(held: Held) -> None:
    t0 = held.prepared(1, 10)
    held.commit(t0)
    held.commit(t0)
    held.commit(held.prepared(3, 30))  # its predecessor's marker is tidied away
    held.commit(t0, execution=1)
    assert held.ids() == [10, 30]
    assert len(held.database.run("select * from dagster_jet_held")) == 1


@KINDS
def test_what_a_person_has_rolled_back_is_told_as_lost(held: Held) -> None:
    [t0] = held.prepared(1, 10)
    name = f"jet.{t0.token}"
    by_hand = {"postgresql": "rollback prepared", "mariadb": "xa rollback"}[held.kind]
    held.database.run(f"{by_hand} '{name}'")
    with pytest.raises(ArtifactLostError, match="rolled back before its commit"):
        held.commit([t0])
    lost: list[Artifact] = []
    held.commit([t0], accept_loss=True, report_lost=lost.append)
    assert lost == [t0] and held.ids() == []


@KINDS
def test_a_writer_that_was_believed_dead_finds_its_note_gone(held: Held) -> None:
    writer = held.writer(1)
    writer.write(pa.RecordBatch.from_pydict({"id": pa.array([10], pa.int64())}))
    held.abort_orphans(execution=2)
    with pytest.raises(SinkError, match="a newer execution has rolled"):
        writer.prepare()
    writer.abort()
    writer.close()
    assert held.ids() == [] and held.left() == []


STEPS = (
    "sql.held.prepared",
    "sql.held.commit.after",
    "sql.held.begun",
    "sql.held.before",
    "sql.held.commit.before",
)


@pytest.mark.parametrize(
    ("kind", "steps"),
    [
        pytest.param("postgresql", STEPS[:2], id="postgresql"),
        *(pytest.param(kind, STEPS, marks=long, id=f"{kind}, all steps") for kind in SERVERS),
    ],
)
def test_the_contract_is_kept(tmp_path: Path, spark: Any, kind: str, steps: Sequence[str]) -> None:
    server = SERVERS[kind]
    database = server.new_database(shared_server(kind, server.prepared))
    database.run(f"create table results ({COLUMNS[kind].replace(' primary key', '')})")
    with Proxy(database.port) as proxy:
        url = database.through(proxy.port)
        make = MadeSink.of(tmp_path, url, transactions="held", writers=3)
        check_sink(
            make,
            lambda: all_rows(database.run),
            spark=spark,
            log_of=None,
            outages={"a connection that is cut": proxy.cut},
            steps=steps,
            secrets=(server.PASSWORD,),
            set_back={
                "a database without notes": partial(without, database.run, "dagster_jet_held")
            },
        )
        make.close()


def test_a_server_that_prepares_nothing_is_refused_with_the_setting(tmp_path: Path) -> None:
    folder = own_folder("postgresql")
    to_start = postgres_server.prepared(folder, max_prepared_transactions="0")
    running: SharedServer = launch("postgresql", folder, to_start)
    try:
        with pytest.raises(ConfigurationError) as told:
            Held(tmp_path, "postgresql", postgres_server.new_database(running))
    finally:
        stop(running)
    assert "max_prepared_transactions is 0" in str(told.value)
    assert "up to 6" in str(told.value) and "roll-forward" in str(told.value)


def test_sqlite_has_none_and_says_so(tmp_path: Path) -> None:
    make = MadeSink.of(tmp_path, f"sqlite:///{tmp_path}/a.db", transactions="held")
    with pytest.raises(ConfigurationError, match="it has no prepared transactions"):
        make().check(JOB, STAGE, is_new_job=True)
    make.close()
