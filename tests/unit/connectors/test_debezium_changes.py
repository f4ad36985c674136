"""Debezium's messages, and the change rows that they become.

`tests/golden/debezium.jsonl` has what Debezium 3.0.8.Final has sent of two tables of PostgreSQL 15:

    create table t (id bigint primary key, part int, name text, big text, price numeric(10,2),
        free numeric, at timestamptz, wall timestamp, wall3 timestamp(3), day date, clock time,
        raw bytea, ok boolean, real8 double precision, doc jsonb, u uuid, m mood, tags text[],
        ints int[]);
    create table f (id bigint primary key, big text, n int);
    alter table f replica identity full;

`big` has 3,000 letters there, of which the file has 30. "plain" is without schemas, with the other
settings as they are by default, except `skipped.operations=none`; "schema" with schemas; "texts"
with `decimal.handling.mode=string` and `time.precision.mode=connect`. Debezium ran as its embedded
engine (debezium-embedded, debezium-connector-postgres) with `Json` as its format.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet import sources
from dagster_jet.connectors.change_columns import not_changes
from dagster_jet.connectors.kafka.kafka_reader import Found
from dagster_jet.connectors.kafka.offsets import Partition
from dagster_jet.connectors.lake.staged_changes import ChangesLayout
from dagster_jet.connectors.sql.mirror import ChangesWriter
from dagster_jet.connectors.values.debezium_changes import DebeziumChanges, _decode, _parsed
from dagster_jet.errors import ConfigurationError, SinkMismatchError, SourceError

GOLDEN = Path(__file__).parents[2] / "golden" / "debezium.jsonl"
AS_SENT = "id bigint, name string, big string, at timestamp, day date, raw string, wall bigint"
TYPED = (
    "id bigint, part int, name string, big string, price decimal(10,2), free decimal(38,20), "
    "at timestamp, wall timestamp, wall3 timestamp, day date, raw binary, ok boolean, "
    "real8 double, doc string, u string, m string, tags array<string>, ints array<int>"
)
ROW: dict[str, Any] = {
    "part": 1, "name": 'käse "q"', "big": "x" * 30, "price": "-12345678.90",
    "free": "1234567890.12345678901234567890", "at": "2026-01-01T10:30:01.123456Z",
    "wall": "1969-12-31T23:59:59.999999+00:00", "wall3": "2026-01-01T00:00:00.123000+00:00",
    "day": "1969-12-31", "raw": "AP8Q", "ok": True, "real8": 0.1, "doc": '{"a": [1]}',
    "u": "5b6c2d1e-0000-4000-8000-000000000001", "m": "bad", "tags": ["a", "b"], "ints": [1, 2],
}  # fmt: skip
KEY = b'{"id": 1}'


def golden(how: str, table: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values."""
    lines = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    mine = [one for one in lines if (one["how"], one["table"]) == (how, table)]
    texts = [(one["key"], one["value"]) for one in mine]
    return [(k and k.encode(), v and v.encode()) for k, v in texts]


def read(
    schema: str,
    *messages: tuple[bytes | None, Any],
    alone: bool = True,
    tombstones_delete: bool = False,
) -> list[Any]:
    """Objects, or the text of what is none."""
    keys = [key for key, _ in messages]
    values = [v if isinstance(v, bytes | None) else json.dumps(v).encode() for _, v in messages]
    found = DebeziumChanges(schema, tombstones_delete).texts(values, keys, alone=alone)
    return [None if t is None else json.loads(t) if t[:1] == b"{" else t.decode() for t in found]


def test_what_debezium_sends_with_schemas() -> None:
    inserted, updated, deleted = read(TYPED, *golden("schema", "t"), alone=False)
    unknown = {"_unchanged": [], "_ordered_by": ["id"]}
    assert inserted == {"op": "insert", "id": 30, **ROW, **unknown}
    old = {**dict.fromkeys(ROW), "id": 30}
    assert updated == {
        **inserted, "op": "update", "name": "u", "big": None, "_unchanged": ["big"], "_old": old,
    }  # fmt: skip
    assert deleted == {"op": "delete", **old, "_old": old, **unknown}


