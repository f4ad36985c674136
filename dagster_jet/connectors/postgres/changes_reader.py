"""Reader of a slot: peeks, returns rows, and advances the slot once a snapshot has them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.carried_rows import ROWS_MAX, can_be_carried, carried_frame
from dagster_jet.connectors.postgres.change_rows import Row, lsn_of, lsn_text, tables_of
from dagster_jet.connectors.postgres.pgoutput import Transaction, transactions
from dagster_jet.connectors.postgres.published_table import PublishedTable
from dagster_jet.connectors.postgres.relations import ChangedTableError, Relations
from dagster_jet.connectors.postgres.server import Server, lacks, server_of
from dagster_jet.connectors.sql.failures import as_source_errors
from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy
from dagster_jet.contract import (
    Acknowledges,
    Backlog,
    BadRowRule,
    Lag,
    SourceFrame,
    SourceReader,
    SplitParameters,
)
from dagster_jet.errors import InputLostError, Reaction, SourceError
from dagster_jet.system.failpoint import fail_point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlalchemy import Connection

MESSAGES_AT_ONCE = 20_000
"""New messages requested per poll; the server completes the last transaction."""
ADVANCE_BYTES, ADVANCE_S = 4 << 20, 2.0
"""Conditions of an epoch without rows, whose snapshot lets the server drop log: bytes of log since
the last epoch with this source, and seconds since then."""
_SESSION = (
    # Types and functions then come with their schema as values; a role may have a time limit.
    "select set_config('search_path', '', false), set_config('statement_timeout', '0', false)"
)
_SLOT = (
    "select cast(confirmed_flush_lsn as text), cast(pg_current_wal_flush_lsn() as text), "
    "wal_status from pg_replication_slots where slot_name = :slot"
)
_PEEK = (
    "select data from pg_logical_slot_peek_binary_changes(:slot, null, :count, "
    "'proto_version', '1', 'publication_names', :publication)"
)
_Tables = tuple[pa.Table, pa.Table | None]
_ADVANCE = "select pg_replication_slot_advance(:slot, cast(:lsn as pg_lsn))"


@dataclass(frozen=True)
class Polled:
    """Result of a poll."""

    transactions: tuple[tuple[Row, ...], ...] = ()
    end: int = 0
    """End of the last transaction found by any poll."""
    caught_up: int = 0
    """Polls have found everything committed up to here; 0: unknown."""
    is_held: bool = False
    """True if the table has changed. The job restarts once a snapshot has everything before."""


@dataclass
class ChangesReader(SourceReader):
    """Reader of one execution. `_seen`, `_kept` and the connection are for the source's thread."""

    acknowledges = Acknowledges.POSITIONS

    place: SqlPlace
    slot: str
    publication: str
    table: PublishedTable
    renamed: Mapping[str, str | None]
    server: Server
    made_slot: bool
    """True if the start of this execution created the slot."""
    bad_rows: BadRowRule | None
    job: str
    stage: str
    _waiting: deque[tuple[Row, bool]] = field(default_factory=deque)
    """(row, whether it is the last of its transaction)."""
    _end: int = 0
    """End of the last transaction with planned rows; rows below `_row` in it are planned."""
    _row: int = 0
    _whole: int = 0
    """Everything committed up to here is planned. Initially the slot's start."""
    _caught_up: int = 0
    """Everything committed up to here is planned or waiting."""
    _acknowledged: int = 0
    """Position to which we have advanced the slot."""
    _planned: tuple[int, float] = (0, float("-inf"))
    """`_whole` at the last split, and the time of the split."""
    _seen: int = 0
    """End of the last peeked transaction; `_found`: of the last one with rows of the table."""
    _found: int = 0
    _kept: deque[tuple[int, int]] = field(default_factory=deque)
    """(end, messages) of peeked transactions that are still in the slot."""
    _log_end: str = ""
    _restored: tuple[Server, int] | None = None
    """Server of the snapshot and its read position, until they are checked."""
    _backlog: Backlog = Backlog.READ
    _is_to_end: bool = False
    _backlog_end: int | None = None
    """End of the log at the first poll after `mark_backlog`."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _connection: Connection | None = None

    def __post_init__(self) -> None:
        self._relations = Relations(
            self.publication, self.table, self.renamed, self.job, self.stage
        )
        self._planned = self._whole, float("-inf")
        self._acknowledged = self._whole

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._end, self._row = lsn_of(position["lsn"]), position["row"]
        self._whole = self._seen = lsn_of(position["whole"])
        self._acknowledged = 0
        self._planned = self._whole, float("-inf")
        before = Server(position["system"], position["timeline"])
        self._restored = before, max(self._whole, self._end)

    # --- on the source's own thread ---------------------------------------------------------------

    def poll(self) -> Polled:
        seen = self._seen, self._found
        with self._classified():
            try:
                return self._peek()
            except BaseException:
                self._seen, self._found = seen  # nobody has got the rows of this poll
                self._hang_up()
                raise

    def _peek(self) -> Polled:
        connection = self._connected()
        self._check_restored(connection)
        confirmed, log_end = self._slot(connection)
        if self._is_to_end and self._backlog_end is None:
            self._backlog_end = lsn_of(log_end)
        if log_end == self._log_end:
            return Polled(caught_up=lsn_of(log_end))  # nothing new to decode
        known = sum(messages for end, messages in self._kept if end > confirmed)
        count = known + MESSAGES_AT_ONCE
        named = {"slot": self.slot, "publication": _quoted(self.publication)}
        peeked = connection.execute(sqlalchemy().text(_PEEK), {**named, "count": count})
        messages = [bytes(data) for (data,) in peeked]
        self._slot(connection)  # again: another client may have advanced it meanwhile
        all_of_it = list(transactions(messages))
        self._kept = deque((one.end, one.messages) for one in all_of_it)
        is_whole = len(messages) < count
        self._check_history(confirmed, [one.end for one in all_of_it], is_whole=is_whole)
        new = [one for one in all_of_it if one.end > self._seen]
        return self._polled(connection, new, confirmed, log_end if is_whole else None)

    def _polled(
        self,
        connection: Connection,
        new: Sequence[Transaction],
        confirmed: int,
        log_end: str | None,
    ) -> Polled:
        """
        Args:
            log_end: position up to which everything was peeked; None: unknown.
        """
        found: list[tuple[Row, ...]] = []
        for one in new:
            try:
                rows = tuple(self._relations.rows_of(one, connection))
            except ChangedTableError:
                # The restart reads with the new columns, so rows before the change come first.
                if found or confirmed < self._found:
                    return Polled(tuple(found), self._found, is_held=True)
                raise
            self._seen = one.end
            if rows:
                self._found = one.end
                found.append(rows)
        if log_end is not None and not new:
            self._log_end = log_end
        caught_up = 0 if log_end is None else max(lsn_of(log_end), self._seen)
        return Polled(tuple(found), self._found, caught_up)

    def _slot(self, connection: Connection) -> tuple[int, str]:
        """Start of the slot and end of the log.

        Raises:
            InputLostError: the slot or log lacks changes after the read position.
        """
        asked = sqlalchemy().text(_SLOT)
        row = connection.execute(asked, {"slot": self.slot}).one_or_none()
        if row is None:
            raise self._lost(f"the slot {self.slot!r} does not exist any more")
        begins, log_end, status = row
        if status == "lost" or begins is None:
            raise self._lost(
                f"the server has removed log that the slot {self.slot!r} needs "
                "(max_slot_wal_keep_size)"
            )
        if lsn_of(begins) > self._whole:
            raise self._lost(f"another client has advanced the slot {self.slot!r} to {begins}")
        if lsn_of(log_end) < max(self._whole, self._end):
            raise self._lost(
                f"the server's log ends at {log_end}: the server was restored from a backup"
            )
        return lsn_of(begins), str(log_end)

    def _check_restored(self, connection: Connection) -> None:
        """Checks once whether this server's log contains what the snapshot has read."""
        if self._restored is None:
            return
        before, position = self._restored
        if self.made_slot:
            with suppress(Exception):  # an unused slot would keep the log for ever
                drop = sqlalchemy().text("select pg_drop_replication_slot(:slot)")
                connection.execute(drop, {"slot": self.slot})
            raise self._lost(f"the slot {self.slot!r} does not exist any more")
        lost = lacks(self.place, self.server, before, position)
        if lost is not None:
            raise self._lost(lost)
        self._restored = None

    def _check_history(self, confirmed: int, ends: Sequence[int], *, is_whole: bool) -> None:
        """Checks that the last read transaction, if still in the slot, ends at the same place."""
        read = self._end
        if read <= confirmed or read in ends:
            return
        if is_whole or any(end > read for end in ends):
            raise self._lost(
                f"no transaction ends at {lsn_text(read)} any more, where the job had read one: "
                "the server was restored from a backup and has continued from there"
            )

    def _lost(self, what: str) -> InputLostError:
        return InputLostError(
            f"{what}. The changes since {lsn_text(self._whole)} cannot be read.",
            job=self.job,
            stage=self.stage,
            cure="Start the job under another name and with another slot, from a copy of the "
            "table.",
        )

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        """Advances the slot. Idempotent, because a slot never goes back."""
        if not messages:
            return
        upto = max(lsn_of(text) for text in messages)
        with self._classified():
            try:
                connection, text = self._connected(), sqlalchemy().text
                self._check_restored(connection)
                fail_point("postgres.advance.before")
                begins, _ = self._slot(connection)
                if begins < upto:
                    connection.execute(text(_ADVANCE), {"slot": self.slot, "lsn": lsn_text(upto)})
                fail_point("postgres.advance.after")
            except BaseException:
                self._hang_up()
                raise
        self._acknowledged = max(self._acknowledged, upto)

    def close(self) -> None:
        self._hang_up()

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = self._stack.enter_context(self.place.connected(autocommit=True))
            connection.exec_driver_sql(_SESSION)
            if server_of(connection, self.job, self.stage) != self.server:
                changed = SourceError(
                    "another server answers, or a standby has taken over: the job restarts and "
                    "compares the server with its saved position.",
                    job=self.job,
                    stage=self.stage,
                )
                changed.reaction = Reaction.RESTART
                raise changed
            self._connection = connection
        return self._connection

    def _hang_up(self) -> None:
        self._connection = None
        with suppress(Exception):  # this connection may be the one that has failed
            self._stack.close()

    def _classified(self) -> Any:
        return as_source_errors(self.place, self.job, self.stage)

    # --- on the execution's threads ---------------------------------------------------------------

    def mark_backlog(self) -> None:
        self._backlog, self._is_to_end = Backlog.WAITING, True

    def backlog(self) -> Backlog:
        return self._backlog

    def accept(self, found: Polled) -> None:
        end = self._backlog_end
        if end is not None:
            is_read = max(found.end, found.caught_up) >= end
            self._backlog = Backlog.READ if is_read else Backlog.WAITING
            if found.is_held and not is_read:
                self._backlog = Backlog.HELD
        for rows in found.transactions:
            # Skip the rows of a divided transaction that the snapshot has.
            first = self._row if rows[0].end == self._end else 0
            self._waiting.extend((row, row is rows[-1]) for row in rows if row.number >= first)
        self._caught_up = max(self._caught_up, found.caught_up)
        self._note_caught_up()

    def waiting(self) -> Lag:
        count = len(self._waiting)
        details = {"changes": count}
        whole, at = self._planned
        if (
            not count
            and self._whole - whole >= ADVANCE_BYTES
            and time.monotonic() - at >= ADVANCE_S
        ):
            count = 1  # an epoch without rows
        return Lag(count, details)

    def plan(self, max_rows: int) -> tuple[Row, ...] | None:
        if not self.waiting().items:
            return None
        taken: list[Row] = []
        while self._waiting and len(taken) < max(1, max_rows):
            row, is_last = self._waiting.popleft()
            self._end, self._row = row.end, row.number + 1
            if is_last:
                self._whole = max(self._whole, row.end)
            taken.append(row)
        self._note_caught_up()
        self._planned = self._whole, time.monotonic()
        return tuple(taken)

    def _note_caught_up(self) -> None:
        if not self._waiting:
            self._whole = max(self._whole, self._caught_up)

    def frame(self, spark: SparkSession, split: tuple[Row, ...]) -> SourceFrame:
        rows, letters = self._tables(split)
        if letters is None:
            return SourceFrame(spark.createDataFrame(rows))
        return SourceFrame(spark.createDataFrame(rows), spark.createDataFrame(letters))

    def prepared_frame(
        self, spark: SparkSession, split: Callable[[], _Tables], partitions: int
    ) -> SourceFrame | None:
        empty, no_letters = self._tables(())
        rows = carried_frame(spark, lambda: split()[0], empty, self.stage)
        if rows is None or no_letters is None:
            return None if rows is None else SourceFrame(rows)
        letters = carried_frame(spark, lambda: split()[1], no_letters, self.stage)
        return SourceFrame(rows, letters)

    def split_parameters(self, split: tuple[Row, ...]) -> SplitParameters | None:
        if len(split) > ROWS_MAX:
            return None
        tables = self._tables(split)
        is_small = all(table is None or can_be_carried(table) for table in tables)
        return SplitParameters(tables) if is_small else None

    def _tables(self, split: Sequence[Row]) -> _Tables:
        return tables_of(split, self.table, self.bad_rows, self.job, self.stage)

    def position(self) -> dict[str, Any]:
        return {
            "lsn": lsn_text(self._end),
            "row": self._row,
            "whole": lsn_text(self._whole),
            "system": self.server.system,
            "timeline": self.server.timeline,
        }

    def unacknowledged(self) -> dict[str, Any]:
        """One position stands for all changes before it."""
        return {lsn_text(self._whole): None} if self._whole > self._acknowledged else {}

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """The position is enough."""


def _quoted(name: str) -> str:
    """Quotes a publication's name, as the server requires unless it is lower-case."""
    return '"' + name.replace('"', '""') + '"'
