"""Keys that share an S3 object, and the object's format."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.store.members.s3_group import (
    BadObjectError,
    decode_index,
    encode,
    index_end,
    listing_prefix,
    name_of,
    object_of,
)

segments = st.sampled_from([b"map", b"ns", b"0042", b"index", b"", b".", b"..", b"a%2F", b"\xff"])
keys = st.one_of(
    st.binary(min_size=1, max_size=511),
    st.lists(segments, min_size=1, max_size=12).map(b"/".join).filter(lambda key: key != b""),
)


def test_all_that_a_shard_writes_shares_one_object() -> None:
    written = "stage/000000000007-3-1-9f"
    name = f"map/default/jobs%252Fj%252Fstate/{written}"
    chunks = {
        object_of(f"map/default/jobs%2Fj%2Fstate/{p:04d}/{written}".encode()) for p in (0, 270)
    }
    index = object_of(f"map/default/jobs%2Fj%2Fstate/0113/{written}/index".encode())
    assert chunks == {index} == {name}


def test_other_keys_have_an_object_of_their_own() -> None:
    others = [b"map/n/m/001/k", b"map/n/m/0001/", b"map/n/0001/k", b"k", b"k/index", b"register/r"]
    assert len({object_of(key) for key in others}) == len(others)


@given(keys, st.data())
def test_a_listing_finds_every_object_that_may_hold_a_key(key: bytes, data: st.DataObject) -> None:
    prefix = key[: data.draw(st.integers(0, len(key)))]
    assert object_of(key).startswith(listing_prefix(prefix))


@given(keys)
def test_a_name_is_one_that_every_server_takes_as_it_is(key: bytes) -> None:
    name = name_of(key)
    assert name.isascii()
    assert len(name) <= 700
    segments_of_name = name.split("/")
    assert not {".", ".."} & set(segments_of_name)
    assert "" not in segments_of_name[:-1]


@given(st.lists(keys, min_size=2, max_size=2, unique=True))
def test_two_keys_have_two_names(two: list[bytes]) -> None:
    assert name_of(two[0]) != name_of(two[1])


@given(st.dictionaries(keys, st.binary(max_size=50), min_size=1))
def test_an_object_holds_what_was_put_in(items: dict[bytes, bytes]) -> None:
    body = encode(items)
    index = decode_index(body[: index_end(body[:8])])
    assert {key: body[e.begin : e.end] for key, e in index.extents.items()} == items
    assert index.size == len(body)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda body: b"", "does not begin"),
        (lambda body: b"XX" + body[2:], "does not begin"),
        (lambda body: body[:2] + b"\x02" + body[3:], "format version 2"),
        (lambda body: body[:12] + bytes([body[12] ^ 1]) + body[13:], "index is damaged"),
        (lambda body: body[:12], "index is damaged"),
    ],
)
def test_a_damaged_object_is_told(damage: object, said: str) -> None:
    body = encode({b"key": b"value"})
    with pytest.raises(BadObjectError, match=said):
        decode_index(damage(body))