def test_what_debezium_sends_as_texts_and_by_connects_types() -> None:
    [inserted] = read(TYPED, *golden("texts", "t"))
    wall = "1969-12-31T23:59:59.999000+00:00"  # Connect has milliseconds only
    row = {**ROW, "wall": wall, "_unchanged": [], "_ordered_by": []}
    assert inserted == {"op": "insert", "id": 40, **row}


def test_what_debezium_sends_without_schemas() -> None:
    """A key that changes is a deletion, a tombstone and an insertion; where the table's replica
    identity is its key, the insertion lacks a large value, which nobody may take for a value."""
    rows = read(AS_SENT, *golden("plain", "t"))
    found = [(row["op"], row["id"]) for row in rows if isinstance(row, dict)]
    assert found == [
        ("insert", 1), ("insert", 20), ("update", 20), ("delete", 20), ("update", 21),
        ("delete", 21),
    ]  # fmt: skip
    assert rows[4] is None and rows[8] is None
    assert "does not have the value of big" in rows[5] and "replica identity full" in rows[5]
    first = {name: ROW[name] for name in ("name", "big", "at", "day", "raw")}
    assert rows[0] == {
        "op": "insert", "id": 1, **first, "wall": -1, "_unchanged": [], "_ordered_by": [],
    }  # fmt: skip
    assert rows[2]["_unchanged"] == ["big"] and rows[2]["big"] is None
    assert rows[2]["_old"] == {**dict.fromkeys(first), "wall": None, "id": 20}
    whole = read("id bigint, big string, n int", *golden("plain", "f"))
    assert [row and (row["op"], row.get("id"), row.get("big")) for row in whole] == [
        ("insert", 1, "y" * 30), ("update", 1, "y" * 30), ("insert", 20, "z" * 30),
        ("delete", 20, "z" * 30), None, ("insert", 21, "z" * 30), ("delete", 21, "z" * 30), None,
        ("truncate", None, None), ("insert", 1, "y" * 30),
    ]  # fmt: skip
    assert whole[1]["_old"] == {"id": 1, "big": "y" * 30, "n": 1} and whole[1]["n"] == 2


def test_what_only_a_schema_explains_is_refused_without_it() -> None:
    for column, type, wanted in (
        ("price", "decimal(10,2)", "'tmn9Lg==' is a number which only the message's schema"),
        ("wall", "timestamp", "-1 is a time which only the message's schema explains"),
        ("raw", "binary", "'AP8Q' are bytes which only the message's schema explains"),
    ):
        [found, *_] = read(f"id bigint, {column} {type}", *golden("plain", "t"))
        assert f"the column {column}: {wanted}" in found
    [free, *_] = read("id bigint, free decimal(38,20)", *golden("plain", "t"))
    assert free["free"] == ROW["free"]  # it says its scale itself


# --- every value, in every encoding ---------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_US = timedelta(microseconds=1)
TIMES = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(timezone.utc))


def _bytes(number: int) -> str:
    return base64.b64encode(number.to_bytes(20, "big", signed=True)).decode()


def _exact(number: Decimal, scale: int) -> int:
    """Decimal as a whole number, by its digits: no context rounds it."""
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits)) or "0") * 10 ** (exponent + scale)
    return -whole if sign else whole


def _named(name: str | None, type: str, **more: Any) -> dict[str, Any]:
    return {"type": type, **({} if name is None else {"name": name}), **more}


def _decimals(number: Decimal) -> list[tuple[Any, dict[str, Any]]]:
    scale = {"parameters": {"scale": "9"}}
    unscaled = _bytes(_exact(number, 9))
    return [
        (unscaled, _named("org.apache.kafka.connect.data.Decimal", "bytes", **scale)),
        (
            {"scale": 9, "value": unscaled},
            _named("io.debezium.data.VariableScaleDecimal", "struct"),
        ),
        (f"{number:f}", _named(None, "string")),
    ]


