"""Statements of a commit that arrive late, in tables of real servers.

The network holds one back and resets the client's connection; the server's session lives on. The
sink commits again on a new connection, and goes on. Then the statement arrives: it must change
nothing. Rows are counted: the tables have no key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.connectors.held import held_ids
from dagster_jet.connectors.sql import place, sql_committer
from dagster_jet.connectors.sql.held_rows import PREFIX
from dagster_jet.connectors.sql.markers import EPOCHS
from dagster_jet.connectors.sql.row_writer import write_rows
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import Reaction, SinkError, SinkMismatchError, SinkUnavailableError
from dagster_jet.snapshot.manifest import Artifact
from tests.integration.connectors.late_commit import commit_until_done
from tests.integration.connectors.sql_places import MadeSink
from tests.long import long_but_for
from tests.servers import mariadb, postgres, wait_until
from tests.servers.pgbouncer import pooler
from tests.servers.proxy import Proxy

JOB, STAGE = "late", "out"
DATABASES = {"postgresql": postgres.postgres, "mariadb": mariadb.mariadb}
KINDS = pytest.mark.parametrize("kind", list(DATABASES))
WAITING = {
    "postgresql": "select 1 from pg_locks where not granted",
    "mariadb": "select 1 from information_schema.innodb_trx where trx_state = 'LOCK WAIT'",
}
SESSIONS = {
    "postgresql": "select pid from pg_stat_activity where datname = current_database() "
    "and backend_type = 'client backend' and pid <> pg_backend_pid()",
    "mariadb": "select id from information_schema.processlist where db = database() "
    "and id <> connection_id()",
}
ENDED = {"postgresql": "select pg_terminate_backend({})", "mariadb": "kill {}"}
PREPARED = {
    "postgresql": "select gid from pg_prepared_xacts where database = current_database()",
    "mariadb": "xa recover",
}


class Late:
    """A sink of a table, which it reaches by a port that a network is behind."""

    def __init__(self, folder: Path, kind: str, database: Any, port: int, **options: Any) -> None:
        self.kind = kind
        database.run("create table results (id bigint)")
        self.database, self.staged = database, list[int]()
        self.make = MadeSink.of(folder, database.through(port), **options)
        self.sink = self.make()
        self.sink.check(JOB, STAGE, is_new_job=True)
        self.committer = self.sink.open_committer(JOB, STAGE)

    def close(self) -> None:
        self.committer.close()
        self.make.close()

    def stage(self, epoch: int, execution: int = 1, attempt: str = "a0") -> list[Artifact]:
        id = TransactionId(JOB, STAGE, 1, execution, epoch, 0, attempt)
        writer = self.sink.open_writer(id)
        values = [10 * epoch + n for n in range(3)]
        writer.write(pa.RecordBatch.from_pydict({"id": pa.array(values, pa.int64())}))
        found = list(writer.prepare())
        writer.close()
        self.staged += values
        return found

    def commit(self, artifacts: list[Artifact], execution: int = 1) -> None:
        context = CommitContext(JOB, STAGE, 1, execution, recovering=execution > 1)
        commit_until_done(self.committer, artifacts, context)

    def abort_orphans(self, execution: int) -> None:
        self.committer.abort_orphans(CommitContext(JOB, STAGE, 1, execution, recovering=True), ())

    def prepared(self) -> list[str]:
        """Names of this sink's prepared transactions, as the server lists them."""
        rows = self.database.run(PREPARED[self.kind])
        names = [x.decode() if isinstance(x := row[-1], bytes) else str(x) for row in rows]
        owner = self.sink._owner(JOB, STAGE)
        ours = tuple(f"{PREFIX}{owner.id(id)}" for id in held_ids(JOB, STAGE, 1))
        return [name for name in names if name.startswith(ours)]

    def sessions(self) -> list[int]:
        """The server's ids of the sessions in the database."""
        return [id for (id,) in self.database.run(SESSIONS[self.kind])]

    def rows(self) -> list[int]:
        return sorted(id for (id,) in self.database.run("select id from results"))


@pytest.fixture
def database(kind: str) -> Any:
    return DATABASES[kind]()


@pytest.fixture
def proxy(database: Any) -> Iterator[Proxy]:
    with Proxy(database.port) as proxy:
        yield proxy


