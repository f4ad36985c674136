"""Rows in prepared transactions: written in phase 1, committed by name in phase 2.

Before a writer begins, it notes the name of its transaction in `dagster_jet_held`. The last
statement of the transaction sets the note's `is_committed`, visible once it is committed. So names
are known without the server's list, and the outcome of each transaction can be queried:

    noted, not `is_committed`   open, prepared, or rolled back: a call by its name shows which
    noted, `is_committed`       committed
    not noted                   committed long ago, or rolled back by us

A rollback also removes the note: a writer that was believed dead finds it missing, and stops.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.held import Fate, HeldCommitter, held_id
from dagster_jet.connectors.sql.failures import as_sink_errors, set_back
from dagster_jet.connectors.sql.markers import HELD, Markers, Owner
from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy
from dagster_jet.connectors.sql.prepared import Prepared, prepared_transactions
from dagster_jet.connectors.sql.row_writer import write_rows
from dagster_jet.contract import CommitContext, SinkWriter, TransactionId
from dagster_jet.errors import SinkError, SinkUnavailableError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.failpoint import fail_point

if TYPE_CHECKING:
    from sqlalchemy import Connection

PREFIX = "jet."
"""Prefix of our transactions' names in the database."""


def transaction_name(held: str, transaction: TransactionId) -> str:
    """`<held id, hashed>.<execution>-<epoch>-<attempt, hashed>`: unique to the attempt."""
    attempt = hashlib.blake2b(transaction.attempt.encode(), digest_size=4).hexdigest()
    return f"{held}.{transaction.execution_id}-{transaction.epoch_id}-{attempt}"