def _times(at: datetime) -> list[tuple[Any, dict[str, Any]]]:
    micros = (at - _EPOCH) // _US
    zoned = at.isoformat().replace("+00:00", "Z")
    found: list[tuple[Any, dict[str, Any]]] = [
        (micros, _named("io.debezium.time.MicroTimestamp", "int64")),
        (micros * 1000, _named("io.debezium.time.NanoTimestamp", "int64")),
        (zoned, _named("io.debezium.time.ZonedTimestamp", "string")),
    ]
    if micros % 1000 == 0:
        names = ("io.debezium.time.Timestamp", "org.apache.kafka.connect.data.Timestamp")
        found += [(micros // 1000, _named(name, "int64")) for name in names]
    return found


@given(
    number=st.decimals(min_value=Decimal(-(10**29) + 1), max_value=Decimal(10**29 - 1), places=9),
    at=st.one_of(
        TIMES, TIMES.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000))
    ),
    day=st.dates(),
    raw=st.binary(),
    text=st.text(),
    whole=st.integers(-(2**63), 2**63 - 1),
    real=st.floats(allow_nan=False, allow_infinity=False),
    op=st.sampled_from("cru"),
    data=st.data(),
)
def test_every_value_in_every_encoding_is_that_value(
    number: Decimal, at: datetime, day: date, raw: bytes, text: str, whole: int, real: float,
    op: str, data: st.DataObject,
) -> None:  # fmt: skip
    sent_number, number_field = data.draw(st.sampled_from(_decimals(number)))
    sent_at, at_field = data.draw(st.sampled_from(_times(at)))
    sent_day, day_name = data.draw(
        st.sampled_from([
            ((day - date(1970, 1, 1)).days, "io.debezium.time.Date"),
            ((day - date(1970, 1, 1)).days, "org.apache.kafka.connect.data.Date"),
            (f"{day.isoformat()}Z", "io.debezium.time.IsoDate"),
        ])
    )  # fmt: skip
    after = {
        "id": whole, "number": sent_number, "at": sent_at, "day": sent_day,
        "raw": base64.b64encode(raw).decode(), "text": text, "real": real, "none": None,
    }  # fmt: skip
    kinds = {
        "id": _named(None, "int64"), "number": number_field, "at": at_field,
        "day": _named(day_name, "int32"), "raw": _named(None, "bytes"),
        "text": _named(None, "string"), "real": _named(None, "double"),
        "none": _named("io.debezium.time.Date", "int32"),
    }  # fmt: skip
    columns = [{**kind, "field": name} for name, kind in kinds.items()]
    struct = {"type": "struct", "fields": columns}
    schema = {"fields": [{**struct, "field": "after"}, {**struct, "field": "before"}]}
    value = {"schema": schema, "payload": {"op": op, "before": None, "after": after}}
    key = {"schema": {"fields": columns[:1]}, "payload": {"id": whole}}
    ddl = (
        "id bigint, number decimal(38,9), at timestamp, day date, raw binary, text string, "
        "real double, none date"
    )
    [row] = read(ddl, (json.dumps(key).encode(), value), alone=False)
    assert Decimal(row["number"]) == number and row["number"][-10] == "."
    assert datetime.fromisoformat(row["at"].replace("Z", "+00:00")) == at
    assert date.fromisoformat(row["day"]) == day and base64.b64decode(row["raw"]) == raw
    assert (row["id"], row["text"], row["real"], row["none"]) == (whole, text, real, None)
    assert row["op"] == ("update" if op == "u" else "insert")
    assert row.get("_old", {}).get("id") == (whole if op == "u" else None)