@pytest.fixture
def late(
    tmp_path: Path, kind: str, database: Any, proxy: Proxy, request: pytest.FixtureRequest
) -> Iterator[Late]:
    late = Late(tmp_path, kind, database, proxy.port, **getattr(request, "param", {}))
    yield late
    late.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server ends a session that has fallen silent inside a transaction, soon."""
    monkeypatch.setattr(place, "IDLE_S", 1)


@pytest.fixture
def halfway(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Makes something happen when the next epoch's rows are written, and not committed."""

    def meanwhile(act: Callable[[], object]) -> None:
        todo = [act]

        def written(*asked: Any) -> int:
            count = write_rows(*asked)
            while todo:
                todo.pop()()
            return count

        monkeypatch.setattr(sql_committer, "write_rows", written)

    return meanwhile


class Nth:
    """Is a request the one that is looked for, once another one has come?"""

    def __init__(self, wanted: bytes, behind: bytes = b"") -> None:
        self.wanted, self.behind = wanted, behind

    def __call__(self, request: bytes) -> bool:
        if self.behind in request.lower():
            self.behind = b""
            return self.wanted in request.lower()
        return False


ROWS = {"postgresql": b'copy "results"', "mariadb": b"insert into results"}
MARKER = b"update dagster_jet_epochs"


def statement(which: str, kind: str) -> Nth:
    return {
        "rows": Nth(ROWS[kind]),
        "marker": Nth(MARKER),
        "commit": Nth(b"commit", behind=MARKER),
    }[which]


@KINDS
@pytest.mark.parametrize("which", ["rows", "marker", "commit"])
@pytest.mark.parametrize("successor", long_but_for([1, 2], "2"))
@pytest.mark.usefixtures("quick")
def test_a_statement_that_arrives_in_the_middle_of_a_later_epoch(
    late: Late, proxy: Proxy, kind: str, which: str, successor: int, halfway: Any
) -> None:
    """The epoch is committed again by the same execution, or by its successor."""
    late.commit(late.stage(1))
    held = proxy.hold_next(statement(which, kind))
    second = late.stage(2)
    late.commit(second, successor)
    held.wait()
    halfway(held.release)
    late.commit(late.stage(3, successor), successor)
    late.commit(late.stage(4, successor), successor)
    late.commit(second, successor)
    assert late.rows() == sorted(late.staged)


@KINDS
def test_a_commit_that_arrives_while_its_repetition_waits_for_it(late: Late, proxy: Proxy) -> None:
    released_while_repeated(late, proxy)


@pytest.mark.parametrize("mode", ["session", "transaction"])
@pytest.mark.parametrize("place", ["before", "behind"])
def test_a_commit_that_arrives_late_at_a_pooler_or_from_it(
    tmp_path: Path, mode: str, place: str
) -> None:
    database = postgres.postgres()
    with ExitStack() as opened:
        if place == "before":
            proxy = opened.enter_context(Proxy(opened.enter_context(pooler(database.port, mode))))
            port = proxy.port
        else:
            proxy = opened.enter_context(Proxy(database.port))
            port = opened.enter_context(pooler(proxy.port, mode))
        late = Late(tmp_path, "postgresql", database, port)
        opened.callback(late.close)
        released_while_repeated(late, proxy)


def released_while_repeated(late: Late, proxy: Proxy) -> None:
    late.commit(late.stage(1))
    held = proxy.hold_next(statement("commit", late.kind))
    again = threading.Thread(target=late.commit, args=(late.stage(2),))
    again.start()
    held.wait()
    wait_until(lambda: bool(late.database.run(WAITING[late.kind])), within=20)
    held.release()
    again.join()
    late.commit(late.stage(3))
    assert late.rows() == sorted(late.staged)


# --- the connection between commits --------------------------------------------------------------


@KINDS
def test_commits_share_a_connection_until_the_server_ends_it(late: Late, kind: str) -> None:
    context = CommitContext(JOB, STAGE, 1, 1, recovering=False)
    late.committer.commit(late.stage(1), context)
    (first,) = late.sessions()
    late.committer.commit(late.stage(2), context)
    assert late.sessions() == [first]
    late.database.run(ENDED[kind].format(first))
    wait_until(lambda: late.sessions() == [], within=20)
    late.committer.commit(late.stage(3), context)  # is not repeated
    (second,) = late.sessions()
    assert second != first and late.rows() == sorted(late.staged)
    late.committer.close()
    wait_until(lambda: late.sessions() == [], within=20)


