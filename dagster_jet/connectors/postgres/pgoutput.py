"""The messages of PostgreSQL's `pgoutput` plug-in, protocol version 1, as changes of rows.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

Values = dict[str, str | None]
_OPS = {"I": "insert", "U": "update", "D": "delete"}


class UnchangedValueError(Exception):
    """A large value that an update did not touch is not in the log; names the table, the column."""


@dataclass(frozen=True)
class Change:
    """One row that was inserted, updated, deleted; or a table that was truncated."""

    op: str
    table: str
    """`schema.table`."""
    values: Values = field(repr=False)
    """As text; of a deleted row those of its replica identity."""


@dataclass(frozen=True)
class Transaction:
    """What one transaction has changed, in order."""

    end: int
    """The position in the log behind its commit."""
    changes: tuple[Change, ...]
    messages: int
    """How many the server has sent for it."""


@dataclass
class _Message:
    """Reads what one message holds, from its beginning on."""

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


@dataclass(frozen=True)
class _Relation:
    name: str
    columns: tuple[str, ...]
    identity: frozenset[str]


def transactions(messages: Iterable[bytes]) -> Iterator[Transaction]:
    """Decodes messages, which begin with a transaction and end with one.

    Raises:
        UnchangedValueError: see there.
    """
    relations: dict[int, _Relation] = {}
    changes: list[Change] = []
    count = 0
    for data in messages:
        message, kind = _Message(data), chr(data[0])
        count += 1
        if kind == "B":
            changes, count = [], 1
        elif kind == "R":
            id, relation = _relation(message)
            relations[id] = relation
        elif kind in _OPS:
            relation = relations[message.number("I")]
            changes.append(Change(_OPS[kind], relation.name, _values(message, kind, relation)))
        elif kind == "T":
            tables, _ = message.number("I"), message.number("B")
            for _ in range(tables):
                changes.append(Change("truncate", relations[message.number("I")].name, {}))
        elif kind == "C":
            message.at += 1 + 8  # flags, the position of the commit itself
            yield Transaction(message.number("Q"), tuple(changes), count)


def _relation(message: _Message) -> tuple[int, _Relation]:
    id, schema, name = message.number("I"), message.text(), message.text()
    message.letter()  # how rows are identified
    columns, identity = [], set()
    for _ in range(message.number("H")):
        is_identity, column = message.number("B") & 1, message.text()
        message.at += 8  # type and modifier
        columns.append(column)
        if is_identity:
            identity.add(column)
    return id, _Relation(f"{schema}.{name}", tuple(columns), frozenset(identity))


def _values(message: _Message, kind: str, relation: _Relation) -> Values:
    part, old = message.letter(), {}
    if part in "KO":
        old = _tuple(message, relation)
        if part == "K":  # the other columns are sent as nulls, which they need not be
            old = {name: old[name] for name in old if name in relation.identity}
        if kind == "D":
            return {name: value for name, value in old.items() if value is not _UNCHANGED}
        message.letter()
    new = _tuple(message, relation)
    for name, value in new.items():
        if value is _UNCHANGED:
            if old.get(name, _UNCHANGED) is _UNCHANGED:
                raise UnchangedValueError(relation.name, name)
            new[name] = old[name]
    return new


_UNCHANGED = "\0unchanged"
"""No text in PostgreSQL has a zero in it."""


def _tuple(message: _Message, relation: _Relation) -> Values:
    values: Values = {}
    for name in relation.columns[: message.number("H")]:
        kind = message.letter()
        if kind == "n":
            values[name] = None
        elif kind == "u":
            values[name] = _UNCHANGED
        else:
            values[name] = message.bytes(message.number("I")).decode()
    return values