@given(
    numbers=st.lists(st.decimals(-(10**20), 10**20, places=9), min_size=1),
    how=st.integers(0, 2),
)
def test_an_array_of_texts_keeps_the_digits_of_numbers(numbers: list[Decimal], how: int) -> None:
    """Failed before: a JSON number had a double's digits, and other numbers were no texts."""
    texts = [f"{number:f}" for number in numbers]
    sent, items = f"[{', '.join(texts)}]", _named(None, "string")
    if how:
        sent = json.dumps([_decimals(number)[how - 1][0] for number in numbers])
        items = _decimals(numbers[0])[how - 1][1]
    field = {"type": "array", "items": items, "field": "v"}
    schema = json.dumps({"fields": [{"field": "after", "fields": [field]}]})
    payload = f'{{"op": "c", "after": {{"v": {sent}}}}}'
    message = f'{{"schema": {schema}, "payload": {payload}}}'
    [row] = read("v array<string>", (KEY, message.encode()))
    assert [Decimal(text).as_tuple() for text in row["v"]] == [
        number.as_tuple() for number in map(Decimal, texts)
    ]
    [row] = read("v array<string>", (KEY, {"op": "c", "after": {"v": [None, "a", 7]}}))
    assert row["v"] == [None, "a", 7]


INSIDE: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "map": ("map<string,string>", {"k": "?"}, {"type": "map", "values": "?"}),
    "struct": (
        "struct<N: string NOT NULL COMMENT 'price, net', d: double>",
        {"N": "?", "d": 0.5, "unknown": 1},
        {"type": "struct", "fields": [{"field": "N", "is": "?"}, {"field": "d"}]},
    ),
    "array of maps": (
        "array<map<string,string>>",
        [{"k": "?"}, None],
        {"type": "array", "items": {"type": "map", "values": "?"}},
    ),
    "struct of arrays": (
        "struct<n: bigint, `a b`: array<string>>",
        {"n": 2**62, "a b": [None, "?"]},
        {"type": "struct", "fields": [{"field": "a b", "type": "array", "items": "?"}]},
    ),
}


def _filled(shape: Any, content: Any) -> Any:
    """A shape with a content in place of each question mark."""
    if isinstance(shape, list):
        return [_filled(one, content) for one in shape]
    if isinstance(shape, dict):
        found = {name: _filled(one, content) for name, one in shape.items()}
        return {**found, **found.pop("is", {})}
    return content if shape == "?" else shape


@pytest.mark.parametrize(("ddl", "value", "field"), INSIDE.values(), ids=INSIDE)
def test_texts_inside_of_a_value_keep_the_digits_of_numbers(
    ddl: str, value: Any, field: dict[str, Any]
) -> None:
    """Failed before: a JSON number had a double's digits, and the others were no texts."""
    number = Decimal("-12345678901234567890.123456789")
    numbers: list[tuple[Any, dict[str, Any]]] = [("NUMBER", {}), *_decimals(number)]
    for sent, kind in numbers:
        column = {**_filled(field, kind), "field": "v"}
        schema = json.dumps({"fields": [{"field": "after", "fields": [column]}]})
        after = json.dumps({"v": _filled(value, sent)}).replace('"NUMBER"', f"{number:f}")
        message = f'{{"schema": {schema}, "payload": {{"op": "c", "after": {after}}}}}'
        [row] = read(f"v {ddl}", (KEY, message.encode()))
        assert row["v"] == _filled(value, f"{number:f}")
    [row] = read(f"v {ddl}", (KEY, {"op": "c", "after": {"v": "another"}}))
    assert row["v"] == "another"


# --- what is none ---------------------------------------------------------------------------------

