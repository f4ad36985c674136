"""Requests to members that arrive late: when their successors are done, they change nothing.

The network holds a request back and resets the client's connection; the server's side of it lives
on. The client asks again, or reads and decides. Then the request arrives.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pytest

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.store import MapKey, MemoryMember, PartitionTable, ReplicatedMap, open_member
from dagster_jet.store.map.stored_key import stored_key
from dagster_jet.store.members import redis as redis_member
from dagster_jet.store.members.member import Member, Replacement, Versioned
from tests.servers.members import AwsServer, RedisServer
from tests.servers.proxy import Proxy

PREFIX, NAME = "map/n/m", b"a-name"
KEY, OTHER = MapKey(0, "a-name"), MapKey(1, "a-name")
"""Keys that share an object on S3."""
LARGE = 400_000
"""DynamoDB keeps such a value in parts."""


class Place:
    """One member as two clients see it: through a network, and at once."""

    def __init__(self, port: int, url: Callable[[int], str], **options: Any) -> None:
        self.proxy = Proxy(port, **options)
        self.through, self.direct = (open_member(url(p)) for p in (self.proxy.port, port))
        # Redis learns a script when it is first used, S3 is tried.
        self.through.put_many({b"first": b""})
        self.through.replace_many({b"first": Replacement(b"", b"1")})
        self.through.delete_many([b"first"])

    def maps(self) -> tuple[ReplicatedMap, ReplicatedMap]:
        return one_copy(self.through), one_copy(self.direct)

    def close(self) -> None:
        self.through.close()
        self.direct.close()
        self.proxy.close()


def one_copy(member: Member) -> ReplicatedMap:
    return ReplicatedMap({member.member_id: member}, table_of(member.member_id), PREFIX)


def table_of(*member_ids: str) -> PartitionTable:
    """All of both partitions, in this order."""
    return PartitionTable(1, (member_ids,) * 2, tuple(sorted(member_ids)), len(member_ids) - 1)


@pytest.fixture(scope="module")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture(scope="module")
def aws() -> Iterator[AwsServer]:
    with AwsServer() as started:
        started.create_bucket("bucket")
        yield started


@pytest.fixture
def place(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    name = uuid.uuid4().hex
    if kind.startswith("redis"):
        port = urlsplit(request.getfixturevalue("redis_server").url).port
        made = Place(port, lambda port: f"redis://127.0.0.1:{port}/0?prefix={name}:")
    else:
        server = request.getfixturevalue("aws")
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        where = "s3://bucket/" if kind == "s3" else "dynamodb://t-"
        port = urlsplit(server.endpoint_url).port
        made = Place(
            port,
            lambda port: f"{where}{name}?endpoint_url=http://127.0.0.1:{port}",
            is_http=True,
        )
    yield made
    made.close()


ALL_KINDS = pytest.mark.parametrize(
    ("kind", "size"), [("redis", 0), ("s3", 0), ("dynamodb", 0), ("dynamodb", LARGE)]
)


def write_of(kind: str, *, by: bytes = b"EVALSHA", removes: bool = False) -> Any:
    """Returns a predicate for requests that write the key's value. `by`: a command of Redis."""
    if kind == "s3":
        return lambda asked: asked.startswith(b"PUT") and NAME in asked
    if kind == "dynamodb":
        word, name = (b"DeleteRequest" if removes else b"Put"), NAME.hex().encode()
        return lambda asked: word in asked and name in asked  # a head: parts have a digest
    return lambda asked: by in asked and NAME in asked


