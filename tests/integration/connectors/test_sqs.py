"""Queues of SQS, which moto's server stands in for: each message counts once, wherever job, server
or network die."""

from __future__ import annotations

import json
import os
import pickle
import re
import urllib.request
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import boto3
import pytest

from dagster_jet import JobConfig, sources
from dagster_jet.connectors.sqs import receivers
from dagster_jet.connectors.sqs.sqs_probe import probe
from dagster_jet.connectors.sqs.sqs_reader import SqsReader
from dagster_jet.contract import BadRowRule
from dagster_jet.errors import ConfigurationError, JetError, SourceError
from dagster_jet.execution.events import ExecutionRestarting
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.check_source import check_source
from dagster_jet.testing.typed_rows import Typed
from tests.integration import child
from tests.integration.oracle import by_manifest, committed
from tests.integration.world import World, wait_until
from tests.long import long
from tests.servers.members import AwsServer
from tests.servers.messages import in_json
from tests.servers.proxy import Proxy
from tests.servers.sqs import KEY, KEY_ID, REGION, SqsQueue, new_queue

from . import sqs_child


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[AwsServer]:
    with pytest.MonkeyPatch.context() as patch, AwsServer() as started:
        patch.setenv(sqs_child.KEY_ID, KEY_ID)
        patch.setenv(sqs_child.KEY, KEY)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
            patch.delenv(name, raising=False)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, "/not/there")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield started


@pytest.fixture
def queue(server: AwsServer) -> SqsQueue:
    return new_queue(server)


def source(queue: SqsQueue, **options: Any) -> Any:
    named = {"schema": "id long, text string", **sqs_child.secrets(), **options}
    return sources.sqs(queue.url, **named)


def opened(queue: SqsQueue, **options: Any) -> SqsReader:
    reader = source(queue, **options).open("j", "in", None)
    assert isinstance(reader, SqsReader)
    return reader


def planned(reader: SqsReader, count: int) -> Any:
    """A split of so many new messages; no more come."""

    def enough() -> bool:
        reader.accept(reader.poll())
        return reader.waiting().items >= count

    wait_until(enough, f"{count} messages", timeout_s=30)
    assert reader.waiting().items == count
    return reader.plan(count)


def read(reader: SqsReader, count: int) -> list[Any]:
    return [json.loads(message.body)["id"] for message in planned(reader, count)]


def restored(queue: SqsQueue, reader: SqsReader, **options: Any) -> SqsReader:
    """Restores a reader from its position, through JSON, as after a crash behind a snapshot."""
    again = opened(queue, **options)
    again.restore(json.loads(json.dumps(reader.position())), None)
    messages = json.loads(json.dumps(reader.unacknowledged()))
    again.restore_unacknowledged(messages)
    again.acknowledge(messages)
    return again


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": one, "text": "t"} for one in ids]


# --- the contract ---------------------------------------------------------------------------------


@long
def test_the_contract_is_kept(
    server: AwsServer, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receivers, "BACKLOG_MIN", 20)  # moto counts them
    # What a connection that is cut was about to deliver is hidden for so long.
    queue, of_types = new_queue(server, VisibilityTimeout=8), new_queue(server)
    with Proxy(queue.port) as proxy:
        made = source(queue, endpoint_url=f"http://127.0.0.1:{proxy.port}")
        check_source(
            lambda: made.at_start("j", "in", on_one_host=True),
            queue.send,
            spark,
            outages={"a connection that is cut": proxy.cut},
            secrets=[KEY],
            typed=Typed(
                lambda schema: source(of_types, schema=schema),
                lambda sent: of_types.send(map(in_json, sent)),
            ),
            many=200,  # moto looks at every message of a queue for each that is deleted
        )


# --- a run that ends ------------------------------------------------------------------------------


@long  # that of a queue of RabbitMQ is not; a job that died reads this one to its end
@pytest.mark.parametrize("fifo", [False, True], ids=["standard", "fifo"])
def test_a_drained_run_reads_all_that_is_there(
    world: SqsWorld, server: AwsServer, fifo: bool
) -> None:
    """Four times as many as are received before something is deleted; of a FIFO queue, a group
    hands out no more before that either."""
    queue = new_queue(server, fifo=fifo, **({"ContentBasedDeduplication": "true"} if fifo else {}))
    count = 40 if fifo else 120
    given = {"MessageGroupId": "one"} if fifo else {}
    queue.send([{"v": v} for v in range(count)], **given)
    world.use(queue)
    # Nothing but what the run needs asks for a snapshot.
    world.run(prefetch=30, max_items_per_epoch=None, snapshot_interval="10 minutes")
    assert world.rows() == Counter((v,) for v in range(count)) and queue.left() == 0


