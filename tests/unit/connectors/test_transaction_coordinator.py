"""A coordinator that has just started, or has moved, is waited for in each call."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors

from dagster_jet.connectors.kafka import transaction_coordinator
from dagster_jet.connectors.kafka.cluster import Cluster
from dagster_jet.connectors.kafka.transaction_coordinator import Described, TransactionCoordinator
from dagster_jet.errors import SinkUnavailableError

CALLS: dict[str, tuple[Callable[[TransactionCoordinator], Any], Any]] = {
    "end": (lambda one: one.end("id", 1, 2, commit=True), True),
    "describe": (lambda one: one.describe("id"), Described("Ongoing", 1, 2)),
}


class Starting:
    """The client of a cluster, whose coordinator first gives these answers."""

    def __init__(self, *answers: type[Exception]) -> None:
        self.answers, self.clients = list(answers), 0

    def __call__(self, cluster: Cluster) -> Starting:
        self.clients += 1
        return self

    def end(self, *_: Any) -> None:
        if self.answers:
            raise self.answers.pop(0)()

    def describe(self, _: str) -> Any:
        self.end()
        state = SimpleNamespace(value="Ongoing")
        return SimpleNamespace(state=state, producer_id=1, producer_epoch=2)

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("answer", "clients"),
    [
        (errors.ConcurrentTransactionsError, 1),
        (errors.CoordinatorLoadInProgressError, 1),
        (errors.CoordinatorNotAvailableError, 3),
        (errors.NotCoordinatorError, 3),  # the client would go to the old one again
    ],
)
def test_each_call_waits_for_a_coordinator(
    monkeypatch: pytest.MonkeyPatch, name: str, answer: type[Exception], clients: int
) -> None:
    """Failed before: after a broker's restart a transaction was not found, while its coordinator
    loaded its log."""
    call, wanted = CALLS[name]
    cluster = Starting(answer, answer)
    monkeypatch.setattr(transaction_coordinator, "_EndsTransactions", cluster)
    assert call(TransactionCoordinator(Cluster("a:9092"), "j", "s")) == wanted
    assert cluster.clients == clients


def test_it_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_coordinator, "_SILENCE_S", 0.02)
    cluster = Starting(*[errors.CoordinatorLoadInProgressError] * 100)
    monkeypatch.setattr(transaction_coordinator, "_EndsTransactions", cluster)
    with pytest.raises(SinkUnavailableError, match="does not answer now"):
        TransactionCoordinator(Cluster("a:9092"), "j", "s").describe("id")


def test_a_refusal_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        transaction_coordinator, "_EndsTransactions", Starting(errors.InvalidTxnStateError)
    )
    assert not TransactionCoordinator(Cluster("a:9092"), "j", "s").end("id", 1, 2, commit=True)
