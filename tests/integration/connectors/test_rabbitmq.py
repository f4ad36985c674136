"""Queues of a real RabbitMQ: each message counts once, wherever job, server or network die."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dagster_jet import JobConfig, Secret, sources
from dagster_jet.connectors.message_reader import UNPROVEN_S
from dagster_jet.connectors.rabbitmq.rabbitmq_reader import RabbitReader
from dagster_jet.contract import Backlog, BadRowRule
from dagster_jet.errors import ConfigurationError, JetError, SourceError, SourceUnavailableError
from dagster_jet.execution.events import EpochCompleted, ExecutionRestarting
from dagster_jet.snapshot.record import JobStatus
from dagster_jet.testing.check_source import check_source
from dagster_jet.testing.typed_rows import Typed
from tests.integration import child
from tests.integration.connectors.secret_urls import as_secret
from tests.integration.oracle import by_manifest, committed
from tests.integration.world import World, wait_until
from tests.long import long
from tests.servers import launch, own_folder, stop
from tests.servers import rabbitmq as server
from tests.servers.messages import in_json
from tests.servers.proxy import Proxy
from tests.servers.rabbitmq import (
    PASSWORD,
    RabbitQueue,
    control,
    new_queue,
    rabbitmq,
    the_server,
    write_down,
)

from . import rabbitmq_child


@pytest.fixture
def queue() -> RabbitQueue:
    return rabbitmq()


@pytest.fixture(params=["classic", "quorum"])
def any_queue(request: pytest.FixtureRequest) -> RabbitQueue:
    return rabbitmq(request.param)


def source(queue: RabbitQueue, port: int | None = None, **options: Any) -> Any:
    named = {"schema": "id long, text string", **options}
    return sources.rabbitmq(as_secret(queue.through(port or queue.port)), queue=queue.name, **named)


def opened(queue: RabbitQueue, port: int | None = None, **options: Any) -> RabbitReader:
    return source(queue, port, **options).open("j", "in", None)


def planned(reader: RabbitReader, count: int) -> Any:
    """A split of so many new messages; no more come."""

    def enough() -> bool:
        reader.accept(reader.poll())
        return reader.waiting().items >= count

    wait_until(enough, f"{count} messages", timeout_s=20)
    assert reader.waiting().items == count
    return reader.plan(count)


def read(reader: RabbitReader, count: int) -> list[Any]:
    return [json.loads(message.body)["id"] for message in planned(reader, count)]


def restored(queue: RabbitQueue, reader: RabbitReader, port: int | None = None) -> RabbitReader:
    """Restores a reader from its position, through JSON, as after a crash behind a snapshot."""
    again = opened(queue, port)
    again.restore(json.loads(json.dumps(reader.position())), None)
    messages = json.loads(json.dumps(reader.unacknowledged()))
    again.restore_unacknowledged(messages)
    again.acknowledge(messages)
    return again


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": one, "text": "t"} for one in ids]


# --- the contract ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classic", pytest.param("quorum", marks=long)])
def test_the_contract_is_kept(spark: Any, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    queue, of_types = rabbitmq(kind), rabbitmq(kind)
    with Proxy(queue.port) as proxy:
        monkeypatch.setenv("RABBIT", queue.through(proxy.port))
        made = sources.rabbitmq(
            Secret("RABBIT"),
            queue=queue.name,
            schema="id long, text string",
            prefetch=20_000,  # it reads 10,000 rows and some before it acknowledges any
        )
        check_source(
            lambda: made.at_start("j", "in", on_one_host=True),
            queue.send,
            spark,
            outages={"a connection that is cut": proxy.cut},
            secrets=[PASSWORD],
            typed=Typed(
                lambda schema: source(of_types, schema=schema),
                lambda sent: of_types.send(map(in_json, sent)),
            ),
            many=10_000 if kind == "quorum" else 1_000,
        )


# --- a run that ends ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "until",
    ["drained", pytest.param("completed", marks=long)],  # the next test has it
)
def test_a_drained_run_reads_all_that_is_there(
    world: RabbitWorld, queue: RabbitQueue, until: str
) -> None:
    """Ten times as many as the server hands out before something is acknowledged."""
    queue.send([{"v": v} for v in range(500)])
    world.use(queue)
    # Nothing but what the run needs asks for a snapshot.
    world.run(until, prefetch=50, max_items_per_epoch=None, snapshot_interval="10 minutes")
    assert world.rows() == Counter((v,) for v in range(500)) and queue.left() == 0


def test_a_job_completes_with_all_that_is_there(world: RabbitWorld, queue: RabbitQueue) -> None:
    queue.send([{"v": v} for v in range(150)])
    world.use(queue)
    with world.jet() as jet:
        pipeline = rabbitmq_child.rabbit_pipeline(world.folder, prefetch=50)
        config = JobConfig(**{**child.CONFIG, "max_items_per_epoch": None})
        job = jet.submit(pipeline, config, on_event=world.see)
        assert job.complete(60).status is JobStatus.COMPLETED
    assert world.rows() == Counter((v,) for v in range(150)) and queue.left() == 0


def test_a_quorum_queue_that_does_not_say_how_much_it_has_is_not_read_to_its_end() -> None:
    """The server says "no messages" for a leader that does not answer at once."""
    queue = rabbitmq("quorum")
    queue.send(rows(*range(30)))
    reader = opened(queue, prefetch=10)
    assert read(reader, 10) == list(range(10))
    leader = f"whereis('%2F_{queue.name}')"
    control(the_server(), "eval", f"sys:suspend({leader}).")
    reader.mark_backlog()
    reader.accept(reader.poll())
    assert reader.backlog() is Backlog.WAITING
    control(the_server(), "eval", f"sys:resume({leader}).")
    found: list[int] = []

    def has_ended() -> bool:
        reader.accept(reader.poll())
        found.extend(json.loads(one.body)["id"] for one in reader.plan(100) or ())
        if reader.backlog() is Backlog.HELD:
            reader.acknowledge(reader.unacknowledged())
        return reader.backlog() is Backlog.READ

    wait_until(has_ended, "all is read", timeout_s=20)
    reader.close()
    assert found == list(range(10, 30))


# --- what is acknowledged, and what is remembered -------------------------------------------------


def test_a_message_that_is_in_no_snapshot_comes_again(any_queue: RabbitQueue) -> None:
    """F14: before the decision."""
    queue = any_queue
    queue.send(rows(1, 2, 3))
    first = opened(queue)
    assert read(first, 3) == [1, 2, 3]
    first.close()
    again = opened(queue)
    assert read(again, 3) == [1, 2, 3]
    again.acknowledge(again.unacknowledged())
    again.close()
    assert queue.left() == 0


def test_a_message_that_a_snapshot_has_is_dropped_and_acknowledged(any_queue: RabbitQueue) -> None:
    """F13: after the decision, before the acknowledgement."""
    queue = any_queue
    queue.send(rows(1, 2, 3))
    first = opened(queue)
    read(first, 3)
    first.close()
    again = restored(queue, first)
    queue.send(rows(4))
    assert read(again, 1) == [4]
    assert again.read.unproven() == {} and len(again.read.remembered()) == 4
    again.acknowledge(again.unacknowledged())
    again.close()
    assert queue.left() == 0


def test_an_unproven_id_outlives_any_number_of_newer_ones(
    any_queue: RabbitQueue,
) -> None:
    """A frozen process holds its messages while thousands go by: none of them counts twice."""
    queue = any_queue
    queue.send(rows(1, 2))
    frozen = opened(queue, prefetch=2)
    read(frozen, 2)
    again = restored(queue, frozen)
    again.read._remembered_max = 3
    queue.send(rows(*range(10, 30)))
    assert read(again, 20) == list(range(10, 30))
    again.acknowledge(again.unacknowledged())
    assert len(again.read.remembered()) == 3 and len(again.read.unproven()) == 2
    frozen.close()  # the server gives them to the other one
    queue.send(rows(99))
    assert read(again, 1) == [99]
    assert again.read.unproven() == {} and len(again.read.remembered()) == 3
    again.close()


def test_as_many_ids_are_remembered_as_a_queue_hands_out_unwritten() -> None:
    """However many: a quorum queue's leader that is killed has written none of them."""
    made = sources.rabbitmq("amqp://h", queue="q", schema="v long", prefetch=60_000)
    reader = made.open("j", "in", None)
    ids = dict.fromkeys(map(str, range(60_000)), "handle")
    reader._note_acknowledged(ids, set(ids))
    assert reader.read.remembered() == list(ids)