@long  # that of a queue of RabbitMQ is not
def test_a_job_completes_with_all_that_is_there(world: SqsWorld, queue: SqsQueue) -> None:
    queue.send([{"v": v} for v in range(90)])
    world.use(queue)
    with world.jet() as jet:
        pipeline = sqs_child.sqs_pipeline(world.folder, prefetch=30)
        config = JobConfig(**{**child.CONFIG, "max_items_per_epoch": None})
        job = jet.submit(pipeline, config, on_event=world.see)
        assert job.complete(60).status is JobStatus.COMPLETED
    assert world.rows() == Counter((v,) for v in range(90)) and queue.left() == 0


# --- what is deleted, and what is remembered ------------------------------------------------------


def test_a_message_that_is_in_no_snapshot_comes_again(queue: SqsQueue) -> None:
    """F14: before the decision. Who closes gives back what it holds, at once."""
    queue.send(rows(1, 2, 3))
    first = opened(queue)
    assert sorted(read(first, 3)) == [1, 2, 3] and queue.hidden() == 3
    first.close()
    assert queue.visible() == 3
    again = opened(queue)
    assert sorted(read(again, 3)) == [1, 2, 3]
    again.acknowledge(again.unacknowledged())
    assert queue.left() == 0 and again.read.unproven() == {}
    again.close()


def test_a_message_that_a_snapshot_has_is_dropped_and_deleted(queue: SqsQueue) -> None:
    """F13: after the decision, before the deletion. What an old handle has deleted is not proven:
    SQS says that it has, and may not."""
    queue.send_with_ids({"a": {"id": 1}, "b": {"id": 2}}, "order")
    first = opened(queue, message_id="order")
    read(first, 2)
    again = restored(queue, first, message_id="order")
    first.close()
    assert queue.left() == 0 and set(again.read.unproven()) == {"a", "b"}
    again.read._remembered_max = 3
    queue.send_with_ids({f"n{n}": {"id": n} for n in range(10, 20)}, "order")
    assert sorted(read(again, 10)) == list(range(10, 20))
    again.acknowledge(again.unacknowledged())
    assert len(again.read.remembered()) == 3, "newer ones do not push out what is not proven"
    queue.send_with_ids(
        {"b": {"id": 2}, "z": {"id": 99}}, "order"
    )  # as SQS would, with a new handle
    assert read(again, 1) == [99]
    again.acknowledge(again.unacknowledged())
    again.close()
    assert queue.left() == 0 and set(again.read.unproven()) == {"a"}


def test_what_comes_again_while_it_is_read_counts_once_and_is_deleted(queue: SqsQueue) -> None:
    """A process that was frozen for longer than its messages were hidden."""
    queue.send(rows(1, 2))
    reader = opened(queue)
    read(reader, 2)
    old = reader.unacknowledged()
    queue.show_again(old.values())

    def came_again() -> bool:
        reader.accept(reader.poll())
        return all(reader.unacknowledged()[one] != handle for one, handle in old.items())

    wait_until(came_again, "both came again, under new handles", timeout_s=30)
    queue.send(rows(3))
    assert read(reader, 1) == [3]
    reader.acknowledge(reader.unacknowledged())
    assert queue.left() == 0 and reader.unacknowledged() == {}
    reader.close()


def test_what_waits_for_a_snapshot_stays_hidden(server: AwsServer) -> None:
    """Nobody else gets it in a time that is longer than the queue's time-out: it is renewed."""
    queue = new_queue(server, VisibilityTimeout=4)
    queue.send(rows(1, 2, 3))
    reader = opened(queue)
    read(reader, 3)
    found = queue.client.receive_message(QueueUrl=queue.url, WaitTimeSeconds=6)
    assert "Messages" not in found
    reader.acknowledge(reader.unacknowledged())
    assert queue.left() == 0 and reader.read.unproven() == {}, "they were ours all the time"
    reader.close()