@KINDS
def test_nothing_is_kept_after_an_error_but_the_newest_epoch(late: Late) -> None:
    """A database without the epochs that this execution has committed is not written on."""
    context = CommitContext(JOB, STAGE, 1, 1, recovering=False)
    first, second = late.stage(1), late.stage(2)
    late.committer.commit(first, context)
    late.database.run("alter table dagster_jet_epochs rename to kept")
    with pytest.raises(SinkMismatchError, match="dagster_jet_epochs"):
        late.committer.commit(second, context)
    wait_until(lambda: late.sessions() == [], within=20)
    with pytest.raises(SinkError, match="had epoch 1, and its marker is gone") as raised:
        late.committer.commit(second, context)
    assert raised.value.reaction is Reaction.RESTART
    assert late.rows() == [10, 11, 12]
    starting = late.sink.open_committer(JOB, STAGE)
    assert not starting.has_committed(first, replace(context, execution_id=2, owns_job=True))
    starting.close()
    late.database.run("drop table dagster_jet_epochs")
    late.database.run("alter table kept rename to dagster_jet_epochs")
    late.committer.commit(second, context)
    assert late.rows() == sorted(late.staged)


@KINDS
def test_a_row_that_somebody_has_removed_is_missed(late: Late) -> None:
    """An epoch that the start has found counts like one that this execution has committed."""
    context = CommitContext(JOB, STAGE, 1, 1, recovering=False)
    first, second = late.stage(1), late.stage(2)
    late.committer.commit(first, context)
    late.committer.close()
    late.committer = late.sink.open_committer(JOB, STAGE)
    assert late.committer.has_committed(first, replace(context, owns_job=True))
    late.database.run("delete from dagster_jet_epochs")
    with pytest.raises(SinkError, match="had epoch 1, and its marker is gone"):
        late.committer.commit(second, context)
    assert late.rows() == [10, 11, 12]


@KINDS
def test_a_row_that_somebody_removes_before_the_first_epoch_is_made_again(late: Late) -> None:
    context = CommitContext(JOB, STAGE, 1, 1, recovering=False)
    first = late.stage(1)
    committer: Any = late.committer
    with committer._kept.connected():
        pass
    committer._kept.found |= {EPOCHS, committer._fence(context)[0].id}
    with pytest.raises(SinkUnavailableError, match="dagster_jet_epochs is gone"):
        committer.commit(first, context)
    late.commit(first)
    assert late.rows() == sorted(late.staged)


# --- prepared transactions ------------------------------------------------------------------------

HELD = pytest.mark.parametrize(
    "late", [{"transactions": "held", "writers": 1}], indirect=True, ids=["held"]
)


@KINDS
@HELD
def test_a_commit_of_a_prepared_transaction_that_arrives_late(
    late: Late, proxy: Proxy, kind: str
) -> None:
    late.commit(late.stage(1))
    held = proxy.hold_next(Nth(b"prepared 'jet." if kind == "postgresql" else b"xa commit"))
    late.commit(late.stage(2))
    held.wait()
    third = late.stage(3)
    held.release()
    late.commit(third)
    late.commit(late.stage(4))
    assert late.rows() == sorted(late.staged) and late.prepared() == []


@KINDS
@HELD
def test_a_transaction_that_is_prepared_late_is_rolled_back(
    late: Late, proxy: Proxy, kind: str
) -> None:
    """Its task was run again meanwhile; the next start finds the transaction."""
    asked = Nth(b"prepare transaction" if kind == "postgresql" else b"xa prepare")
    held = proxy.hold_next(asked)
    with pytest.raises(SinkUnavailableError):
        late.stage(1)
    late.commit(late.stage(1, attempt="a1"))
    late.commit(late.stage(2))
    held.release()
    assert len(late.prepared()) == 1
    late.abort_orphans(2)
    late.commit(late.stage(3, 2), 2)
    assert late.rows() == sorted(late.staged) and late.prepared() == []
