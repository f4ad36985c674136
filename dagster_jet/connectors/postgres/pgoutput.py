"""Decoder of PostgreSQL's `pgoutput` plug-in, protocol version 1.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Values = dict[str, str | None]
_OPS = {"I": "insert", "U": "update", "D": "delete"}


@dataclass(frozen=True)
class LogColumn:
    """Column as described by the log at the time of the change."""

    name: str
    type_oid: int
    modifier: int
    is_identity: bool
    """True if deletions, and updates that change it, contain its old value."""


@dataclass(frozen=True)
class Relation:
    """Table as described by the log at the time of the change."""

    oid: int
    name: str
    """`schema.table`."""
    columns: tuple[LogColumn, ...]
    """In the order of their creation; without generated columns."""


@dataclass(frozen=True)
class Change:
    """Insert, update or delete of a row, or truncation of a table."""

    op: str
    relation: Relation
    values: Values = field(repr=False)
    """Values as text; for a deletion only the replica identity."""
    old: Values | None = field(default=None, repr=False)
    """Replica identity of the row before an update or deletion; the whole row with `replica
    identity full`."""
    unchanged: tuple[str, ...] = ()
    """Names of large values that an update did not change; the log omits them."""


@dataclass(frozen=True)
class Transaction:
    """Changes of one transaction, in order."""

    end: int
    """Position in the log after its commit."""
    changes: tuple[Change, ...]
    messages: int
    """Number of messages that the server sent for it."""


@dataclass
class _Message:
    """Parser of one message."""

    data: bytes
    at: int = 1

    def number(self, form: str) -> int:
        (found,) = struct.unpack_from(f">{form}", self.data, self.at)
        self.at += struct.calcsize(f">{form}")
        return int(found)

    def letter(self) -> str:
        self.at += 1
        return chr(self.data[self.at - 1])

    def text(self) -> str:
        end = self.data.index(b"\0", self.at)
        found, self.at = self.data[self.at : end].decode(), end + 1
        return found

    def bytes(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]


def transactions(messages: Iterable[bytes]) -> Iterator[Transaction]:
    """Decodes messages. The first begins a transaction, the last ends one."""
    relations: dict[int, Relation] = {}
    changes: list[Change] = []
    count = 0
    for data in messages:
        message, kind = _Message(data), chr(data[0])
        count += 1
        if kind == "B":
            changes, count = [], 1
        elif kind == "R":
            relation = _relation(message)
            relations[relation.oid] = relation
        elif kind in _OPS:
            changes.append(_change(message, kind, relations[message.number("I")]))
        elif kind == "T":
            tables, _ = message.number("I"), message.number("B")
            for _ in range(tables):
                changes.append(Change("truncate", relations[message.number("I")], {}))
        elif kind == "C":
            message.at += 1 + 8  # flags, the position of the commit itself
            yield Transaction(message.number("Q"), tuple(changes), count)


def _relation(message: _Message) -> Relation:
    oid, schema, name = message.number("I"), message.text(), message.text()
    message.letter()  # replica identity setting
    columns = []
    for _ in range(message.number("H")):
        is_identity, column = bool(message.number("B") & 1), message.text()
        type_oid, modifier = message.number("I"), message.number("i")
        columns.append(LogColumn(column, type_oid, modifier, is_identity))
    return Relation(oid, f"{schema}.{name}", tuple(columns))


def _change(message: _Message, kind: str, relation: Relation) -> Change:
    part = message.letter()
    old: Values | None = None
    if part in "KO":
        old, _ = _tuple(message, relation)
        if part == "K":  # the other columns are sent as nulls, whatever their values
            old = {column.name: old[column.name] for column in relation.columns
                   if column.is_identity}  # fmt: skip
        if kind == "D":
            return Change(_OPS[kind], relation, old, old)
        message.letter()
    new, unchanged = _tuple(message, relation)
    if old is not None:
        new |= {name: old[name] for name in unchanged if name in old}
        unchanged = tuple(name for name in unchanged if name not in old)
    elif kind == "U":  # an unchanged identity is not repeated
        old = {column.name: new[column.name] for column in relation.columns if column.is_identity}
    return Change(_OPS[kind], relation, new, old, unchanged)


def _tuple(message: _Message, relation: Relation) -> tuple[Values, tuple[str, ...]]:
    """Values, and names of unchanged values that the log omits."""
    values: Values = {}
    unchanged = []
    for column in relation.columns[: message.number("H")]:
        kind = message.letter()
        if kind == "t":
            values[column.name] = message.bytes(message.number("I")).decode()
            continue
        values[column.name] = None
        if kind == "u":
            unchanged.append(column.name)
    return values, tuple(unchanged)
