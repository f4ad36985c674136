"""Plain values come back as they were; nothing else is written."""

import collections
import dataclasses
import enum
import io
import math
import pickle
import struct
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.dag.items import BroadcastKey, PartitionKey
from dagster_jet.operators.user.plain_values import NotPlainError, from_bytes, to_bytes

ZONES = st.one_of(
    st.none(),
    st.timezones(),
    st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone),
    st.builds(timezone, st.timedeltas(timedelta(), timedelta(hours=2)), st.text()),
)
HASHABLE = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(2**200), 2**200),
        st.floats(),
        st.text(st.characters()),  # with surrogates
        st.binary(),
        st.datetimes(timezones=ZONES),
        st.dates(),
        st.builds(time.replace, st.times(timezones=ZONES), fold=st.integers(0, 1)),
        st.timedeltas(),
        st.decimals().filter(lambda number: not number.is_snan()),  # has no hash
        st.uuids(),
        st.builds(PartitionKey, st.integers(0, 270), st.text()),
    ),
    lambda inner: st.one_of(
        st.frozensets(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.builds(BroadcastKey, inner),
    ),
    max_leaves=8,
)
VALUES = st.recursive(
    HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.tuples(inner, inner),
        st.dictionaries(HASHABLE, inner, max_size=5),
        st.sets(HASHABLE, max_size=5),
    ),
    max_leaves=15,
)


def shape(value: Any) -> Any:
    """Properties that `==` ignores: types (1 == True == 1.0), zones, folds, signs of zeros, NaN."""
    kind = type(value)
    if kind in (list, tuple):
        return kind, [shape(element) for element in value]
    if kind is dict:
        return kind, [(shape(key), shape(element)) for key, element in value.items()]
    if kind in (set, frozenset):
        return kind, sorted(map(repr, map(shape, value)))
    if kind is BroadcastKey:
        return kind, shape(value.key)
    if kind is float:
        return kind, "nan" if math.isnan(value) else value.hex()
    if kind in (datetime, time):
        zone = value.tzinfo
        return kind, value.isoformat(), value.fold, type(zone), repr(zone)
    return kind, repr(value)


@given(VALUES)
def test_what_is_read_is_what_was_written(value: Any) -> None:
    packed = to_bytes(value)
    found = from_bytes(memoryview(packed))
    assert shape(found) == shape(value)
    assert "nan" in repr(value).lower() or found == value


def test_a_set_has_the_same_bytes_however_it_was_made() -> None:
    for elements in (
        range(100),
        [str(number) for number in range(100)],
        [(1, "a"), ("b",), None, 2.5, frozenset("ab")],
    ):
        once, again = set(elements), set()
        for element in reversed(list(elements)):
            again.add(element)
        assert to_bytes(once) == to_bytes(again)


NAMELESS = ZoneInfo.from_file(
    io.BytesIO(b"TZif" + bytes(16) + struct.pack(">6llbb4s", 0, 0, 0, 0, 1, 4, 3600, 0, 0, b"CET"))
)
"""A zone of which only the rules are known: it could not be found again by its name."""


class Pair(NamedTuple):
    left: int
    right: int


@dataclasses.dataclass
class Total:
    sum: int = 0


class Text(str):
    pass


class Color(enum.IntEnum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Total(), r"value is a .*\.Total$"),
        ({"a": [1, Total()]}, r"value\['a'\]\[1\] is a .*\.Total$"),
        ((1, (Pair(1, 2),)), r"value\[1\]\[0\] is a .*\.Pair$"),
        ([Text("x")], r"value\[0\] is a .*\.Text$"),
        ({"n": Color.RED}, r"value\['n'\] is a .*\.Color$"),
        ({Pair(1, 2): 3}, r"value, key Pair.* is a .*\.Pair$"),
        ({Pair(1, 2)}, r"value, element Pair.* is a .*\.Pair$"),
        (collections.Counter("ab"), r"value is a collections\.Counter$"),
        (collections.defaultdict(int), r"value is a collections\.defaultdict$"),
        ([1, bytearray(b"x")], r"value\[1\] is a bytearray$"),
        ({"a": (memoryview(b"x"),)}, r"value\['a'\]\[0\] is a memoryview$"),
        (BroadcastKey(Total), r"value\.key is a type$"),
        (lambda: None, r"value is a function$"),
        (datetime(2026, 1, 1, tzinfo=__import__("pytz").UTC), "value is a datetime with a pytz"),
        ([time(9, tzinfo=NAMELESS)], r"value\[0\] is a time with a .*ZoneInfo without a key$"),
    ],
)
def test_what_is_not_plain_is_refused_and_named(value: Any, said: str) -> None:
    with pytest.raises(NotPlainError, match=said):
        to_bytes(value)


def test_a_value_that_refers_to_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotPlainError, match="refers to itself"):
        to_bytes(endless)


def test_every_depth_that_is_written_is_read() -> None:
    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {1: v}, lambda v: frozenset([v, 1])):
        value: Any = 1
        for _ in range(80):
            value = wrap(value)
        assert from_bytes(to_bytes(value)) == value


class Runs:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle was read",))


def test_what_was_not_written_here_runs_nothing() -> None:
    for foreign in (pickle.dumps(Runs()), b"", b"\xc1", msgpack.packb(msgpack.ExtType(77, b"x"))):
        with pytest.raises(Exception):  # noqa: B017 - any; the caller names the stage
            from_bytes(foreign)


def test_the_format_stays() -> None:
    """Bytes that a release has written. Never change them: they are in stores."""
    value = {
        "n": [1, -5, 2**70, 1.5, None, True],
        (1, "a"): {3, 1, 2},
        b"b": frozenset("x"),
        "at": datetime(2026, 11, 22, 20, 0, 0, 5, timezone.utc),
        "in": datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        "day": date(2026, 1, 2),
        "time": time(1, 2, 3, 4, timezone(timedelta(hours=-3), "X")),
        "for": timedelta(-1, 2, 3),
        "price": Decimal("-1.50"),
        "id": UUID(int=7),
        BroadcastKey("wm"): PartitionKey(3, "p"),
    }
    assert from_bytes(bytes.fromhex(WRITTEN)) == value
    assert to_bytes(value).hex() == WRITTEN


WRITTEN = (
    "8ba16e9601fbc70904400000000000000000cb3ff8000000000000c0c393c7000101a16194c70002010203c4"
    "016292c70003a178a26174c7210593ba323032362d31312d32325432303a30303a30302e3030303030350093"
    "0000c0a2696ec7240593b3323032362d31302d32355430323a33303a303001ad4575726f70652f4265726c69"
    "6ea3646179c70a06323032362d30312d3032a474696d65c7190793af30313a30323a30332e30303030303400"
    "93d1d5d000a158a3666f72d60893ff0203a57072696365c705092d312e3530a26964d80a0000000000000000"
    "0000000000000007c7030ba2776dd60c9203a170"
)
