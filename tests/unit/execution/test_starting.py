"""A start whose outside systems are away: waited for in place, until they answer or it is over."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any

import pytest

from dagster_jet.contract import Definition
from dagster_jet.errors import (
    ConfigurationError,
    FencedError,
    JetError,
    SinkUnavailableError,
    SourceUnavailableError,
)
from dagster_jet.execution import retrying as module
from dagster_jet.execution.retrying import GivenUpError, Retrying
from dagster_jet.execution.start_connectors import at_start
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.pipeline.graph import Graph, SinkNode, SourceNode
from dagster_jet.snapshot.protocol import StopKind


@dataclass
class Away(Definition):
    """A place that answers once it was asked so often."""

    left: int
    error: JetError = field(default_factory=lambda: SinkUnavailableError("it is away."))
    is_looked_at: bool = False

    def describe(self) -> dict[str, str]:
        return {"kind": "away"}

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> Away:
        if self.left:
            self.left -= 1
            raise self.error
        return Away(0, is_looked_at=True)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(module, "_RETRY_MAX_S", 0.0)


def start(sink: Any, source: Any = None, **more: Any) -> tuple[Graph, list[str]]:
    told: list[str] = []
    kind, fenced = more.get("stop"), threading.Event()
    if more.get("is_fenced"):
        fenced.set()
    ask = Retrying("j", fenced, StopSignal(kind), told.append).ask
    nodes = {"in": SourceNode("in", source or Away(0)), "out": SinkNode("out", ("in",), sink)}
    return at_start(Graph(nodes), "j", on_one_host=True, ask=ask), told


def test_what_is_away_is_asked_until_it_answers() -> None:
    source = Away(2, SourceUnavailableError("no broker."))
    graph, told = start(Away(3), source)
    found: list[Any] = [node.source for node in graph.sources]
    found += [node.sink for node in graph.sinks]
    assert all(one.is_looked_at for one in found)
    assert len(told) == 5
    assert "in (Away): check is being retried: no broker." in told[0]


def test_a_call_that_does_not_return_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "UNANSWERED_S", 0.001)

    class Frozen(Away):
        def at_start(self, job: str, stage: str, *, on_one_host: bool) -> Away:
            while not caplog.messages:
                time.sleep(0.001)
            return self

    start(Away(0), Frozen(0))
    assert "job 'j': in (Frozen): the check has not returned for 0.001 s" in caplog.messages


def test_what_cannot_be_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError, match="no table"):
        start(Away(1, ConfigurationError("no table.")))


def test_a_start_that_is_cancelled_waits_no_longer() -> None:
    with pytest.raises(GivenUpError, match="before its check to Away"):
        start(Away(1_000_000), stop=StopKind.CANCEL)


def test_a_newer_execution_ends_the_waiting() -> None:
    with pytest.raises(FencedError):
        start(Away(1_000_000), is_fenced=True)
