"""S3 and DynamoDB as members, through moto's server: requests, crashes, wrong settings."""

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import boto3
import pyarrow as pa
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EndpointConnectionError,
    ReadTimeoutError,
)
from botocore.httpsession import URLLib3Session

from dagster_jet.errors import (
    ConfigurationError,
    FencedError,
    StoreUnavailableError,
    StoreUnwritableError,
)
from dagster_jet.snapshot.storage.chains import read_chain
from dagster_jet.snapshot.storage.chunks import (
    PARTITION_COLUMN,
    ChunkSetName,
    chunk_keys,
    write_chunk_set,
)
from dagster_jet.store import MapKey, ReplicatedMap, Store, StoreConfig, create_table, open_member
from dagster_jet.store.members import dynamodb, member_id_of, s3, s3_values
from dagster_jet.store.members.dynamodb import DynamoDbMember
from dagster_jet.store.members.member import Replacement, Versioned
from dagster_jet.store.members.s3 import S3Member
from dagster_jet.store.values.envelope import seal
from tests.long import long
from tests.servers.members import AwsServer, free_port

PARTITIONS = 271


@pytest.fixture(scope="module")
def shared_server() -> Iterator[AwsServer]:
    with AwsServer() as started:
        started.create_bucket("bucket")
        yield started