def test_no_more_are_received_than_may_be_held(queue: SqsQueue) -> None:
    queue.send(rows(*range(12)))
    reader = opened(queue, prefetch=5, receivers=8)
    assert len(read(reader, 5)) == 5
    reader.accept(reader.poll())
    assert queue.hidden() == 5 and queue.visible() == 7
    reader.acknowledge(reader.unacknowledged())
    assert len(read(reader, 5)) == 5
    reader.close()


def test_sqs_knows_what_a_publisher_sends_twice_by_another_id_and_an_attribute_says_more(
    queue: SqsQueue,
) -> None:
    queue.send(rows(1, 1))
    by_its_own = opened(queue)
    assert read(by_its_own, 2) == [1, 1]
    by_its_own.acknowledge(by_its_own.unacknowledged())
    by_its_own.close()
    for message_id in ("a", "b", "a", "a"):
        queue.send_with_ids({message_id: {"id": 7}}, "order")
    reader = opened(queue, message_id="order")
    assert read(reader, 2) == [7, 7]
    reader.acknowledge(reader.unacknowledged())
    reader.accept(reader.poll())
    reader.acknowledge(reader.unacknowledged())
    assert queue.left() == 0, "all sendings of a message are deleted with it"
    queue.send(rows(8))
    with pytest.raises(SourceError, match=r"no string attribute 'order'.*\"id\": 8"):
        for _ in range(10):
            reader.poll()
    reader.close()
    assert read(opened(queue), 1) == [8], "it was given back"


def test_at_least_once_remembers_nothing(queue: SqsQueue) -> None:
    queue.send(rows(1, 2))
    made = source(queue, guarantee="at-least-once", message_id="none-of-them-has-it")
    assert made.describe()["guarantee"] == "at-least-once"
    reader = made.open("j", "in", None)
    assert sorted(read(reader, 2)) == [1, 2]
    reader.acknowledge(reader.unacknowledged())
    assert reader.position()["remembered"] == [] and reader.position()["unproven"] == {}
    reader.close()
    assert queue.left() == 0


def test_a_fifo_queue_keeps_its_order_and_waits_for_each_group(server: AwsServer) -> None:
    """No more of a group come before those that are hidden are deleted."""
    queue = new_queue(server, fifo=True, ContentBasedDeduplication="true")
    for number in range(24):
        queue.send(rows(number), MessageGroupId="ab"[number % 2])
    reader = opened(queue, metadata=True)
    found: dict[str, list[int]] = {"a": [], "b": []}
    while sum(map(len, found.values())) < 24:
        wait_until(lambda: _accepted(reader) > 0, "the next of a group", timeout_s=30)
        for message in reader.plan(100) or ():
            found[str(message.group)].append(json.loads(message.body)["id"])
        reader.acknowledge(reader.unacknowledged())
    reader.close()
    assert found == {"a": list(range(0, 24, 2)), "b": list(range(1, 24, 2))}
    assert queue.left() == 0


def _accepted(reader: SqsReader) -> int:
    reader.accept(reader.poll())
    return reader.waiting().items


# --- values ---------------------------------------------------------------------------------------


def test_raw_values_and_what_sqs_says_of_them(queue: SqsQueue, spark: Any) -> None:
    attributes = {
        "a": {"DataType": "String", "StringValue": "x"},
        "n": {"DataType": "Number", "StringValue": "5"},
        "b": {"DataType": "Binary", "BinaryValue": b"bytes"},
    }
    queue.send(["é ☃"], MessageAttributes=attributes)
    reader = opened(queue, format="raw", schema=None, metadata=True)
    frame = reader.frame(spark, planned(reader, 1)).rows
    assert frame.schema.simpleString() == (
        "struct<value:binary,_message_id:string,_sent:timestamp,_receive_count:int,_group:string,"
        "_sequence_number:string,_attributes:map<string,string>>"
    )
    [row] = frame.selectExpr("*", "_sent > '2020-01-01' as is_recent").collect()
    assert bytes(row["value"]).decode() == "é ☃" and len(row["_message_id"]) == 36
    assert row["is_recent"] and row["_receive_count"] == 1 and row["_group"] is None
    assert row["_attributes"] == {"a": "x", "n": "5", "b": "bytes"}
    reader.close()