@dataclass
class HeldWriter(SinkWriter):
    """Writes one task's rows of one epoch, in a transaction of its own."""

    place: SqlPlace
    owner: Owner
    transaction: TransactionId
    _open: ExitStack = field(default_factory=ExitStack)
    _connection: Connection | None = None
    _rows: int = 0
    _bytes: int = 0

    def __post_init__(self) -> None:
        self._held = self.owner.id(held_id(self.transaction))
        self._name = transaction_name(self._held, self.transaction)

    def write(self, batch: pa.RecordBatch) -> None:
        with self._classified():
            if self._connection is None:
                self._begin()
            assert self._connection is not None
            write_rows(self._connection, self.place, "append", (), [batch])
        self._rows += batch.num_rows
        self._bytes += batch.nbytes

    def prepare(self) -> tuple[Artifact, ...]:
        connection, t = self._connection, self.transaction
        if connection is None:
            return ()
        with self._classified():
            fail_point("sql.held.before")
            notes = self._notes
            mine = notes.c.transaction == self._name
            done = connection.execute(notes.update().where(mine).values(is_committed=True))
            if done.rowcount != 1:
                raise SinkError(
                    "a newer execution has rolled this execution's transaction back.",
                    job=t.job,
                    stage=t.sink,
                )
            self._kind.prepare(connection, PREFIX + self._name)
            self._connection = None
            self._open.close()  # from here on any connection can end it by name
            fail_point("sql.held.prepared")
        target = f"table {self.place.table}"
        return (Artifact(t.sink, t.epoch_id, self._name, target, self._rows, self._bytes, 0),)

    def abort(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # this connection may be the one that has failed
                self._kind.give_up(connection, PREFIX + self._name)
                mine = self._notes.c.transaction == self._name
                connection.execute(self._notes.delete().where(mine))

    def close(self) -> None:
        self._open.close()

    def _begin(self) -> None:
        t = self.transaction
        connection = self._open.enter_context(self.place.connected(autocommit=True))
        kind = prepared_transactions(connection)
        assert kind is not None, "`check` has refused the database"
        self._kind: Prepared = kind
        connection.execute(
            self._notes.insert().values(
                transaction=self._name,
                held=self._held,
                job=t.job,
                sink=t.sink,
                execution=t.execution_id,
                epoch=t.epoch_id,
                is_committed=False,
            )
        )
        kind.begin(connection, PREFIX + self._name)
        self._connection = connection
        fail_point("sql.held.begun")

    @property
    def _notes(self) -> Any:
        return Markers(self.place).tables()[HELD]

    def _classified(self) -> Any:
        return as_sink_errors(self.place, self.transaction.job, self.transaction.sink)


@dataclass
class SqlHeldTransactions:
    """Implementation of `connectors.held.HeldTransactions` for phase 2."""

    place: SqlPlace
    owner: Owner
    keep: frozenset[str] = frozenset()
    """Transactions in a snapshot, of any execution, which are not rolled back."""
    _newest: str = ""
    """Name of the last transaction that this execution knows to be committed. A database that came
    back older may lack it, and offer a later one to be committed."""
    _open: ExitStack = field(default_factory=ExitStack)
    _connection: Connection | None = None

    def commit(self, held_id: str, artifact: Artifact) -> Fate:
        """Commits the artifact's token, which names exactly one transaction."""
        fail_point("sql.held.commit.before")
        name = artifact.token
        with self._classified(), self._connected() as (connection, kind):
            if not kind.commit(connection, PREFIX + name) and not self._is_done(connection, name):
                if self._is_alive(connection, kind, name):
                    # MariaDB releases it only once its connection is closed on the server, too.
                    raise SinkUnavailableError(
                        f"the server still counts {PREFIX + name!r} among a connection's own.",
                        job=self.owner.job,
                        stage=self.owner.sink,
                    )
                return Fate.GONE
            fail_point("sql.held.commit.after")
            self._newest = name
            self._forget_others(connection, kind, name)
        return Fate.COMMITTED

    def has_committed(self, name: str) -> bool:
        """True if the transaction of this name was committed."""
        with self._classified(), self._connected() as (connection, _):
            is_done = self._is_noted_as_done(connection, name)
        if is_done:
            self._newest = name
        return is_done

    def roll_back(self, held_id: str, *, before_execution: int) -> bool:
        held, notes = self.owner.id(held_id), self._notes
        with self._classified(), self._connected() as (connection, kind):
            left = sqlalchemy().select(notes.c.transaction).where(
                notes.c.held == held,
                notes.c.execution < before_execution,
                notes.c.is_committed.is_(False),
            )  # fmt: skip
            names = {name for (name,) in connection.execute(left)}
            # Adds transactions without a note, as far as the server lists them.
            names |= {
                name
                for listed in kind.listed(connection, f"{PREFIX}{held}.")
                if _execution_of(name := listed.removeprefix(PREFIX)) < before_execution
            }
            orphans = sorted(names - self.keep)
            return sum(self._give_up(connection, kind, name) for name in orphans) > 0

    def close(self) -> None:
        self._connection = None
        self._open.close()

    def check_not_set_back(self, connection: Connection) -> None:
        """Called with each new connection, whose server may have come back older."""
        if self._newest and not self._is_noted_as_done(connection, self._newest):
            lost = f"the transaction {PREFIX + self._newest!r}"
            raise set_back(self.place, lost, self.owner.job, self.owner.sink)

    def _is_noted_as_done(self, connection: Connection, name: str) -> bool:
        is_there = not Markers(self.place).missing(connection, HELD)
        return is_there and self._is_done(connection, name)

    def _is_done(self, connection: Connection, name: str) -> bool:
        """True if an unprepared transaction was committed; the newest of a held id stays noted."""
        notes, alchemy = self._notes, sqlalchemy()
        own = alchemy.select(notes.c.is_committed).where(notes.c.transaction == name)
        if (found := connection.execute(own).scalar()) is not None:
            return bool(found)
        newer = alchemy.select(notes.c.execution, notes.c.epoch).where(
            notes.c.held == name.partition(".")[0], notes.c.is_committed.is_(True)
        )
        return any((row[0], row[1]) > _place_of(name) for row in connection.execute(newer))

    def _is_alive(self, connection: Connection, kind: Prepared, name: str) -> bool:
        """True if it cannot be committed by name now, but has not ended. The server's list may omit
        it, but it locks its note, which it has changed, until it ends."""
        if PREFIX + name in kind.listed(connection, PREFIX + name):
            return True
        notes = self._notes
        own = sqlalchemy().select(notes.c.transaction).where(notes.c.transaction == name)
        if connection.execute(own).one_or_none() is None:
            return False
        connection.exec_driver_sql("begin")
        try:
            free = connection.execute(own.with_for_update(skip_locked=True)).one_or_none()
        finally:
            connection.exec_driver_sql("commit")
        return free is None

    def _forget_others(self, connection: Connection, kind: Prepared, name: str) -> None:
        """After a commit, rolls back other attempts of the task and removes older notes."""
        notes, (execution, epoch) = self._notes, _place_of(name)
        older = (notes.c.execution < execution) | (
            (notes.c.execution == execution) & (notes.c.epoch < epoch)
        )
        same = notes.c.held == name.partition(".")[0]
        done = sqlalchemy().select(notes.c.transaction).where(
            same, notes.c.is_committed.is_(True), older
        )  # fmt: skip
        # By primary key: a deletion with a search would wait for others' notes (InnoDB).
        for (old,) in connection.execute(done).all():
            connection.execute(notes.delete().where(notes.c.transaction == old))
        attempts = sqlalchemy().select(notes.c.transaction).where(
            same,
            notes.c.execution == execution,
            notes.c.epoch == epoch,
            notes.c.is_committed.is_(False),
        )  # fmt: skip
        for (other,) in connection.execute(attempts).all():
            self._give_up(connection, kind, other)

    def _give_up(self, connection: Connection, kind: Prepared, name: str) -> bool:
        """Rolls back the transaction and removes its note, unless it is being prepared."""
        notes, was_there = self._notes, kind.roll_back(connection, PREFIX + name)
        free = (
            sqlalchemy()
            .select(notes.c.transaction)
            .where(notes.c.transaction == name, notes.c.is_committed.is_(False))
            .with_for_update(skip_locked=True)
        )
        own = notes.c.transaction == name
        connection.exec_driver_sql("begin")
        try:
            if connection.execute(free).scalar() is not None:
                connection.execute(notes.delete().where(own))
        finally:
            connection.exec_driver_sql("commit")
        return was_there

    @property
    def _notes(self) -> Any:
        return Markers(self.place).tables()[HELD]

    def _connected(self) -> Any:
        return _Kept(self)

    def _classified(self) -> Any:
        return as_sink_errors(self.place, self.owner.job, self.owner.sink)


@dataclass
class SqlHeldCommitter(HeldCommitter):
    """Phase 2 of a table. An artifact's token is the name of its transaction."""

    transactions: SqlHeldTransactions

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        return all(self.transactions.has_committed(artifact.token) for artifact in artifacts)

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        self.transactions.keep = frozenset(keep)
        return super().abort_orphans(context, keep)


@dataclass
class _Kept:
    """Keeps the connection between calls; closes it after an error."""

    of: SqlHeldTransactions

    def __enter__(self) -> tuple[Connection, Prepared]:
        of = self.of
        if of._connection is None:
            of._connection = of._open.enter_context(of.place.connected(autocommit=True))
            try:
                of.check_not_set_back(of._connection)
            except BaseException:
                of.close()
                raise
        kind = prepared_transactions(of._connection)
        assert kind is not None, "`check` has refused the database"
        return of._connection, kind

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is not None:
            with suppress(Exception):
                self.of.close()


def _place_of(name: str) -> tuple[int, int]:
    """(execution, epoch) of a transaction's name."""
    execution, epoch, _ = name.rpartition(".")[2].split("-")
    return int(execution), int(epoch)


def _execution_of(name: str) -> int:
    return _place_of(name)[0]