@pytest.fixture
def server(shared_server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    for name, value in shared_server.environment.items():
        monkeypatch.setenv(name, value)
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(variable, "/not/there")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return shared_server


@pytest.fixture
def s3_url(server: AwsServer) -> str:
    return f"s3://bucket/{uuid.uuid4().hex}?endpoint_url={server.endpoint_url}"


@pytest.fixture
def table_url(server: AwsServer) -> str:
    return f"dynamodb://jet-{uuid.uuid4().hex}?endpoint_url={server.endpoint_url}"


class Requests:
    """Counts the requests of each method that arrive while it is open."""

    def __init__(self, server: AwsServer) -> None:
        self._server = server
        self.seen: dict[str, int] = {}

    def __enter__(self) -> "Requests":
        self._before = self._server.requests()
        return self

    def __exit__(self, *_: object) -> None:
        after = self._server.requests()
        self.seen = {m: n - self._before.get(m, 0) for m, n in after.items()}
        self.seen = {method: number for method, number in self.seen.items() if number}


# --- URLs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "member_id"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/?region=eu-west-1&timeout=3", "s3://bucket/a/b"),
        (
            "s3://bucket/a?endpoint_url=http://minio:9000",
            "s3://bucket/a?endpoint_url=http://minio:9000",
        ),
        ("dynamodb://Jet_1.x?create=0", "dynamodb://Jet_1.x"),
        ("dynamodb://t?region=eu-west-1&prefix=p", "dynamodb://t?prefix=p&region=eu-west-1"),
    ],
)
def test_an_id_names_the_place(url: str, member_id: str) -> None:
    assert member_id_of(url) == open_member(url).member_id == member_id
    assert member_id in repr(open_member(url))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3:///prefix", "cannot be read.*s3://bucket/prefix"),
        ("s3://key:secret@bucket/x", "takes no user, password or port"),
        ("s3://bucket?endpoint_url=http://me:secret@host", "takes no user, password or port"),
        ("s3://bucket?endpoint_url=host:9000", "endpoint_url.*expected http://"),
        ("dynamodb://table?regoin=x", "regoin.*Use: connect_timeout, create"),
        ("dynamodb://table?create=maybe", "create.*expected 0 or 1"),
    ],
)
def test_a_wrong_url_is_refused_without_repeating_it(url: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        open_member(url)
    assert "secret" not in str(refused.value)


# --- S3: requests -------------------------------------------------------------------------------


def write_snapshot(chunks: ReplicatedMap, shards: int, rows_per_partition: int) -> list[Any]:
    written = []
    for shard in range(shards):
        count = PARTITIONS * rows_per_partition
        rows = pa.table(
            {
                PARTITION_COLUMN: pa.array([n % PARTITIONS for n in range(count)], pa.int32()),
                "value": [f"{shard}-{n}".ljust(64, "x") for n in range(count)],
            }
        )
        name = ChunkSetName("stage", 7, 3, shard, "9f")
        written.append(
            write_chunk_set(
                chunks,
                name,
                rows,
                range(PARTITIONS),
                sequence=0,
                is_base=True,
                partition_count=PARTITIONS,
            )
        )
    return written


@pytest.mark.parametrize(("rows_per_partition", "gets_per_shard"), [(1, 2), (40, 2)])
def test_requests_are_counted_by_shards_not_by_partitions(
    server: AwsServer, s3_url: str, rows_per_partition: int, gets_per_shard: int
) -> None:
    shards = 3
    open_member(s3_url).ping()  # the server's conditions have been tried

    def fresh_map() -> ReplicatedMap:
        member = S3Member(s3_url)
        table = create_table([member.member_id], PARTITIONS, 0)
        return ReplicatedMap({member.member_id: member}, table, "map/default/jobs%2Fj%2Fstate")

    with Requests(server) as writing:
        sets = write_snapshot(fresh_map(), shards, rows_per_partition)
    assert writing.seen == {"PUT": shards}
    assert {one.chunks for one in sets} == {PARTITIONS}

    restored = fresh_map()
    with Requests(server) as restoring:
        for one in sets:
            rows = read_chain(restored, [one], vertex="stage", partition_count=PARTITIONS)
            assert rows is not None
            assert rows.num_rows == PARTITIONS * rows_per_partition
    assert restoring.seen == {"GET": gets_per_shard * shards}

    collector = fresh_map()
    with Requests(server) as listing:
        assert len(collector.keys()) == shards * (PARTITIONS + 1)
    assert listing.seen == {"GET": 1 + shards}
    with Requests(server) as deleting:
        for one in sets:
            collector.delete_all(chunk_keys(collector, one.name, PARTITIONS))
    assert deleting.seen == {"GET": shards, "DELETE": shards}
    assert collector.keys() == []


@pytest.mark.parametrize("ignored", ["PUT If-None-Match", "PUT If-Match", "DELETE If-Match"])
def test_a_server_that_ignores_a_condition_is_refused_at_the_first_opening(
    server: AwsServer, ignored: str
) -> None:
    bucket = f"deaf-{uuid.uuid4().hex}"
    server.create_bucket(bucket)
    config = StoreConfig(
        (f"s3://{bucket}?endpoint_url={server.endpoint_url}",), backup_count=0, partition_count=3
    )
    server.ignore(ignored)
    try:
        request, condition = ignored.split()
        said = f"s3://{bucket}.* ignores {condition} of {request}.*Use AWS S3"
        with pytest.raises(StoreUnwritableError, match=said):
            Store.open(config)
    finally:
        server.ignore()
    Store.open(config).close()
    with boto3_client(server, "s3") as client:
        assert not client.list_objects_v2(Bucket=bucket, Prefix="probe/").get("Contents")
    with Requests(server) as asked, Store.open(config):
        pass
    assert set(asked.seen) == {"GET"}, "tried once per process"


@pytest.mark.parametrize("damage", [b"something else", pytest.param(b"", marks=long), "cut off"])
def test_a_damaged_object_is_a_damaged_copy_and_repaired_as_any_other(
    server: AwsServer, damage: bytes | str
) -> None:
    place = uuid.uuid4().hex
    urls = tuple(f"s3://bucket/{place}-{m}?endpoint_url={server.endpoint_url}" for m in "ab")
    with Store.open(StoreConfig(urls, partition_count=3)) as store:
        written = store.map("m")
        chunks = {MapKey(partition, "shard"): b"%d" % partition * 9 for partition in range(3)}
        items = {**chunks, written.key("other"): b"other"}
        written.put_all(items)
        with boto3_client(server, "s3") as client:
            at = {"Bucket": "bucket", "Key": f"{place}-a/values/map/default/m/shard"}
            body = client.get_object(**at)["Body"].read()
            client.put_object(**at, Body=damage if isinstance(damage, bytes) else body[:-1])
    with Store.open(StoreConfig(urls, partition_count=3)) as store:
        written = store.map("m")
        items[written.key("newer")] = b"newer"
        written.put_all({written.key("newer"): b"newer"})
        found = store.verify()
        assert found.keys == len(items)
        assert found.damaged == (1 if damage == "cut off" else 3)
        assert not found.is_whole
        repaired = store.verify(repair=True)
        assert repaired.repaired >= found.damaged
        assert store.verify().is_whole
        for url in urls:
            copies = open_member(url).get_many(
                [f"map/default/m/{key.partition:04d}/{key.name}".encode() for key in items]
            )
            assert copies == [seal(value) for value in items.values()]
        written.delete_all(list(chunks))
        assert written.keys() == sorted(items.keys() - chunks.keys())


def test_what_is_damaged_can_be_written_and_deleted(server: AwsServer, s3_url: str) -> None:
    member = S3Member(s3_url)
    with boto3_client(server, "s3") as client:
        prefix = s3_url.removeprefix("s3://bucket/").split("?")[0]
        for name in ("a", "b"):
            client.put_object(Bucket="bucket", Key=f"{prefix}/values/{name}", Body=b"junk")
    assert member.get_many([b"a", b"b", b"c"]) == [b"", b"", None]
    with pytest.raises(StoreUnavailableError, match=r"objects that cannot be read: .*values/a.*/b"):
        member.list_keys(b"")
    member.put_many({b"a": b"new", b"c": b"new"})
    member.delete_many([b"b"])
    assert member.get_many([b"a", b"b", b"c"]) == [b"new", None, b"new"]
    assert member.list_keys(b"") == [b"a", b"c"]


def test_a_few_values_of_a_large_group_are_read_by_their_ranges(
    server: AwsServer, s3_url: str
) -> None:
    keys = [b"map/n/m/%04d/large" % partition for partition in range(PARTITIONS)]
    items = {key: os.urandom(20_000) for key in keys}
    S3Member(s3_url).put_many(items)
    member = S3Member(s3_url)
    assert member.get_many(keys[:1]) == [items[keys[0]]]  # the index came with it
    with Requests(server) as asked:
        wanted = [keys[100], keys[101], keys[102], keys[200]]
        assert member.get_many(wanted) == [items[key] for key in wanted]
    assert asked.seen == {"GET": 2}
    with Requests(server) as asked:
        assert member.get_many([*keys, b"map/n/m/0000/other"]) == [*items.values(), None]
    assert asked.seen["GET"] <= 3


def test_what_another_writes_is_seen_though_an_index_is_remembered(s3_url: str) -> None:
    first, second = b"map/n/m/0001/large", b"map/n/m/0002/large"
    reader, writer = S3Member(s3_url), S3Member(s3_url)
    writer.put_many({first: bytes(400_000), second: b""})
    assert reader.get_many([first, second]) == [bytes(400_000), b""]
    writer.put_many({first: b"1" * 400_000, second: b"2"})
    assert reader.get_many([second]) == [b"2"]
    assert reader.get_many([first]) == [b"1" * 400_000]
    writer.delete_many([first])
    assert reader.get_many([first, second]) == [None, b"2"]
    writer.delete_many([second])
    assert reader.get_many([second]) == [None]
    assert reader.list_keys(b"") == []


def test_a_group_that_is_one_too_many_replaces_the_oldest_index(
    server: AwsServer, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: all indexes were forgotten, and the next listing read each object again."""
    monkeypatch.setattr(s3_values, "_SMALL_MAX", 20)
    keys = [b"entry-%02d" % number for number in range(20)]
    member = S3Member(s3_url)
    for key in (b"before", *keys):  # one after the other, so the order is known
        member.put_many({key: b"v"})
    shards = {b"map/n/m/%04d/shard" % partition: b"v" for partition in range(PARTITIONS)}
    member.put_many(shards)  # an index of many keys takes no place of a small one
    with Requests(server) as asked:
        assert member.list_keys(b"entry") == keys
        assert member.list_keys(b"map/") == [*shards]
    assert asked.seen == {"GET": 2}, "the LISTs alone"


def test_an_owner_that_has_just_written_does_not_read_again(server: AwsServer, s3_url: str) -> None:
    own, other = open_member(s3_url), open_member(s3_url)
    assert own.compare_and_set(b"k", 0, b"1") and other.get_versioned(b"k") is not None
    with Requests(server) as requests:
        assert own.compare_and_set(b"k", 1, b"2")
    assert requests.seen == {"PUT": 1}
    assert not other.compare_and_set(b"k", 1, b"x"), "it has seen version 1, which is gone"
    found = other.get_versioned(b"k")
    assert found is not None and (found.version, found.value) == (2, b"2")
    assert other.compare_and_set(b"k", 2, b"3") and not own.compare_and_set(b"k", 2, b"x")
    assert own.compare_and_set(b"k", 3, b"4"), "it reads what it has not seen"
    for member in (own, other):
        member.close()


def test_an_owner_of_a_register_reads_once_and_then_only_writes(
    server: AwsServer, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = StoreConfig((s3_url,), backup_count=0)
    with Store.open(config) as store, Store.open(config) as other:
        owned = store.register("job").claim(1, "a")
        owned.write(b"1")
        with Requests(server) as requests:
            owned.write(b"2")
            owned.write(b"3")
        assert requests.seen == {"PUT": 2}
        found = other.register("job").read()
        assert found is not None and found.value == b"3"
        monkeypatch.setattr(s3, "_WRITTEN_LAST_S", -1.0)
        with Requests(server) as requests:
            owned.write(b"4")
        assert requests.seen == {"GET": 1, "PUT": 1}, "after a while a read meets an outage first"
        monkeypatch.undo()
        owned.write(b"5")
        newer = other.register("job").claim(2, "b")
        assert newer.value == b"5"
        with pytest.raises(FencedError):
            owned.write(b"zombie")
        newer.write(b"6")
        found = store.register("job").read()
        assert found is not None and found.value == b"6"


def test_a_bucket_that_is_put_back_behind_the_owners_writes_is_noticed(
    server: AwsServer, s3_url: str
) -> None:
    bucket = boto3.client("s3", endpoint_url=server.endpoint_url)
    prefix = f"{s3_url.removeprefix('s3://bucket/').partition('?')[0]}/versioned/"
    with Store.open(StoreConfig((s3_url,), backup_count=0)) as store:
        owned = store.register("job").claim(1, "a")
        owned.write(b"1")
        listed = bucket.list_objects_v2(Bucket="bucket", Prefix=prefix)["Contents"]
        names = [found["Key"] for found in listed]
        older = {n: bucket.get_object(Bucket="bucket", Key=n)["Body"].read() for n in names}
        for number in range(2, 12):
            owned.write(b"%d" % number)
        for name, body in older.items():
            bucket.put_object(Bucket="bucket", Key=name, Body=body)
        for use in (store.register("job").read, lambda: store.register("job").claim(2, "b")):
            with pytest.raises(StoreUnavailableError):
                use()


@pytest.mark.parametrize(
    ("failure", "was_not_applied"),
    [
        (EndpointConnectionError(endpoint_url="https://there"), True),
        (ClientError({"Error": {"Code": "AccessDenied"}}, "PutObject"), True),
        (ReadTimeoutError(endpoint_url="https://there"), False),
    ],
    ids=["refused connection", "refused request", "no answer"],
)
def test_a_set_says_whether_it_was_certainly_not_applied(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, failure: Exception, was_not_applied: bool
) -> None:
    def put_object(**_: Any) -> Any:
        raise failure

    member = S3Member(s3_url)
    assert member.compare_and_set(b"k", 0, b"1")
    monkeypatch.setattr(member._aws.once, "put_object", put_object)
    with pytest.raises((StoreUnavailableError, StoreUnwritableError)) as raised:
        member.compare_and_set(b"k", 1, b"2")
    assert raised.value.was_not_applied is was_not_applied
    member.close()


def test_a_group_that_becomes_empty_is_deleted(server: AwsServer, s3_url: str) -> None:
    member = S3Member(s3_url)
    keys = [b"map/n/m/%04d/name" % partition for partition in range(3)]
    member.put_many(dict.fromkeys(keys, b"v"))
    member.delete_many(keys[:1])
    assert member.list_keys(b"map/n/m/") == keys[1:]
    assert member.list_keys(b"map/n/m/0001/na") == keys[1:2]
    member.delete_many(keys[1:])
    with boto3_client(server, "s3") as client:
        prefix = s3_url.split("/")[3].partition("?")[0]
        assert client.list_objects_v2(Bucket="bucket", Prefix=prefix)["KeyCount"] == 0


def test_writers_of_one_group_lose_nothing_to_each_other(s3_url: str) -> None:
    def write(writer: int) -> None:
        member = S3Member(s3_url)
        for number in range(4):
            member.put_many({b"map/n/m/%04d/name" % (writer * 10 + number): b"%d" % number})
            if number % 2:
                member.delete_many([b"map/n/m/%04d/name" % (writer * 10 + number)])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [b"map/n/m/%04d/name" % (writer * 10 + n) for writer in range(3) for n in (0, 2)]
    assert S3Member(s3_url).list_keys(b"") == kept


# --- DynamoDB: large values ---------------------------------------------------------------------


def items_of(server: AwsServer, url: str) -> list[dict[str, Any]]:
    with boto3_client(server, "dynamodb") as client:
        pages = client.get_paginator("scan").paginate(TableName=url[11:].partition("?")[0])
        return [item for page in pages for item in page["Items"]]


def test_parts_are_there_while_their_value_is(server: AwsServer, table_url: str) -> None:
    member = DynamoDbMember(table_url)
    large, larger = os.urandom(800_000), os.urandom(1_200_000)
    for value, items in ((large, 4), (larger, 5), (b"small", 1), (large, 4)):
        member.put_many({b"k": value})
        assert member.get_many([b"k"]) == [value]
        assert len(items_of(server, table_url)) == items
    assert member.replace_many({b"k": Replacement(larger, b"")}) == 0
    assert member.replace_many({b"k": Replacement(large, larger)}) == 1
    assert len(items_of(server, table_url)) == 5
    assert member.compare_and_set(b"r", 0, large)
    assert not member.compare_and_set(b"r", 0, larger)
    assert member.compare_and_set(b"r", 1, b"small")
    member.delete_many([b"k"])
    assert len(items_of(server, table_url)) == 1


class SleepsBeforeItsSweep(DynamoDbMember):
    """Member whose process is suspended after it has written a head."""

    def _sweep(self, place: Any, **generations: Any) -> int:
        self.wake = partial(super()._sweep, place, **generations)
        return 0


@pytest.mark.parametrize("how", ["put", "replace", "delete"])
def test_a_writer_that_slept_keeps_the_parts_of_a_later_value(
    server: AwsServer, table_url: str, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Failed before: it removed every old generation but its own."""
    sleeper, other = SleepsBeforeItsSweep(table_url), DynamoDbMember(table_url)
    other.put_many({b"k": bytes(500_000)})
    if how == "put":
        sleeper.put_many({b"k": b"1" * 500_000})
    elif how == "replace":
        assert sleeper.replace_many({b"k": Replacement(bytes(500_000), b"1" * 500_000)}) == 1
    else:
        sleeper.delete_many([b"k"])
    other.put_many({b"k": b"2" * 500_000})
    monkeypatch.setattr(dynamodb, "_ORPHAN_SECONDS", -1)  # an hour later
    assert sleeper.wake() == 2, "the parts of the first value"
    assert other.get_many([b"k"]) == [b"2" * 500_000]
    assert len(items_of(server, table_url)) == 3


class DiesAfterItsParts(DynamoDbMember):
    """Member whose process ends as soon as the parts of a value are written."""

    def _write(self, items: Any) -> None:
        super()._write(items)
        raise SystemExit


def test_a_crash_between_parts_and_head_leaves_the_old_value(
    server: AwsServer, table_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = DynamoDbMember(table_url)
    old = os.urandom(500_000)
    member.put_many({b"k": old, b"other": b"v"})
    for _ in range(2):
        with pytest.raises(SystemExit):
            DiesAfterItsParts(table_url).put_many({b"k": os.urandom(500_000)})
    assert member.get_many([b"k"]) == [old]
    assert len(items_of(server, table_url)) == 4 + 2 * 2
    assert member.remove_orphans() == 0, "young parts may belong to a write under way"
    monkeypatch.setattr(dynamodb, "_ORPHAN_SECONDS", -1)
    assert member.remove_orphans() == 4
    with pytest.raises(SystemExit):
        DiesAfterItsParts(table_url).put_many({b"k": os.urandom(500_000)})
    new = os.urandom(500_000)
    member.put_many({b"k": new})
    assert member.get_many([b"k", b"other"]) == [new, b"v"]
    assert len(items_of(server, table_url)) == 4


def test_a_reader_never_sees_half_a_value(table_url: str) -> None:
    writer, reader = DynamoDbMember(table_url), DynamoDbMember(table_url)
    values = [bytes([number]) * 800_000 for number in range(2)]
    writer.put_many({b"k": values[0]})
    read: list[bytes | None] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.is_set():
            read.extend(reader.get_many([b"k"]))

    looking = threading.Thread(target=look)
    looking.start()
    for number in range(6):
        writer.put_many({b"k": values[number % 2]})
    is_over.set()
    looking.join()
    assert read
    assert all(value in values for value in read)


def test_what_dynamodb_leaves_undone_is_asked_for_again(table_url: str) -> None:
    member = DynamoDbMember(table_url)
    member.ping()
    events = member._aws.repeating.meta.events
    held_back: list[Any] = []

    def hold_back(params: dict[str, Any], **_: Any) -> dict[str, Any]:
        ((table, asked),) = params["RequestItems"].items()
        requests = asked["Keys"] if isinstance(asked, dict) else asked
        if len(requests) == 1:
            return params
        held_back.append(requests[-1])
        rest = requests[:-1]
        return {"RequestItems": {table: {**asked, "Keys": rest} if "Keys" in asked else rest}}

    def report(parsed: dict[str, Any], model: Any, **_: Any) -> None:
        if held_back:
            left = held_back.pop()
            table = table_url[11:].partition("?")[0]
            if model.name == "BatchGetItem":
                parsed["UnprocessedKeys"] = {table: {"Keys": [left], "ConsistentRead": True}}
            else:
                parsed["UnprocessedItems"] = {table: [left]}

    for operation in ("BatchGetItem", "BatchWriteItem"):
        events.register(f"provide-client-params.dynamodb.{operation}", hold_back)
        events.register(f"after-call.dynamodb.{operation}", report)
    items = {b"%d" % number: b"v" for number in range(5)}
    member.put_many(items)
    assert member.get_many(list(items)) == list(items.values())
    assert DynamoDbMember(table_url).list_keys(b"") == sorted(items)


# --- places that are emptied -------------------------------------------------------------------


def test_a_bucket_that_is_emptied_while_in_use_is_noticed(server: AwsServer, s3_url: str) -> None:
    member = open_member(s3_url)
    assert member.compare_and_set(b"c", 0, b"promise")
    assert member.get_versioned(b"c") is not None
    with boto3_client(server, "s3") as client:
        prefix = s3_url.split("/")[3].partition("?")[0]
        client.delete_object(Bucket="bucket", Key=f"{prefix}/versioned/c")
    with pytest.raises(StoreUnavailableError, match="emptied or replaced while in use"):
        member.get_versioned(b"c")
    assert open_member(s3_url).get_versioned(b"c") is None


def test_a_table_that_is_made_anew_while_in_use_is_noticed(
    server: AwsServer, table_url: str
) -> None:
    member = open_member(table_url)
    assert member.compare_and_set(b"c", 0, b"promise")
    assert member.get_versioned(b"c") is not None
    with boto3_client(server, "dynamodb") as client:
        client.delete_table(TableName=table_url[11:].partition("?")[0])
    open_member(table_url).ping()
    with pytest.raises(StoreUnavailableError, match="emptied or replaced while in use"):
        member.get_versioned(b"c")


# --- wrong settings -----------------------------------------------------------------------------


def test_a_missing_bucket_or_table_is_one_sentence(server: AwsServer) -> None:
    endpoint = f"endpoint_url={server.endpoint_url}"
    for call in (
        lambda m: m.ping(),
        lambda m: m.get_many([b"k"]),
        lambda m: m.put_many({b"k": b""}),
    ):
        with pytest.raises(
            StoreUnwritableError, match=r"s3://nobody.*NoSuchBucket.*Check the name"
        ):
            call(open_member(f"s3://nobody/x?{endpoint}"))
        with pytest.raises(StoreUnwritableError, match=r"dynamodb://nobody.*Check the name"):
            call(open_member(f"dynamodb://nobody?create=0&{endpoint}"))


def test_a_table_of_something_else_is_refused(server: AwsServer) -> None:
    with boto3_client(server, "dynamodb") as client:
        client.create_table(
            TableName="orders",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "N"}],
            BillingMode="PAY_PER_REQUEST",
        )
    with pytest.raises(
        StoreUnwritableError, match=r"dynamodb://orders.*belongs to another application"
    ):
        open_member(f"dynamodb://orders?endpoint_url={server.endpoint_url}").ping()


def test_missing_credentials_and_region_are_named(
    server: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    with pytest.raises(StoreUnwritableError, match=r"dynamodb://t .*region"):
        open_member("dynamodb://t").ping()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for url in ("s3://bucket/x", "dynamodb://t"):
        with pytest.raises(StoreUnwritableError, match=f"{url}.*credentials"):
            open_member(f"{url}?region=us-east-1").ping()


@pytest.mark.parametrize("place", ["s3://bucket/x", "dynamodb://t"])
def test_an_unreachable_endpoint_is_told_within_a_bounded_time(
    server: AwsServer, place: str
) -> None:
    begun = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=f"{place}.* does not answer as it should"):
        open_member(f"{place}?endpoint_url=http://127.0.0.1:{free_port()}").ping()
    assert time.monotonic() - begun < 6


@pytest.mark.parametrize("place", [pytest.param("s3://bucket/x", marks=long), "dynamodb://t"])
def test_an_endpoint_that_stops_answering_is_given_up(place: str, server: AwsServer) -> None:
    member = open_member(
        f"{place}?timeout=0.2&connect_timeout=0.2&endpoint_url={server.endpoint_url}"
    )
    member.compare_and_set(b"before", 0, b"")
    calls: list[Callable[[], object]] = [
        lambda: member.get_many([b"k"]),
        lambda: member.compare_and_set(b"c", 0, b""),
    ]
    server.stop_answering()
    try:
        for call in calls:
            begun = time.monotonic()
            with pytest.raises(StoreUnavailableError, match=place) as failed:
                call()
            assert time.monotonic() - begun < 6
        assert "Whether the value was set is unknown" in str(failed.value)
    finally:
        server.go_on()
    member.ping()


def lose_first_answer(client: Any, operation: str, lost: list[str]) -> None:
    """Lets the server carry out a request whose answer is lost, once over all clients."""

    def lose(request: Any, **_: Any) -> None:
        if not lost:
            lost.append(operation)
            URLLib3Session().send(request)
            raise ConnectionClosedError(endpoint_url="lost")

    client.meta.events.register(f"before-send.*.{operation}", lose)


@pytest.mark.parametrize("service", ["s3", "dynamodb"])
def test_only_what_may_be_done_twice_is_done_again(
    s3_url: str, table_url: str, service: str
) -> None:
    member: Any = open_member(s3_url if service == "s3" else table_url)
    member.ping()
    set_, put = ("PutObject",) * 2 if service == "s3" else ("PutItem", "BatchWriteItem")
    lost: list[str] = []
    for client in (member._aws.once, member._aws.repeating):
        lose_first_answer(client, set_, lost)
    with pytest.raises(StoreUnavailableError, match="Whether the value was set is unknown"):
        member.compare_and_set(b"c", 0, b"once")
    assert lost == [set_]
    assert member.get_versioned(b"c") == Versioned(1, b"once"), "asking twice would say False"
    lost.clear()
    lose_first_answer(member._aws.repeating, put, lost)
    member.put_many({b"k": b"v"})
    assert lost == [put]
    assert member.get_many([b"k"]) == [b"v"]


def test_a_bucket_and_a_table_make_a_store(s3_url: str, table_url: str) -> None:
    with Store.open(StoreConfig((s3_url, table_url), partition_count=12)) as store:
        keys = [store.map("m").key(str(number)) for number in range(10)]
        store.map("m").put_all(dict.fromkeys(keys, b"v"))
        store.register("job").claim(1, "me").write(b"record")
    with Store.open(StoreConfig((s3_url, table_url), partition_count=12)) as store:
        assert store.map("m").get_all(keys) == [b"v"] * 10
        assert store.map("m").keys() == sorted(keys)
        value = store.register("job").read()
        assert value is not None
        assert value.value == b"record"


class boto3_client:  # noqa: N801
    """A plain client of the server, to look at what a member left there."""

    def __init__(self, server: AwsServer, service: str) -> None:
        self._client = boto3.client(
            service, endpoint_url=server.endpoint_url, region_name="us-east-1"
        )

    def __enter__(self) -> Any:
        return self._client

    def __exit__(self, *_: object) -> None:
        self._client.close()
