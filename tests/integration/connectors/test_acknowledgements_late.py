"""Acknowledgements that arrive late: each message counts once all the same.

The network holds one back and resets the client's connection; the server's side of it lives on. The
reader acknowledges again, or its successor does, and reads on. Then the old one arrives.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest

from dagster_jet import sources
from dagster_jet.errors import SourceUnavailableError
from tests.integration.connectors import changes_reading, sqs_child
from tests.integration.connectors.secret_urls import as_secret
from tests.long import long
from tests.servers import sqs, wait_until
from tests.servers.members import AwsServer
from tests.servers.postgres import postgres
from tests.servers.proxy import Proxy
from tests.servers.rabbitmq import rabbitmq

SCHEMA = "id long"


class Rabbit:
    """RabbitMQ queue whose readers connect through a proxy."""

    acknowledgement, is_answered = b"\x00\x3c\x00\x50", False  # Basic.Ack

    def __init__(self) -> None:
        self.queue = rabbitmq()
        self.proxy = Proxy(self.queue.port)

    def source(self) -> Any:
        url = as_secret(self.queue.through(self.proxy.port))
        # The server goes on delivering to the connection that it does not know to be dead.
        return sources.rabbitmq(url, queue=self.queue.name, schema=SCHEMA, prefetch=3)

    def send(self, ids: Sequence[int]) -> None:
        self.queue.send({"id": one} for one in ids)

    def ids(self, split: Any, reader: Any) -> list[int]:
        return [json.loads(message.body)["id"] for message in split]

    def left(self) -> int:
        return self.queue.left()


class Sqs(Rabbit):
    acknowledgement, is_answered = b"DeleteMessageBatch", True

    def __init__(self, server: AwsServer) -> None:
        self.queue = sqs.new_queue(server)
        self.proxy = Proxy(self.queue.port, is_http=True)

    def source(self) -> Any:
        endpoint = f"http://127.0.0.1:{self.proxy.port}"
        given = {"schema": SCHEMA, "endpoint_url": endpoint, **sqs_child.secrets()}
        return sources.sqs(self.queue.url, **given)


class Changes:
    """A log: one position acknowledges all before it."""

    acknowledgement, is_answered = b"pg_replication_slot_advance", True

    def __init__(self) -> None:
        self.database = postgres()
        self.database.run("create table t (id bigint primary key)")
        self.database.run("create publication p for table t")
        self.proxy = Proxy(self.database.port)

    def source(self) -> Any:
        return changes_reading.changes(self.database, self.proxy.port)

    def send(self, ids: Sequence[int]) -> None:
        changes_reading.insert(self.database, "t", [{"id": one} for one in ids])

    def ids(self, split: Any, reader: Any) -> list[int]:
        return [int(one) for one in reader._tables(split)[0].column("id").to_pylist()]

    def left(self) -> int:
        return 0


@pytest.fixture(scope="module")
def aws() -> Iterator[AwsServer]:
    with pytest.MonkeyPatch.context() as patch, AwsServer() as started:
        patch.setenv(sqs_child.KEY_ID, sqs.KEY_ID)
        patch.setenv(sqs_child.KEY, sqs.KEY)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        yield started


@pytest.fixture
def queue(kind: str, request: pytest.FixtureRequest) -> Iterator[Any]:
    if kind == "sqs":
        made: Any = Sqs(request.getfixturevalue("aws"))
    else:
        made = Rabbit() if kind == "rabbitmq" else Changes()
    yield made
    made.proxy.close()
    if kind == "changes":
        changes_reading.drop_slots(made.database)


class Job:
    """Executions of a job that read the queue and acknowledge messages, and the rows they have
    read."""

    def __init__(self, queue: Any) -> None:
        self.queue, self.read = queue, Counter[int]()
        self.restored: dict[str, Any] = {}
        self.reader = queue.source().open("j", "in", None)

    def reads(self, count: int) -> None:
        """Reads exactly this many messages."""

        def enough() -> bool:
            self.reader.accept(self.reader.poll())
            return bool(self.reader.waiting().items >= count)

        wait_until(enough, within=30)
        assert self.reader.waiting().items == count
        self.read.update(self.queue.ids(self.reader.plan(count), self.reader))

    def acknowledges(self) -> None:
        """A snapshot has what was read. Until it is done, as the engine does."""
        messages = {**self.restored, **self.reader.unacknowledged()}
        self.restored = {}

        def done() -> bool:
            try:
                self.reader.acknowledge(messages)
            except SourceUnavailableError:
                return False
            return True

        wait_until(done, within=30)

    def restarts(self) -> None:
        """Restarts from the snapshot."""
        position, open = self.reader.position(), self.reader.unacknowledged()
        self.reader.close()
        self.reader = self.queue.source().open("j", "in", None)
        self.reader.restore(json.loads(json.dumps(position)), None)
        self.restored = json.loads(json.dumps(open))
        self.reader.restore_unacknowledged(self.restored)


@pytest.mark.parametrize(
    ("kind", "restarts"),
    [
        pytest.param("rabbitmq", True, id="successor-rabbitmq"),
        pytest.param("sqs", True, id="successor-sqs"),
        pytest.param("changes", True, id="successor-changes"),
        pytest.param("sqs", False, id="same-sqs"),
        pytest.param("rabbitmq", False, marks=long, id="same-rabbitmq"),
        pytest.param("changes", False, marks=long, id="same-changes"),
    ],
)
def test_an_acknowledgement_that_arrives_after_its_successors(
    queue: Any, kind: str, restarts: bool
) -> None:
    job = Job(queue)
    queue.send([1, 2, 3])
    job.reads(3)
    held = queue.proxy.hold_next(lambda asked: queue.acknowledgement in asked)
    if restarts:
        with suppress(SourceUnavailableError):  # SQS's client itself asks again
            job.reader.acknowledge(job.reader.unacknowledged())
        job.restarts()
    job.acknowledges()
    held.wait()
    queue.send([4, 5])
    job.reads(2)
    job.acknowledges()
    queue.send([6])
    job.reads(1)
    answer = held.release(is_answered=queue.is_answered)
    assert bool(answer) == queue.is_answered
    job.acknowledges()
    queue.send([7])
    job.reads(1)
    job.acknowledges()
    assert job.read == Counter(range(1, 8))
    job.reader.close()
    wait_until(lambda: queue.left() == 0, within=10)