def test_unproven_ids_are_forgotten_after_a_day_of_connections(queue: RabbitQueue) -> None:
    reader = opened(queue)
    reader.restore({"remembered": [], "unproven": {"a": 0.0, "b": 5.0}, "connected_s": 9.0}, None)
    reader.accept(reader.poll())
    assert set(reader.read.unproven()) == {"a", "b"}
    reader._connected_s = UNPROVEN_S + 1
    reader.accept(reader.poll())
    reader.close()
    assert set(reader.read.unproven()) == {"b"}


def test_what_a_publisher_sends_twice_counts_once_and_is_acknowledged(
    any_queue: RabbitQueue,
) -> None:
    queue = any_queue
    queue.send(rows(1, 1, 2, 1), ids=["a", "a", "b", "a"])
    reader = opened(queue)
    assert read(reader, 2) == [1, 2]
    reader.acknowledge(reader.unacknowledged())
    queue.send(rows(1, 3), ids=["a", "c"])
    assert read(reader, 1) == [3]
    reader.acknowledge(reader.unacknowledged())
    reader.close()
    assert queue.left() == 0


def test_only_what_a_snapshot_has_is_acknowledged(any_queue: RabbitQueue) -> None:
    """Also in the middle: acknowledging several at once takes no other along."""
    queue = any_queue
    queue.send(rows(*range(10)), ids=range(10))
    reader = opened(queue)
    read(reader, 10)
    reader.acknowledge({f"{i}": reader.unacknowledged()[f"{i}"] for i in (0, 1, 2, 5, 7)})
    reader.close()
    wait_until(lambda: queue.left() == 5, "five are left", timeout_s=10)
    assert sorted(read(opened(queue), 5)) == [3, 4, 6, 8, 9]


