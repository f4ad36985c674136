"""A table that changes at random, and what Debezium writes of it: envelopes by its documentation,
as `tests/golden/debezium` has real ones. The table itself is what a mirror has to be."""

from __future__ import annotations

import base64
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from confluent_kafka import Producer

Row = tuple[int, str | None, str | None, Decimal, datetime]
Message = tuple[dict[str, Any] | None, dict[str, Any] | None]
"""Key and value."""

COLUMNS = "id bigint primary key, name text, large text, price numeric(10,2), at timestamptz"
UNAVAILABLE = "__debezium_unavailable_value"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_COLUMNS = [
    {"type": "int64", "optional": False, "field": "id"},
    {"type": "string", "optional": True, "field": "name"},
    {"type": "string", "optional": True, "field": "large"},
    {
        "type": "bytes",
        "optional": True,
        "name": "org.apache.kafka.connect.data.Decimal",
        "version": 1,
        "parameters": {"scale": "2", "connect.decimal.precision": "10"},
        "field": "price",
    },
    {
        "type": "int64",
        "optional": True,
        "name": "io.debezium.time.MicroTimestamp",
        "version": 1,
        "field": "at",
    },
]
_KEY = {"type": "struct", "fields": _COLUMNS[:1], "optional": False, "name": "shop.public.t.Key"}
_VALUE = {
    "type": "struct",
    "fields": [
        {"type": "struct", "fields": _COLUMNS, "optional": True, "field": "before"},
        {"type": "struct", "fields": _COLUMNS, "optional": True, "field": "after"},
        {"type": "string", "optional": False, "field": "op"},
    ],
    "optional": False,
    "name": "shop.public.t.Envelope",
}


@dataclass
class ChangingTable:
    """Few keys, so that changes of one meet in an epoch."""

    some: random.Random
    rows: dict[int, Row] = field(default_factory=dict)

    def changes(self, count: int) -> Iterator[Message]:
        for _ in range(count):
            id = self.some.randrange(12)
            if id not in self.rows:
                self.rows[id] = self._row(id)
                yield self._message(id, "c")
                continue
            match self.some.randrange(8):
                case 0 | 1:
                    del self.rows[id]
                    yield from self._deleted(id)
                case 2:  # of a key that changes, Debezium says that a row is gone and one is new
                    other = self.some.randrange(12)
                    if other not in self.rows:
                        self.rows[other] = (other, *self.rows.pop(id)[1:])
                        yield from self._deleted(id)
                        yield self._message(other, "c")
                case 3:  # an incremental snapshot reads rows again
                    yield self._message(id, "r")
                case 4 | 5:  # the large value stays, and is not in the message
                    _, name, _, price, at = self._row(id)
                    self.rows[id] = (id, name, self.rows[id][2], price, at)
                    yield self._message(id, "u", large=UNAVAILABLE)
                case _:
                    self.rows[id] = self._row(id)
                    yield self._message(id, "u")

    def _row(self, id: int) -> Row:
        micros = self.some.randrange(-(10**15), 2 * 10**15)
        price = Decimal(self.some.randrange(-(10**10) + 1, 10**10)).scaleb(-2)
        name = self.some.choice([None, "", "é ☃", f"n{self.some.random()}"])
        large = self.some.choice([None, f"{self.some.random()}" * 50])
        return id, name, large, price, _EPOCH + timedelta(microseconds=micros)

    def _message(self, id: int, op: str, **changed: Any) -> Message:
        row = _as_sent(self.rows[id]) | changed
        return self._key(id), _envelope(op, before=None, after=row)

    def _deleted(self, id: int) -> Iterator[Message]:
        before = {"id": id, **dict.fromkeys(("name", "large", "price", "at"))}
        yield self._key(id), _envelope("d", before=before, after=None)
        yield self._key(id), None

    def _key(self, id: int) -> dict[str, Any]:
        return {"schema": _KEY, "payload": {"id": id}}

    def contents(self) -> Counter[Row]:
        return Counter(self.rows.values())


def produce(servers: str, topic: str, messages: Iterable[Message]) -> None:
    """Produces changes as Debezium does: each by its key, in their order."""
    producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    for key, value in messages:
        texts = [None if one is None else json.dumps(one) for one in (value, key)]
        producer.produce(topic, *texts)
        producer.poll(0)
    assert producer.flush(30) == 0


def _envelope(op: str, **rows: Any) -> dict[str, Any]:
    source = {"connector": "postgresql", "table": "t", "lsn": 1}
    return {"schema": _VALUE, "payload": {**rows, "op": op, "source": source, "ts_ms": 1}}


def _as_sent(row: Row) -> dict[str, Any]:
    id, name, large, price, at = row
    unscaled = int(price.scaleb(2))
    sent = base64.b64encode(unscaled.to_bytes(6, "big", signed=True)).decode()
    micros = (at - _EPOCH) // timedelta(microseconds=1)
    return {"id": id, "name": name, "large": large, "price": sent, "at": micros}