AFTER = {"id": 1, "v": "a"}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (b"no json", "Expecting value"),
        (b"\xff", "can't decode byte"),
        ([1], "its value is not a JSON object"),
        ({"id": 1, "v": "a"}, "its op is None, not one of c, r, u, d, t"),
        ({"op": "m", "after": AFTER}, "its op is 'm'"),
        ({"op": "c", "after": None}, "its after has none of the columns"),
        ({"op": "c", "after": {"other": 1}}, "its after has none of the columns"),
        ({"op": "t"}, "it truncates the table, and the topic has several partitions"),
    ],
)
def test_a_message_that_is_no_change_says_why(value: Any, wanted: str) -> None:
    [found] = read("id bigint, v string", (KEY, value), alone=False)
    assert found.startswith("not a change from Debezium (") and wanted in found


NAMES = st.sampled_from(["schema", "payload", "op", ',"payload":'])
DOCUMENTS = st.recursive(
    st.none() | st.integers() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
)


@given(document=DOCUMENTS, cut=st.integers(0, 9), compact=st.booleans())
def test_a_schema_that_is_parsed_once_changes_no_message(
    document: Any, cut: int, compact: bool
) -> None:
    text = json.dumps(document, separators=(",", ":") if compact else None)
    for damaged in (text, text[: len(text) - cut], text + text[:cut]):
        assert _of(_parsed, damaged) == _of(_decode, damaged), damaged