@pytest.mark.parametrize("cut_at", ["sent", "answered"])
def test_a_connection_that_breaks_in_an_acknowledgement(
    any_queue: RabbitQueue, monkeypatch: pytest.MonkeyPatch, cut_at: str
) -> None:
    """Nobody knows whether it has arrived: it is not acknowledged for sure, and counts once."""
    queue = any_queue
    queue.send(rows(1, 2, 3))
    with Proxy(queue.port) as proxy:
        reader = opened(queue, proxy.port)
        read(reader, 3)
        point = "dagster_jet.connectors.rabbitmq.subscription.fail_point"
        name = "rabbitmq.acknowledge." + {"sent": "before", "answered": "sent"}[cut_at]
        monkeypatch.setattr(point, lambda at: proxy.break_off() if at == name else None)
        with pytest.raises(SourceUnavailableError):
            reader.acknowledge(reader.unacknowledged())
        monkeypatch.undo()
        proxy.restore()
        reader.acknowledge(reader.unacknowledged())  # as the engine does
        assert len(reader.read.unproven()) == 3 and reader.unacknowledged() == {}
        queue.send(rows(4))
        assert read(reader, 1) == [4]
        reader.acknowledge(reader.unacknowledged())
        reader.close()
    assert queue.left() == 0


@long
def test_what_a_killed_server_has_not_written_down_counts_once() -> None:
    """An answer does not mean that an acknowledgement is on the server's disk."""
    folder = own_folder("rabbitmq")
    own = launch("rabbitmq", folder, server.prepared(folder))
    try:
        readers = {}
        for queue in (new_queue(own, "classic"), new_queue(own, "quorum")):
            queue.send(rows(*range(1_000)))
            readers[queue] = opened(queue)
            read(readers[queue], 1_000)
        write_down(own)
        for reader in readers.values():
            reader.acknowledge(reader.unacknowledged())
        stop(own, signal.SIGKILL)
        for reader in readers.values():
            assert reader.read.unproven() == {}
            with pytest.raises(SourceUnavailableError):
                reader.poll()
        own = launch("rabbitmq", folder, server.prepared(folder))
        for queue, reader in readers.items():
            queue.send(rows(5_000))
            assert read(reader, 1) == [5_000]
            reader.acknowledge(reader.unacknowledged())
            reader.close()
            assert queue.left() == 0
    finally:
        stop(own)


# --- values ---------------------------------------------------------------------------------------