def test_a_bad_value_is_a_dead_letter_or_is_named(queue: SqsQueue, spark: Any) -> None:
    for message_id, row in (("a", {"id": 1}), ("b", "broken"), ("c", {"text": "no id"})):
        queue.send_with_ids({message_id: row}, "order")
    reader = source(queue, message_id="order").open("j", "in", BadRowRule(("id",)))
    split = planned(reader, 3)
    frames = reader.frame(spark, split)
    assert frames.dead_letters is not None
    found = {r["position"]: r["reason"] for r in frames.dead_letters.collect()}
    assert found == {
        f"{queue.name}/b": "does not fit the schema",
        f"{queue.name}/c": "id is null",
    }
    assert reader.locate_bad_row(spark, split) == f"{queue.name}/b: broken"
    reader.close()


# --- what a person has to change ------------------------------------------------------------------


def refused(made: Any) -> str:
    with pytest.raises(JetError) as caught:
        made.at_start("j", "in", on_one_host=True)
    assert KEY not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_is_refused_in_a_sentence(server: AwsServer, queue: SqsQueue) -> None:
    nowhere = SqsQueue(queue.endpoint_url, "no", f"{queue.url}-no")
    assert re.search("stage 'in': there is no queue .*-no in eu-west-1", refused(source(nowhere)))
    elsewhere = source(queue, region="us-east-2")
    assert re.search("there is no queue .* in us-east-2", refused(elsewhere))
    named = {"access_key_id": None, "secret_access_key": None}
    assert "does not accept the credentials" in refused(source(queue, **named))
    assert "You must specify a region" in refused(source(queue, region=None))
    short = new_queue(server, VisibilityTimeout=0)
    assert "visibility time-out is 0 s: a message would come again" in refused(source(short))
    source(short, visibility_timeout="10 seconds").at_start("j", "in", on_one_host=True)