@ALL_KINDS
def test_a_compare_and_set_that_arrives_late(place: Place, kind: str, size: int) -> None:
    """The client does not know whether its write succeeded: it reads, and sets again."""
    register, values = place.through, [bytes([n]) * (size or 1) for n in range(4)]
    assert register.compare_and_set(NAME, 0, values[0])
    held = place.proxy.hold_next(write_of(kind))
    with pytest.raises(StoreUnavailableError, match="unknown"):
        register.compare_and_set(NAME, 1, values[1])
    assert register.get_versioned(NAME) == Versioned(1, values[0])
    assert register.compare_and_set(NAME, 1, values[2])
    assert register.compare_and_set(NAME, 2, values[3])
    assert held.release()
    assert place.direct.get_versioned(NAME) == Versioned(3, values[3])


def version(number: int, size: int = 0) -> bytes:
    return number.to_bytes(8, "big") + bytes(size)


def until_done(call: Callable[[], object]) -> None:
    """Calls again if it is not known whether something was written, as the caller of a map does."""
    try:
        call()
    except StoreUnavailableError:
        call()


@ALL_KINDS
def test_a_version_of_a_value_that_arrives_late(place: Place, kind: str, size: int) -> None:
    through, at_once = place.maps()
    for number in (1, 2, 3):
        if number == 2:
            held = place.proxy.hold_next(write_of(kind))
        until_done(partial(through.put_newer, {KEY: version(number, size), OTHER: b"other..."}))
    assert held.release()
    assert at_once.get_all([KEY, OTHER]) == [version(3, size), b"other..."]


@pytest.mark.parametrize(
    ("kind", "size", "in_transaction"),
    [("redis", 0, False), ("redis", 0, True), ("s3", 0, False), ("dynamodb", 0, False),
     ("dynamodb", LARGE, False)],
)  # fmt: skip
def test_a_value_that_arrives_when_it_was_removed(
    place: Place, kind: str, size: int, in_transaction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late value is an orphan, or a damaged one. A later value of the same name is whole."""
    through, at_once = place.maps()
    if in_transaction:
        monkeypatch.setattr(redis_member, "_PLAIN_BYTES", 0)
    held = place.proxy.hold_next(write_of(kind, by=b"EXEC" if in_transaction else b"EVALSHA"))
    through.put_all({KEY: version(1, size)})
    through.put_all({OTHER: b"other"})
    through.delete_all([KEY])
    assert held.release()
    [copy] = place.direct.get_many([stored_key(PREFIX, KEY.partition, KEY.name)])
    assert copy is None or copy == b"" or at_once.get(KEY) == version(1, size)
    through.put_all({KEY: version(2, size)})
    assert at_once.get_all([KEY, OTHER]) == [version(2, size), b"other"]
    through.delete_all([KEY])
    assert at_once.keys() == [OTHER]


@ALL_KINDS
def test_a_removal_that_arrives_late(place: Place, kind: str, size: int) -> None:
    """The removal on S3 writes the rest of a group."""
    through, at_once = place.maps()
    through.put_all({KEY: version(1, size), OTHER: version(1, size)})
    held = place.proxy.hold_next(write_of(kind, removes=True))
    through.delete_all([KEY])
    through.put_newer({OTHER: version(2, size)})
    assert held.release()
    assert at_once.keys() == [OTHER] and at_once.get(OTHER) == version(2, size)


@pytest.mark.parametrize("kind", ["dynamodb"])
def test_a_head_whose_parts_were_replaced_meanwhile_is_a_damaged_copy(place: Place) -> None:
    """The damaged copy is repaired from another replica."""
    with closing(MemoryMember(uuid.uuid4().hex)) as backup:
        members = {member.member_id: member for member in (place.through, backup)}
        map = ReplicatedMap(members, table_of(*members), PREFIX)
        held = place.proxy.hold_next(write_of("dynamodb"))
        map.put_all({KEY: version(1, LARGE)})
        map.put_all({KEY: version(2, LARGE)})
        assert held.release()
        [copy] = place.direct.get_many([stored_key(PREFIX, KEY.partition, KEY.name)])
        assert copy == b""
        assert map.get(KEY) == version(2, LARGE) and map.stats.repaired == 1
        assert map.get(KEY) == version(2, LARGE) and map.stats.repaired == 1
