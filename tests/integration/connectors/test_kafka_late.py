"""A request that ends a transaction, and arrives after its successors.

The network holds it back and resets the connection; the client asks again, and is answered. Then
it arrives in the middle of a later epoch, of which half is with the broker: it must end nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import sinks
from dagster_jet.connectors.kafka import held_committer, producing, transactions
from dagster_jet.connectors.kafka import kafka_committer as roll_forward
from dagster_jet.connectors.kafka.transactions import send_rows
from dagster_jet.connectors.staged_rows import staged_rows
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import SinkUnavailableError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.store import Store, StoreConfig
from tests.integration.connectors.late_commit import commit_until_done
from tests.long import long
from tests.servers.kafka import network
from tests.servers.proxy import HeldRequest, Proxy

from .kafka_world import KafkaWorld, is_end_of_transaction

JOB, STAGE = "late", "out"
MESSAGES = pa.schema([("__key", pa.binary()), ("__value", pa.binary())])


class Late:
    """One sink on a topic of one partition, behind a network."""

    def __init__(self, folder: Path, store: Store, proxy: Proxy, **options: Any) -> None:
        self.folder, self.store, self.proxy, self.kafka = folder, store, proxy, KafkaWorld()
        self.place = {"topic": self.kafka.topic(), "marker_topic": f"m-{uuid.uuid4().hex[:12]}"}
        self.options = options
        self.sink = self.made()
        self.sink.check(JOB, STAGE, is_new_job=True)
        self.committer = self.sink.open_committer(JOB, STAGE)
        self.staged: list[int] = []

    def made(self) -> Any:
        servers = f"127.0.0.1:{self.proxy.port}"
        return sinks.kafka(servers, **self.place, **self.options).with_store(self.store)

    def stage(self, epoch: int, execution: int = 1) -> list[Artifact]:
        """Two batches."""
        writer = self.sink.open_writer(TransactionId(JOB, STAGE, 1, execution, epoch, 0, "a0"))
        for half in (0, 1):
            values = [epoch * 10 + half * 5 + n for n in range(3)]
            self.staged += values
            content = {"__key": [None] * 3, "__value": [b'{"v": %d}' % v for v in values]}
            writer.write(pa.record_batch(content, schema=MESSAGES))
        found = list(writer.prepare())
        writer.close()
        return found

    def commit(
        self, artifacts: list[Artifact], execution: int = 1, *, recovering: bool = False
    ) -> None:
        context = CommitContext(JOB, STAGE, 1, execution, recovering=recovering)
        commit_until_done(self.committer, artifacts, context)

    def values(self) -> list[int]:
        return sorted(row["v"] for row in self.kafka.rows(self.place["topic"]))


@pytest.fixture
def late(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Late]:
    config = StoreConfig((f"file://{tmp_path}/store",), backup_count=0)
    with network("late") as proxy, Store.open(config) as store:
        late = Late(tmp_path, store, proxy, **getattr(request, "param", {}))
        yield late
        late.committer.close()


@pytest.fixture
def halfway(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Makes something happen when half of what is committed next is with the broker."""

    def meanwhile(act: Callable[[], None]) -> None:
        todo = [act]

        def rows(*asked: Any) -> Iterator[pa.RecordBatch]:
            for batch in staged_rows(*asked):
                yield batch
                while todo:
                    assert sent[-1].flush(30) == 0
                    todo.pop()()

        sent: list[Any] = []

        def send(client: Any, *rest: Any) -> None:
            sent.append(client)
            send_rows(client, *rest)

        monkeypatch.setattr(producing, "send_rows", send)
        for module in (roll_forward, held_committer):
            monkeypatch.setattr(module, "staged_rows", rows)

    return meanwhile


def test_a_commit_that_arrives_in_the_middle_of_a_later_epoch(late: Late, halfway: Any) -> None:
    late.commit(late.stage(1))
    held = late.proxy.hold_next(is_end_of_transaction)
    late.commit(late.stage(2))
    held.wait()
    third = late.stage(3)
    halfway(held.release)
    late.commit(third)
    assert late.values() == sorted(late.staged)


def test_a_commit_that_arrives_after_an_epoch_that_was_given_up(late: Late, halfway: Any) -> None:
    """The marker that ends an aborted transaction is late, too."""
    held: list[HeldRequest] = []

    def fail() -> None:
        held.append(late.proxy.hold_next(is_end_of_transaction))
        raise SinkUnavailableError("something else fails")

    late.commit(late.stage(1))
    second = late.stage(2)
    halfway(fail)
    late.commit(second)
    held[0].wait()
    third = late.stage(3)
    halfway(held[0].release)
    late.commit(third)
    assert late.values() == sorted(late.staged)


@pytest.mark.parametrize("late", [{"transactions": "held", "writers": 1}], indirect=True)
def test_a_commit_that_arrives_late_while_epochs_are_rolled_forward(
    late: Late, halfway: Any
) -> None:
    """A broker has aborted what was held in three epochs: they are produced again, one by one."""
    # To open a transaction aborts what is open under its id: the last one is as it was left.
    epochs = [artifact for epoch in (1, 3, 5) for artifact in late.stage(epoch)]
    held = late.proxy.hold_next(lambda asked: is_end_of_transaction(asked) and b"/rolled" in asked)
    halfway(lambda: halfway(held.release))
    late.commit(epochs, recovering=True)
    assert late.values() == sorted(late.staged)


def is_message(request: bytes) -> bool:
    """Produce."""
    return request[4:6] == bytes(2)


@pytest.mark.parametrize("is_it", [is_end_of_transaction, pytest.param(is_message, marks=long)])
def test_a_connection_that_falls_silent_delays_one_commit(
    late: Late, monkeypatch: pytest.MonkeyPatch, is_it: Callable[[bytes], bool]
) -> None:
    """Unless we set socket.timeout.ms, the delay is as long as a transaction may be open."""
    monkeypatch.setattr(transactions, "SOCKET_MS", 1_000)
    held = late.proxy.hold_next(is_it, resets=False)
    began = time.monotonic()
    late.commit(late.stage(1))
    held.wait()
    late.commit(late.stage(2))
    assert time.monotonic() - began < 30
    third = late.stage(3)
    held.release()
    late.commit(third)
    assert late.values() == sorted(late.staged)


def test_a_commit_of_a_process_that_was_killed_arrives_after_its_successors(
    late: Late, halfway: Any
) -> None:
    first, second, third = late.stage(1), late.stage(2), late.stage(3)
    held = late.proxy.hold_next(is_end_of_transaction, resets=False)
    context = multiprocessing.get_context("spawn")
    child = context.Process(
        target=commit_in_a_child, args=(late.folder, late.made(), [*first, *second])
    )
    child.start()
    held.wait()
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    halfway(held.release)
    late.commit([*first, *second], 2)
    late.commit(third, 2)
    assert late.values() == sorted(late.staged)


def commit_in_a_child(folder: Path, sink: Any, artifacts: list[Artifact]) -> None:
    committer = sink.open_committer(JOB, STAGE)
    committer.commit(artifacts, CommitContext(JOB, STAGE, 1, 1, recovering=False))