def _of(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        return str(error)


def test_a_message_needs_a_key_where_it_says_the_order() -> None:
    change = {"op": "d", "before": {"id": 1}}
    for key, wanted in ((None, "it has no key"), (b"7", "its key is not a JSON object")):
        [found] = read("id bigint", (key, change), alone=False)
        assert wanted in found
    [found] = read("id bigint", (None, change))
    assert (found["op"], found["_old"], found["_ordered_by"]) == ("delete", {"id": 1}, [])


def test_a_tombstone_is_a_deletion_where_that_is_asked_for() -> None:
    """Compaction may have left nothing else of it."""
    assert read("id bigint, v string", (KEY, None)) == [None]
    wrapped = json.dumps({"schema": {"fields": []}, "payload": {"id": 1}}).encode()
    for key in (KEY, wrapped):
        [found] = read("id bigint, v string", (key, None), tombstones_delete=True, alone=False)
        assert (found["op"], found["id"], found["_old"]) == ("delete", 1, {"id": 1, "v": None})


@pytest.mark.parametrize(
    ("kind", "value", "field", "wanted"),
    [
        ("decimal(4,2)", 1.005, "double", "1.005 has too many digits for decimal(4,2)"),
        ("decimal(4,2)", 100, "int32", "100 is too large for decimal(4,2)"),
        ("decimal(4,2)", "NaN", "string", "'NaN', sent as string, cannot be read as decimal(4,2)"),
        ("decimal(4,2)", True, "boolean", "cannot be read as decimal"),
        ("date", 10**10, "int32", "10000000000 cannot be read"),
        ("timestamp", 9223372036825200000, "io.debezium.time.MicroTimestamp", "000 cannot be read"),
        ("timestamp", 1, "io.debezium.time.NanoTimestamp", "the column v: 1 cannot be read"),
        ("timestamp", 1, "io.debezium.time.MicroTime", "sent as io.debezium.time.MicroTime"),
        ("timestamp", "2026-01-01T00:00:00", "string", "cannot be read as timestamp"),
        ("date", 1, "io.debezium.time.Timestamp", "cannot be read as date"),
        ("binary", "00ff", "string", "'00ff', sent as string, cannot be read as binary"),
    ],
)
def test_a_value_that_would_be_guessed_is_refused(
    kind: str, value: Any, field: str, wanted: str
) -> None:
    told = {"name": field, "type": "?"} if "." in field else {"type": field}
    schema = {"fields": [{"field": "after", "fields": [{**told, "field": "v"}]}]}
    message = {"schema": schema, "payload": {"op": "c", "after": {"v": value}}}
    [found] = read(f"v {kind}", (KEY, message))
    assert "the column v: " in found and wanted in found


def test_a_source_is_refused_before_it_reads() -> None:
    def source(schema: str = "id bigint", topics: Any = "t", **more: Any) -> Any:
        return sources.kafka("h:1", topics=topics, format="debezium", schema=schema, **more)

    for schema, wanted in (
        ("id bigint, OP string", "'OP' is a column that every change has"),
        ("id bigint, at array<timestamp>", r"'at' cannot be read as array<timestamp>"),
        ("id bigint, at timestamp_ntz", "'at' cannot be read as timestamp_ntz"),
        ("id bigint, s struct<d: decimal(3,1)>", "'s' cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=wanted):
            source(schema)
    source("id bigint not null, s struct<date: string, mandate: int>, price decimal(3, 1)")
    for topics in ((), ("a", "b")):
        with pytest.raises(ConfigurationError, match=r"topics: .* several tables|either topics"):
            source(topics=topics, pattern=None if topics else "a.*")
    assert source().row_schema() == (
        "op string, id bigint, _old struct<`id`: bigint>, _unchanged array<string>, "
        "_ordered_by array<string>, _partition int, _offset bigint"
    )


# --- order ----------------------------------------------------------------------------------------


def changes(ordered_by: Any) -> pa.RecordBatch:
    row = {"op": "insert", "tenant": 1, "id": 1, "_old": {"tenant": 1, "id": 1}, "_unchanged": []}
    return pa.RecordBatch.from_pylist(
        [{**row, "_offset": 0, "_partition": 0, "_ordered_by": ordered_by}]
    )


@pytest.mark.parametrize(
    ("ordered_by", "key", "is_fine"),
    [
        (["id"], ["id"], True),
        (["id"], ["tenant", "id"], True),  # changes of one such key are in one partition
        ([], ["id"], True),  # there is one partition
        (["tenant", "id"], ["id"], False),  # those of one id may be in several
        (["tenant"], ["id"], False),
        (None, ["id"], False),
    ],
)
def test_a_key_whose_changes_have_no_order_is_refused(
    ordered_by: Any, key: list[str], is_fine: bool
) -> None:
    class Segment:
        def append(self, data: bytes, rows: int) -> None: ...

    rows = changes(ordered_by)
    writes = [
        lambda: ChangesWriter(Segment(), tuple(key), "j", "out").write(rows),
        lambda: list(ChangesLayout(key, True, "j", "out").divided(rows)),
    ]
    for write in writes:
        if is_fine:
            write()
            continue
        with pytest.raises(SinkMismatchError, match="may be in several partitions"):
            write()


def test_changes_without_the_column_of_their_order_are_refused() -> None:
    rows = changes(["id"])
    assert not_changes(rows.schema, ["id"]) is None
    without = rows.drop_columns(["_ordered_by"])
    assert "no column _ordered_by" in str(not_changes(without.schema, ["id"]))


def test_a_partition_that_is_added_ends_the_job() -> None:
    """Messages of one key are then in two, and nobody knows which came first."""
    source = sources.kafka("h:1", topics="t", format="debezium", schema="id bigint")
    one, two = Partition("t", 0), Partition("t", 1)
    reader = source.open("j", "changes", None)
    reader.accept(Found({one: 0}, {one: 5}, {one: 0}, {"t": "x"}))
    assert [range.alone for range in reader.plan(9) or ()] == [True]
    with pytest.raises(SourceError, match=r"t/1 was added to the topic"):
        reader.accept(Found({one: 0, two: 0}, {one: 5, two: 1}, {two: 0}, {"t": "x"}))
    again = source.open("j", "changes", None)
    again.restore(reader.position(), None)
    with pytest.raises(SourceError, match="was added"):
        again.accept(Found({one: 0, two: 0}, {one: 5, two: 1}, {two: 0}, {"t": "x"}))
    both = source.open("j", "changes", None)
    both.accept(Found({one: 0, two: 0}, {one: 5, two: 1}, {one: 0, two: 0}, {"t": "x"}))
    assert [range.alone for range in both.plan(9) or ()] == [False, False]