def test_raw_values_and_what_the_server_says_of_them(queue: RabbitQueue, spark: Any) -> None:
    import pika

    with queue.channel() as channel:
        properties = pika.BasicProperties(
            message_id="m1", timestamp=1_700_000_000, headers={"a": "x", "n": 5}
        )
        channel.basic_publish("", queue.name, b"\xff\x00", properties)
    reader = opened(queue, format="raw", schema=None, metadata=True)
    split = planned(reader, 1)
    frame = reader.frame(spark, split).rows
    assert frame.schema.simpleString() == (
        "struct<value:binary,_message_id:string,_exchange:string,_routing_key:string,"
        "_redelivered:boolean,_timestamp:timestamp,_headers:map<string,string>>"
    )
    [row] = frame.selectExpr("*", "unix_seconds(_timestamp) as seconds").collect()
    reader.close()
    assert (bytes(row["value"]), row["_message_id"], row["_routing_key"]) == (
        b"\xff\x00", "m1", queue.name,
    )  # fmt: skip
    assert (row["seconds"], row["_headers"]) == (1_700_000_000, {"a": "x", "n": "5"})


def test_a_timestamp_in_microseconds_ends_no_job(queue: RabbitQueue, spark: Any) -> None:
    import pika

    with queue.channel() as channel:
        for number, timestamp in enumerate((1_700_000_000_000_000, 1_700_000_000)):
            properties = pika.BasicProperties(message_id=f"m{number}", timestamp=timestamp)
            channel.basic_publish("", queue.name, b"x", properties)
    reader = opened(queue, format="raw", schema=None, metadata=True)
    frame = reader.frame(spark, planned(reader, 2)).rows
    found = frame.selectExpr("_message_id", "unix_seconds(_timestamp)").collect()
    reader.close()
    assert sorted(map(tuple, found)) == [("m0", None), ("m1", 1_700_000_000)]


def test_a_bad_value_is_a_dead_letter_or_is_named(queue: RabbitQueue, spark: Any) -> None:
    queue.send([{"id": 1}, b"broken", {"text": "no id"}], ids=["a", "b", "c"])
    reader = source(queue).open("j", "in", BadRowRule(("id",)))
    split = planned(reader, 3)
    frames = reader.frame(spark, split)
    assert frames.dead_letters is not None
    found = [(r["position"], r["reason"]) for r in frames.dead_letters.collect()]
    assert found == [
        (f"{queue.name}/b", "does not fit the schema"),
        (f"{queue.name}/c", "id is null"),
    ]
    assert reader.locate_bad_row(spark, split) == f"{queue.name}/b: broken"
    reader.close()


# --- what a person has to change ------------------------------------------------------------------


def refused(made: Any) -> str:
    with pytest.raises(JetError) as caught:
        made.at_start("j", "in", on_one_host=True)
    assert PASSWORD not in str(caught.value) and "hush" not in str(caught.value)
    return str(caught.value)


def test_what_cannot_be_is_refused_in_a_sentence(queue: RabbitQueue) -> None:
    at, name = f"127.0.0.1:{queue.port}", queue.name
    nowhere = sources.rabbitmq(as_secret(queue.url), queue="nowhere", schema="v long")
    assert re.search("stage 'in'.*the queue 'nowhere' of .* does not exist", refused(nowhere))
    stranger = sources.rabbitmq(as_secret(f"amqp://me:hush@{at}"), queue=name, schema="v long")
    assert "refuses user name and password" in refused(stranger)
    elsewhere = sources.rabbitmq(as_secret(f"{queue.url[:-3]}other"), queue=name, schema="v long")
    assert "no such virtual host" in refused(elsewhere)
    with pytest.raises(
        ConfigurationError, match="url: this is not a valid URL of a RabbitMQ server"
    ):
        sources.rabbitmq("http://me:hush@h", queue=name, schema="v long")
    with pytest.raises(ConfigurationError, match="prefetch: 0 is not from 1 to 65535"):
        source(queue, prefetch=0)
    with pytest.raises(ConfigurationError, match="schema: json values need one"):
        source(queue, schema=None)
    with pytest.raises(ConfigurationError, match="format: 'xml' is unknown"):
        source(queue, format="xml")


