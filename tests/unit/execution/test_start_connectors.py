"""A start checks connectors and refuses those that break the contract."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import pytest

from dagster_jet.contract import Sink, Source
from dagster_jet.errors import PipelineError
from dagster_jet.execution.commit_reports import CommitReports
from dagster_jet.execution.retrying import Retrying
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.execution.start_connectors import at_start, on_store, open_reader
from dagster_jet.execution.stopping import StopSignal
from dagster_jet.pipeline.graph import Graph, SinkNode, SourceNode
from dagster_jet.spark.planning.as_analysed import declared_schema


@dataclass(frozen=True)
class Rows(Source):
    """Says no columns, and opens what is not a reader."""

    def describe(self) -> dict[str, str]:
        return {"kind": "rows"}

    def row_schema(self) -> None:
        return None

    def open(self, job: str, stage: str, bad_rows: Any) -> Any:
        return object()


@dataclass(frozen=True)
class Out(Sink):
    """Opens what is not a committer."""

    def describe(self) -> dict[str, str]:
        return {"kind": "out"}

    def takes(self, schema: Any) -> bool:
        return True

    def render(self, frame: Any) -> Any:
        return frame

    def open_writer(self, transaction: Any) -> Any:
        raise NotImplementedError

    def open_committer(self, job: str, stage: str) -> Any:
        return object()


SOURCE, SINK = SourceNode("in", Rows()), SinkNode("out", ("in",), Out())


def test_a_reader_of_another_class_is_refused() -> None:
    with pytest.raises(PipelineError, match=r"stage 'in'.*a object is not a SourceReader"):
        open_reader(SOURCE, "j", None)


def test_a_committer_of_another_class_is_refused() -> None:
    record: Any = None
    retrying = Retrying("j", threading.Event(), StopSignal(), lambda told: None)
    reports = CommitReports("j", lambda: record, lambda event: None)
    committer = SinkCommitter(
        "j", [SINK], {}, lambda _: SINK.sink, False, lambda: record, retrying, reports
    )
    with pytest.raises(PipelineError, match=r"stage 'out'.*a object is not a Committer"):
        committer.abort_orphans(())


def test_a_source_that_does_not_say_its_columns_is_refused_by_the_analysis() -> None:
    with pytest.raises(PipelineError, match=r"stage 'in'.*does not say its columns.*row_schema"):
        declared_schema("j", SOURCE)


def test_connectors_without_optional_methods_go_through_a_start_as_they_are() -> None:
    graph = Graph({"in": SOURCE, "out": SINK})
    store: Any = None
    assert at_start(on_store(graph, store), "j", on_one_host=True) == graph
