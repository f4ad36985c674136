"""JSON lines that Arrow may parse, and those that it must leave to Spark."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.connectors.files.json_rows import parse

TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("i", pa.int32()),
        ("s", pa.string()),
        ("d", pa.float64()),
        ("b", pa.bool_()),
        ("t", TIME),
        ("p", pa.struct([("x", pa.int64()), ("t", TIME)])),
        ("l", pa.list_(pa.struct([("t", TIME), ("v", pa.string())]))),
    ]
)
NOON = datetime(2026, 7, 15, 12, tzinfo=timezone.utc)


def rows(block: bytes, *, is_utc: bool = True) -> list[dict[str, Any]] | None:
    """Rows without their nulls."""
    batch = parse(block, SCHEMA, is_utc=is_utc)
    if batch is None:
        return None
    assert batch.schema == SCHEMA
    batch.validate(full=True)
    return [{k: v for k, v in row.items() if v is not None} for row in batch.to_pylist()]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_objects_of_plain_values_one_per_line(end: bytes) -> None:
    lines = [
        b'{"n": 1, "i": -2, "s": "a", "d": 0.1, "b": true, "t": "2026-07-15T12:00:00.000Z"}',
        b'{"other": [{"n": 5}], "s": "\\u00e4\\ud83d\\ude00", "n": null, "d": 3}',
        b"{}",
        b'{"p": {"t": "2026-07-15 12:00:00Z"}, "l": [{"v": "x"}, null, {"t": null}]}',
        b'{"p": null, "l": [], "t": "2026-07-15T12:00:00Z"}',
    ]
    assert rows(b"\n".join(lines) + end) == [
        {"n": 1, "i": -2, "s": "a", "d": 0.1, "b": True, "t": NOON},
        {"s": "ä😀", "d": 3.0},
        {},
        {
            "p": {"x": None, "t": NOON},
            "l": [{"t": None, "v": "x"}, None, {"t": None, "v": None}],
        },
        {"l": [], "t": NOON},
    ]


@pytest.mark.parametrize(
    "block",
    [
        *(b'{"n": "1"}', b'{"n": 1.0}', b'{"n": 1e3}', b'{"n": ""}', b'{"n": true}'),
        *(b'{"n": 9223372036854775808}', b'{"i": 3000000000}', b'{"n": 01}', b'{"n": [1]}'),
        *(b'{"s": 5}', b'{"s": {}}', b'{"s": "\\ud83d"}', b'{"s": "\xff"}', b'{"s": "a\tb"}'),
        *(b'{"d": "NaN"}', b'{"d": 1e400}', b'{"b": "true"}', b'{"b": 1}'),
        *(b'{"p": []}', b'{"p": 5}', b'{"l": {}}', b'{"l": 5}'),
        *(b'{"n": 1, "n": 2}', b"{'n': 1}", b'{"n": 1,}', b'{"n": 1', b"[]", b'[{"n": 1}]'),
        *(b'{"n": 1} ', b' {"n": 1}', b'{"n": 1}{"n": 2}', b'{"n": 1}\n\n{"n": 2}', b"", b"\n"),
        *(b'{"n": 1}\r\n{"n": 2}', b'{"n":\n1}', b'{"p":\n{"x": 1}}', b'\xef\xbb\xbf{"n": 1}'),
        *(b'{"n": 1} // one', b'{"other": 01}', b'{"other": "\\x"}', b'{"n": 1}\n{"n": "2"}'),
    ],
)
def test_what_spark_may_take_otherwise_is_sparks(block: bytes) -> None:
    assert rows(block) is None


@pytest.mark.parametrize(
    "text",
    [
        *("2026-07-15", "2026-07-15T12", "2026-07-15T12:00", "2026-7-15T12:00:00Z"),
        *("2026-07-15T12:00:00+02:00", "2026-07-15T12:00:00.1234567Z", "2026-02-30T12:00:00Z"),
        *("2026-07-15T24:00:00Z", "0026-07-15T12:00:00Z", "2026-07-15T12:00:00z", "now", ""),
        "2026-07-15T12:00:00Z\\n",
    ],
)
def test_times_that_are_written_otherwise_are_sparks(text: str) -> None:
    assert rows(b'{"t": "%s"}' % text.encode()) is None
    assert rows(b'{"p": {"t": "%s"}}' % text.encode()) is None
    assert rows(b'{"l": [{"t": "%s"}]}' % text.encode()) is None


def test_times_without_a_zone_are_of_the_sessions() -> None:
    block = b'{"t": "2026-07-15T12:00:00"}\n{"t": null}'
    assert rows(block) == [{"t": NOON}, {}]
    assert rows(block, is_utc=False) is None
    assert rows(b'{"t": "2026-07-15T12:00:00"}\n{"t": "2026-07-15T12:00:00Z"}') is None