def test_a_stream_is_refused_at_the_start_and_later() -> None:
    stream = rabbitmq("stream")
    assert "is a stream: it keeps acknowledged messages" in refused(source(stream))
    with pytest.raises(SourceError, match=r"is a stream: .* Bind a quorum queue"):
        opened(stream).poll()  # the server was away at the start


def test_what_the_server_does_not_allow_is_refused_in_a_sentence(queue: RabbitQueue) -> None:
    """No right, another's queue, another's alone; and later, when it was allowed before."""
    import pika

    server, user = the_server(), f"u-{queue.name}"
    control(server, "add_user", user, "hush")
    control(server, "set_permissions", user, "", "", "^nothing$")
    url = f"amqp://{user}:hush@127.0.0.1:{queue.port}/%2F"
    theirs = sources.rabbitmq(as_secret(url), queue=queue.name, schema="id long, text string")
    assert re.search("the user may not read the queue .* set_permissions USER", refused(theirs))
    control(server, "set_permissions", user, "", "", ".*")
    theirs.at_start("j", "in", on_one_host=True)
    queue.send(rows(1))
    reader = theirs.open("j", "in", None)
    assert read(reader, 1) == [1]
    control(server, "delete_user", user)
    control(server, "close_all_user_connections", user, "gone")
    with pytest.raises(SourceUnavailableError):
        reader.poll()
    with pytest.raises(SourceError, match="refuses user name and password") as caught:
        reader.poll()
    assert "hush" not in str(caught.value)
    reader.close()
    connection = pika.BlockingConnection(pika.URLParameters(queue.url))
    with contextlib.closing(connection):
        channel = connection.channel()
        own = f"{queue.name}-own"
        channel.queue_declare(own, exclusive=True)
        named = sources.rabbitmq(as_secret(queue.url), queue=own, schema="id long")
        assert re.search("belongs to another connection.* without `exclusive`", refused(named))
        channel.basic_consume(queue.name, lambda *_: None, exclusive=True)
        with pytest.raises(SourceError, match=r"another consumer reads the queue .* alone"):
            opened(queue).poll()


def test_a_queue_that_is_deleted_while_it_is_read_is_named(any_queue: RabbitQueue) -> None:
    any_queue.send(rows(1))
    reader = opened(any_queue)
    read(reader, 1)
    any_queue.delete()

    def until_it_ends() -> None:
        for _ in range(20):
            with contextlib.suppress(SourceUnavailableError):  # the subscription has ended
                reader.poll()

    with pytest.raises(SourceError, match=f"the queue '{any_queue.name}' of .* does not exist"):
        until_it_ends()
    reader.close()


def test_a_start_says_who_else_reads_the_queue(
    queue: RabbitQueue, caplog: pytest.LogCaptureFixture
) -> None:
    source(queue).at_start("j", "in", on_one_host=True)
    assert caplog.messages == []
    other = opened(queue)
    other.poll()
    source(queue).at_start("j", "in", on_one_host=True)
    other.close()
    [said] = caplog.messages
    assert "job 'j', stage 'in': the queue" in said and "has 1 other consumer, and" in said


def test_nobody_waits_for_a_farewell_that_a_frozen_network_keeps(queue: RabbitQueue) -> None:
    """Otherwise a start would wait until heartbeats are missed, which takes two minutes."""
    with Proxy(queue.port) as proxy:
        held = proxy.hold_next(lambda said: b"Normal shutdown" in said, resets=False)
        began = time.monotonic()
        source(queue, proxy.port).at_start("j", "in", on_one_host=True)
        assert held.is_caught and time.monotonic() - began < 30


def test_a_message_without_an_id_ends_the_job_or_is_taken_at_least_once(queue: RabbitQueue) -> None:
    with queue.channel() as channel:
        channel.basic_publish("", queue.name, b'{"id": 7}')
    reader = opened(queue)
    with pytest.raises(SourceError, match=r'has no message_id.*\{"id": 7\}'):
        for _ in range(10):
            reader.poll()
    taking = opened(queue, guarantee="at-least-once")
    assert read(taking, 1) == [7]
    taking.acknowledge(taking.unacknowledged())
    position = taking.position()
    taking.close()
    assert (position["remembered"], position["unproven"], queue.left()) == ([], {}, 0)
    assert source(queue, guarantee="at-least-once").describe()["guarantee"] == "at-least-once"