def test_wrong_credentials_and_lacking_rights_are_told_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server checks who is asking. It lets a user only look at queues, or do everything but
    receive."""
    with AwsServer() as strict:
        queue = new_queue(strict)
        iam = boto3.client(
            "iam",
            endpoint_url=strict.endpoint_url,
            region_name=REGION,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=KEY,
        )
        users = {"looker": ["GetQueue*"], "deleter": ["GetQueue*", "Delete*", "ChangeMessage*"]}
        keys = {}
        for user, rights in users.items():
            iam.create_user(UserName=user)
            actions = [f"sqs:{right}" for right in rights]
            allowed = [{"Effect": "Allow", "Action": actions, "Resource": "*"}]
            policy = json.dumps({"Version": "2012-10-17", "Statement": allowed})
            iam.put_user_policy(UserName=user, PolicyName="p", PolicyDocument=policy)
            keys[user] = iam.create_access_key(UserName=user)["AccessKey"]
        asks_all = urllib.request.Request(
            f"{strict.endpoint_url}/moto-api/reset-auth", b"0", {"Content-Type": "text/plain"}
        )
        urllib.request.urlopen(asks_all, timeout=10).close()
        said = refused(source(queue))
        assert "does not accept the credentials: " in said and "InvalidClientTokenId" in said
        for user, key in keys.items():
            monkeypatch.setenv(sqs_child.KEY_ID, key["AccessKeyId"])
            monkeypatch.setenv(sqs_child.KEY, key["SecretAccessKey"])
            said = refused(source(queue))
            assert "these credentials may not use the queue" in said, user
            assert "Allow sqs:Receive" in said and key["SecretAccessKey"] not in said
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
            asked = probe(queue.url, timedelta(seconds=1), REGION)
            (found,) = [one for one in asked if one.question == "Are the rights there?"]
            assert found.verdict.value == "no" and "may not use the queue" in found.meaning


def test_a_queue_that_is_deleted_while_it_is_read_is_named(queue: SqsQueue) -> None:
    queue.send(rows(1))
    reader = opened(queue)
    read(reader, 1)
    queue.client.delete_queue(QueueUrl=queue.url)
    with pytest.raises(SourceError, match=f"there is no queue .*{queue.name} in eu-west-1"):
        for _ in range(10):
            reader.poll()
    reader.close()


def test_no_secret_is_shown(queue: SqsQueue) -> None:
    made = source(queue)
    for text in (repr(made), str(made.describe()), pickle.dumps(made).decode("latin-1")):
        assert KEY not in text


# --- a job, killed --------------------------------------------------------------------------------

MESSAGES = range(12)
ONCE = Counter((value,) for value in MESSAGES)


class SqsWorld(World):
    driver = staticmethod(sqs_child.main)

    def use(self, queue: SqsQueue, endpoint_url: str | None = None) -> None:
        place = {"url": queue.url, "endpoint_url": endpoint_url or queue.endpoint_url}
        (self.folder / "queue.json").write_text(json.dumps(place))
        known = {name: os.environ[name] for name in (sqs_child.KEY_ID, sqs_child.KEY)}
        (self.folder / "credentials.json").write_text(json.dumps(known))

    def run(self, until: str = "drained", prefetch: int = 10_000, **config: Any) -> Any:
        with self.jet() as jet:
            return jet.run(
                sqs_child.sqs_pipeline(self.folder, prefetch=prefetch),
                JobConfig(**{**child.CONFIG, "max_items_per_epoch": 3, **config}),
                until=until,
                on_event=self.see,
            )

    def rows(self) -> Counter[tuple[Any, ...]]:
        return committed(self.folder / "out", ("v",))

    def rows_by_manifest(self) -> Counter[tuple[Any, ...]]:
        """Rows by the manifest; while the job runs, a listing may be ahead."""
        return by_manifest(self.folder / "out", ("v",))


@pytest.fixture
def world(world: World) -> SqsWorld:
    return SqsWorld(world.folder, world.fail_points, world.spark)


@pytest.mark.parametrize(
    "rules",
    [
        "commit.after:2=kill",  # F13: committed, and not deleted
        # Deleted, and nobody has noted it.
        pytest.param("sqs.acknowledge.deleted:2=kill", marks=long),
        pytest.param("epoch.acked:3=kill", marks=long),  # F14: read, and in no snapshot
        pytest.param("record.snapshot.after:3=kill", marks=long),
        pytest.param("sqs.acknowledge.before:2=kill", marks=long),
        pytest.param("sqs.acknowledge.after:2=kill", marks=long),
        pytest.param("record.committed.before:2=kill", marks=long),
    ],
)
def test_a_message_counts_once_wherever_the_driver_dies(
    world: SqsWorld, server: AwsServer, rules: str
) -> None:
    queue = new_queue(server, VisibilityTimeout=2)
    queue.send([{"v": v} for v in MESSAGES])
    world.use(queue)
    world.run_child(rules, config={**child.CONFIG, "max_items_per_epoch": 3})
    assert not world.rows() - ONCE
    wait_until(lambda: queue.hidden() == 0, "what the dead have held comes again")
    assert world.run().status is JobStatus.DRAINED
    assert world.rows() == ONCE and queue.left() == 0


@long  # the contract cuts its connections
def test_a_server_that_is_away_is_waited_for_in_place(world: SqsWorld, server: AwsServer) -> None:
    """At the start, and in the middle: one that refuses, and one that does not answer."""
    # What it hands to a connection that was cut comes again after so long.
    queue = new_queue(server, VisibilityTimeout=4)
    queue.send([{"v": v} for v in MESSAGES])
    with Proxy(queue.port) as proxy:
        world.use(queue, f"http://127.0.0.1:{proxy.port}")
        proxy.break_off()
        with world.jet() as jet:
            job = jet.submit(
                sqs_child.sqs_pipeline(world.folder),
                JobConfig(**child.CONFIG),
                on_event=world.see,
            )
            wait_until(lambda: proxy.refused > 1, "it has asked in vain")
            proxy.restore()
            wait_until(lambda: world.rows_by_manifest() == ONCE, "the first are read")
            with proxy.cut():
                queue.send([{"v": 99}])
                refused = proxy.refused
                wait_until(lambda: proxy.refused > refused + 1, "it asks again and again")
            wait_until(lambda: world.rows_by_manifest()[(99,)] == 1, "the last is read")
            assert job.complete(60).status is JobStatus.COMPLETED
    assert world.rows() == ONCE + Counter([(99,)]) and queue.left() == 0
    assert world.events_of(ExecutionRestarting) == []


def test_a_snapshot_interval_that_sqs_does_not_wait_for_is_refused(
    world: SqsWorld, queue: SqsQueue
) -> None:
    world.use(queue)
    with pytest.raises(ConfigurationError, match="stage 'queue': snapshot_interval is 13:00:00"):
        world.run(snapshot_interval="13 hours")
