"""The driver's side of a slot: peeks, hands rows out, advances once a snapshot has them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dagster_jet.connectors.contract import Backlog, Lag, SourceFrame, SourceReader
from dagster_jet.connectors.postgres.pgoutput import (
    Change,
    Transaction,
    UnchangedValueError,
    transactions,
)
from dagster_jet.connectors.postgres.types import reads
from dagster_jet.connectors.sql.failures import as_source_errors
from dagster_jet.connectors.sql.place import SqlPlace, sqlalchemy
from dagster_jet.errors import BadRowError, InputLostError, SourceError
from dagster_jet.system.failpoint import fail_point

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from sqlalchemy import Connection

MESSAGES_AT_ONCE = 20_000
"""A poll asks for so many that are new; the server ends with the transaction that has the last."""
_SLOT = (
    "select cast(confirmed_flush_lsn as text), cast(pg_current_wal_flush_lsn() as text) "
    "from pg_replication_slots where slot_name = :slot"
)
_PEEK = (
    "select data from pg_logical_slot_peek_binary_changes(:slot, null, :count, "
    "'proto_version', '1', 'publication_names', :publication)"
)
_ADVANCE = "select pg_replication_slot_advance(:slot, cast(:lsn as pg_lsn))"


@dataclass
class ChangesReader(SourceReader):
    """Of one execution. `_seen`, `_kept` and the connection belong to the source's own thread."""

    place: SqlPlace
    slot: str
    publication: str
    columns: Mapping[str, pa.DataType]
    job: str
    stage: str
    _waiting: deque[tuple[int, int, bool, Change]] = field(default_factory=deque)
    """(end of the transaction, number in it, whether it is the last there, change)."""
    _end: int = 0
    """Of the last transaction that was handed out from; of that, so many rows:"""
    _row: int = 0
    _whole: int = 0
    """The end of the last transaction that was handed out whole."""
    _acknowledged: int = 0
    """Up to where the slot is advanced, by us."""
    _seen: int = 0
    _kept: deque[tuple[int, int]] = field(default_factory=deque)
    """(end, messages) of what was peeked and is still in the slot."""
    _log_end: str = ""
    _backlog: Backlog = Backlog.READ
    _is_to_end: bool = False
    _backlog_end: int | None = None
    """Where the log ended at the first poll after `mark_backlog`."""
    _stack: ExitStack = field(default_factory=ExitStack)
    _connection: Connection | None = None

    acknowledges_positions = True

    def restore(self, position: Mapping[str, Any], journal: pa.Table | None) -> None:
        self._end, self._row = lsn_of(position["lsn"]), position["row"]
        self._whole = lsn_of(position["whole"])
        self._seen = self._whole

    # --- on the source's own thread ---------------------------------------------------------------

    def poll(self) -> list[Transaction]:
        with self._classified():
            try:
                found = self._peek()
            except UnchangedValueError as error:
                table, column = error.args
                raise SourceError(
                    f"an update of {table} left the large value of {column} as it was, and the "
                    "log does not repeat it.",
                    job=self.job,
                    stage=self.stage,
                    cure=f"alter table {table} replica identity full; then let the job start from "
                    "a new slot.",
                ) from None
            except BaseException:
                self._hang_up()
                raise
        return found

    def _peek(self) -> list[Transaction]:
        connection, text = self._connected(), sqlalchemy().text
        row = connection.execute(text(_SLOT), {"slot": self.slot}).one_or_none()
        if row is None or (self._whole and lsn_of(row[0]) > self._whole):
            gone = "does not exist any more" if row is None else f"has been advanced to {row[0]}"
            raise InputLostError(
                f"the slot {self.slot!r} {gone}: the changes since {lsn_text(self._whole)} cannot "
                "be read again.",
                job=self.job,
                stage=self.stage,
                cure="Start the job anew, under another name and with another slot, from a copy "
                "of the table.",
            )
        if self._is_to_end and self._backlog_end is None:
            self._backlog_end = lsn_of(row[1])
        if row[1] == self._log_end:
            return []  # nothing has come that can be decoded
        confirmed = lsn_of(row[0])
        while self._kept and self._kept[0][0] <= confirmed:
            self._kept.popleft()
        known = sum(messages for _, messages in self._kept)
        asked = {
            "slot": self.slot,
            "count": known + MESSAGES_AT_ONCE,
            "publication": self.publication,
        }
        messages = [bytes(data) for (data,) in connection.execute(text(_PEEK), asked)]
        found = [one for one in transactions(messages) if one.end > self._seen]
        self._kept.extend((one.end, one.messages) for one in found)
        if found:
            self._seen = found[-1].end
        if not found:
            self._log_end = row[1]
        return found

    def acknowledge(self, messages: Mapping[str, Any]) -> None:
        """Advances the slot. It never goes back, so twice is success."""
        if not messages:
            return
        upto = max(lsn_of(text) for text in messages)
        with self._classified():
            try:
                connection, text = self._connected(), sqlalchemy().text
                fail_point("postgres.advance.before")
                row = connection.execute(text(_SLOT), {"slot": self.slot}).one_or_none()
                if row is not None and lsn_of(row[0]) < upto:
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
            self._connection = self._stack.enter_context(self.place.connected(autocommit=True))
        return self._connection

    def _hang_up(self) -> None:
        self._connection = None
        with suppress(Exception):  # it may be the connection that has failed
            self._stack.close()

    def _classified(self) -> Any:
        return as_source_errors(self.place, self.job, self.stage)

    # --- on the execution's threads ---------------------------------------------------------------

    def mark_backlog(self) -> None:
        self._backlog, self._is_to_end = Backlog.WAITING, True

    def backlog(self) -> Backlog:
        return self._backlog

    def accept(self, found: Sequence[Transaction]) -> None:
        end = self._backlog_end
        if end is not None and (not found or found[-1].end >= end):
            self._backlog = Backlog.READ
        for one in found:
            # Of the one that a snapshot has divided, only the rest.
            first = self._row if one.end == self._end else 0
            last = len(one.changes) - 1
            for number in range(first, len(one.changes)):
                row = one.end, number, number == last, one.changes[number]
                self._waiting.append(row)

    def waiting(self) -> Lag:
        return Lag(len(self._waiting), {"changes": len(self._waiting)})

    def plan(self, max_rows: int) -> tuple[Change, ...] | None:
        taken: list[Change] = []
        while self._waiting and len(taken) < max(1, max_rows):
            end, number, is_last, change = self._waiting.popleft()
            self._end, self._row = end, number + 1
            if is_last:
                self._whole = end
            taken.append(change)
        return tuple(taken) or None

    def frame(self, spark: SparkSession, split: tuple[Change, ...]) -> SourceFrame:
        table = self._table(split)
        return SourceFrame(spark.createDataFrame(table))

    def _table(self, changes: Sequence[Change]) -> pa.Table:
        columns = {"op": pa.array([change.op for change in changes], pa.string())}
        for name, kind in self.columns.items():
            values = self._read(changes, name, reads(kind))
            columns[name] = pa.array(list(values), kind)
        return pa.table(columns)

    def _read(
        self, changes: Sequence[Change], name: str, read: Callable[[str], Any]
    ) -> Iterator[Any]:
        for change in changes:
            text = change.values.get(name)
            try:
                yield None if text is None else read(text)
            except (ValueError, ArithmeticError):
                raise BadRowError(
                    f"the column {name} of {change.table} has the value {text!r}, which has no "
                    "counterpart in Spark.",
                    job=self.job,
                    stage=self.stage,
                    cure="Leave the column out of the publication, or keep other values in it.",
                ) from None

    def verify(self, split: Any, rows: int) -> None:
        """What a slot has kept does not change."""

    def position(self) -> dict[str, Any]:
        whole = lsn_text(self._whole)
        return {"lsn": lsn_text(self._end), "row": self._row, "whole": whole}

    def unacknowledged(self) -> dict[str, Any]:
        """One position stands for all changes before it."""
        return {lsn_text(self._whole): None} if self._whole > self._acknowledged else {}

    def restore_unacknowledged(self, messages: Mapping[str, Any]) -> None:
        """The position says it all."""


def lsn_of(text: str) -> int:
    """A position in the log as a number."""
    high, _, low = text.partition("/")
    return (int(high, 16) << 32) | int(low, 16)


def lsn_text(lsn: int) -> str:
    """As the server writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