def test_no_password_is_shown(queue: RabbitQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RABBIT", queue.url)
    named = sources.rabbitmq(Secret(env="RABBIT"), queue=queue.name, schema="id long")
    for text in (repr(named), str(named.describe()), pickle.dumps(named).decode("latin-1")):
        assert PASSWORD not in text
    with pytest.raises(ConfigurationError, match="contains its password") as refused:
        sources.rabbitmq(queue.url, queue=queue.name, schema="id long")
    assert PASSWORD not in str(refused.value)


# --- a job, killed --------------------------------------------------------------------------------

MESSAGES = range(12)
ONCE = Counter((value,) for value in MESSAGES)


class RabbitWorld(World):
    driver = staticmethod(rabbitmq_child.main)

    def use(self, queue: RabbitQueue, port: int | None = None) -> None:
        url = queue.through(port or queue.port)
        (self.folder / "url").write_text(url)
        (self.folder / "queue").write_text(queue.name)
        os.environ[rabbitmq_child.URL] = url

    def run(self, until: str = "drained", prefetch: int = 10_000, **config: Any) -> Any:
        with self.jet() as jet:
            return jet.run(
                rabbitmq_child.rabbit_pipeline(self.folder, prefetch=prefetch),
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
def world(world: World) -> Iterator[RabbitWorld]:
    yield RabbitWorld(world.folder, world.fail_points, world.spark)
    os.environ.pop(rabbitmq_child.URL, None)


@pytest.mark.parametrize(
    "rules",
    [
        pytest.param("epoch.acked:3=kill", marks=long),  # F14: read, and in no snapshot
        "commit.after:2=kill",  # F13: committed, and not acknowledged
        pytest.param("rabbitmq.acknowledge.sent:2=kill", marks=long),  # acknowledged, perhaps
        pytest.param("record.snapshot.after:3=kill", marks=long),
        pytest.param("rabbitmq.acknowledge.before:2=kill", marks=long),
        pytest.param("rabbitmq.acknowledge.after:2=kill", marks=long),
        pytest.param("record.committed.before:2=kill", marks=long),
    ],
)
def test_a_message_counts_once_wherever_the_driver_dies(
    world: RabbitWorld, queue: RabbitQueue, rules: str
) -> None:
    queue.send([{"v": v} for v in MESSAGES])
    world.use(queue)
    world.run_child(rules, config={**child.CONFIG, "max_items_per_epoch": 3})
    assert not world.rows() - ONCE
    assert world.run().status is JobStatus.DRAINED
    assert world.rows() == ONCE and queue.left() == 0


def break_off_the_last_acknowledgement(
    world: RabbitWorld, queue: RabbitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The repetition has no connection and returns at once. Phase 2 is then noted as over, and no
    snapshot follows whose position has the ids."""
    queue.send([{"v": v} for v in MESSAGES])
    point = "dagster_jet.connectors.rabbitmq.subscription.fail_point"
    broken: list[str] = []

    def break_off(at: str) -> None:
        if at == "rabbitmq.acknowledge.before":
            broken.append(at)
            proxy.break_off()

    with Proxy(queue.port) as proxy, monkeypatch.context() as patch:
        world.use(queue, proxy.port)
        patch.setattr(point, break_off)
        world.run(max_items_per_epoch=None, snapshot_interval="10 minutes")
    assert world.rows() == ONCE and len(broken) == 1
    wait_until(lambda: queue.left() == len(MESSAGES), "all come again", timeout_s=20)
    world.use(queue)
    queue.send([{"v": 99}])


def test_an_acknowledgement_that_breaks_off_with_the_last_snapshot(
    world: RabbitWorld, queue: RabbitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off_the_last_acknowledgement(world, queue, monkeypatch)
    world.run()
    assert world.rows() == ONCE + Counter([(99,)]) and queue.left() == 0


def test_messages_of_an_export_that_come_again_count_once(
    world: RabbitWorld, queue: RabbitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off_the_last_acknowledgement(world, queue, monkeypatch)
    with world.jet() as jet:
        jet.job(rabbitmq_child.JOB).export_snapshot("cut")
        other = rabbitmq_child.rabbit_pipeline(world.folder, job="other", out="other")
        jet.run(other, JobConfig(**child.CONFIG), until="drained", initial_snapshot="cut")
    assert committed(world.folder / "other", ("v",)) == Counter([(99,)]) and queue.left() == 0


def test_a_dead_drivers_messages_that_come_after_its_successors_run_count_once(
    world: RabbitWorld, queue: RabbitQueue
) -> None:
    """F13. The server does not know yet that the driver is dead: the next run commits its snapshot,
    has no message to acknowledge, and ends."""
    queue.send([{"v": v} for v in MESSAGES])
    with Proxy(queue.port) as proxy:
        held = proxy.hold_next(lambda said: b"\x00\x3c\x00\x50" in said)  # Basic.Ack
        world.use(queue, proxy.port)
        config = {**child.CONFIG, "max_items_per_epoch": None, "snapshot_interval": "10 minutes"}
        world.run_child("rabbitmq.acknowledge.sent=kill", config=config, until="drained")
        held.wait()
        world.use(queue)
        assert world.run().status is JobStatus.DRAINED
        assert world.rows() == ONCE and queue.left() == 0
    wait_until(lambda: queue.left() == len(MESSAGES), "all come again", timeout_s=20)
    assert world.run().status is JobStatus.DRAINED
    assert world.rows() == ONCE and queue.left() == 0


@long  # the contract cuts its connections; a broker is killed in test_five_kills.py
def test_a_server_that_is_killed_is_waited_for_in_place(world: RabbitWorld) -> None:
    """At the start, and in the middle; acknowledgements that it has lost do no harm."""
    folder = own_folder("rabbitmq")
    own = launch("rabbitmq", folder, server.prepared(folder))
    queue = new_queue(own)
    try:
        queue.send([{"v": v} for v in MESSAGES])
        write_down(own)
        stop(own, signal.SIGKILL)
        world.use(queue)
        with world.jet() as jet:
            job = jet.submit(
                rabbitmq_child.rabbit_pipeline(world.folder),
                JobConfig(**child.CONFIG),
                on_event=world.see,
            )
            own = launch("rabbitmq", folder, server.prepared(folder))
            wait_until(lambda: world.rows_by_manifest() == ONCE, "the first are read")
            stop(own, signal.SIGKILL)
            own = launch("rabbitmq", folder, server.prepared(folder))
            queue.send([{"v": 99}])
            wait_until(lambda: world.rows_by_manifest()[(99,)] == 1, "the last is read")
            assert job.complete(60).status is JobStatus.COMPLETED
        assert world.rows() == ONCE + Counter([(99,)]) and queue.left() == 0
        assert world.events_of(ExecutionRestarting) == []
    finally:
        stop(own)


@long
def test_a_message_that_is_held_for_longer_than_the_server_waits_counts_once(
    world: RabbitWorld,
) -> None:
    """It closes the channel; the job connects again, and drops what comes again."""
    folder = own_folder("rabbitmq")
    own = launch("rabbitmq", folder, server.prepared(folder, consumer_timeout="1000"))
    # It looks once a minute, and its file of settings has no word for that.
    control(own, "eval", "application:set_env(rabbit, channel_tick_interval, 500).")
    queue = new_queue(own)
    try:
        queue.send([{"v": v} for v in MESSAGES])
        world.use(queue)
        with world.jet() as jet:
            config = {**child.CONFIG, "max_items_per_epoch": None, "snapshot_interval": "1 hour"}
            job = jet.submit(
                rabbitmq_child.rabbit_pipeline(world.folder),
                JobConfig(**config),
                on_event=world.see,
            )
            logs = folder / "logs"
            said = "Timeout value used"
            wait_until(
                lambda: any(said in one.read_text() for one in logs.glob("*.log")),
                "the server has closed a channel",
            )
            queue.send([{"v": 99}])
            wait_until(
                lambda: sum(e.rows for e in world.events_of(EpochCompleted)) == len(MESSAGES) + 1,
                "the last is read, on another connection",
            )
            # What is acknowledged at the end is not to be in a race with it.
            control(own, "eval", "application:set_env(rabbit, consumer_timeout, 600000).")
            control(own, "close_all_connections", "gone")
            assert job.complete(60).status is JobStatus.COMPLETED
        assert world.rows() == ONCE + Counter([(99,)]) and queue.left() == 0
        assert world.events_of(ExecutionRestarting) == []
    finally:
        stop(own)
