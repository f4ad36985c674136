"""Prepares the connectors of a pipeline for an execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dagster_jet.connectors.pages import leading_to_page
from dagster_jet.contract import (
    BadRowRule,
    ClassifiesErrors,
    Definition,
    Sink,
    Source,
    SourceReader,
)
from dagster_jet.contract.part import check_is_a
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.pipeline.graph import EnrichNode, Graph, SinkNode, SourceNode
from dagster_jet.store import Store

Ask = Callable[[str, ClassifiesErrors, Callable[[], Any]], Any]
"""Makes a call of a stage's connector, possibly with retries, and returns its result."""


def ask_once(stage: str, connector: ClassifiesErrors, call: Callable[[], Any]) -> Any:
    """Makes the call without retries: an unavailable place ends the start."""
    return call()


def on_store(graph: Graph, store: Store) -> Graph:
    """Returns the graph with all connectors on the job's store (`Definition.with_store`)."""
    return _with_definitions(graph, lambda name, definition: definition.with_store(store))


def at_start(graph: Graph, job: str, *, on_one_host: bool, ask: Ask = ask_once) -> Graph:
    """Calls `Definition.at_start` of all connectors; returns the graph with the results.

    Raises as that call does."""

    def change(name: str, definition: Definition) -> Any:
        with leading_to_page(definition):
            inspect = partial(definition.at_start, job, name, on_one_host=on_one_host)
            return ask(name, definition, inspect)

    return _with_definitions(graph, change)


def formerly(graph: Graph, renamed: Mapping[str, str]) -> Graph:
    """Returns the graph whose sinks know their former names (`Sink.formerly`).

    Args:
        renamed: present name by former name.
    """
    former = {present: name for name, present in renamed.items()}

    def change(name: str, definition: Definition) -> Any:
        if isinstance(definition, Sink) and name in former:
            return definition.formerly(former[name])
        return definition

    return _with_definitions(graph, change)


def _with_definitions(graph: Graph, change: Callable[[str, Definition], Any]) -> Graph:
    nodes = dict(graph.nodes)
    for node in graph:
        if isinstance(node, SourceNode):
            nodes[node.name] = replace(node, source=change(node.name, node.source))
        elif isinstance(node, SinkNode):
            nodes[node.name] = replace(node, sink=change(node.name, node.sink))
        elif isinstance(node, EnrichNode):
            nodes[node.name] = replace(node, table=change(node.name, node.table))
    return Graph(nodes)


def open_reader(node: SourceNode, job: str, bad_rows: BadRowRule | None) -> SourceReader:
    """Opens the reader of a source. Raises as `Source.open`."""
    reader = node.source.open(job, node.name, bad_rows)
    check_is_a(SourceReader, reader, job=job, stage=node.name)
    return reader


def effective_guarantee(wanted: Guarantee, connector: Source | Sink) -> Guarantee:
    """Returns a connector's guarantee in a job that wants `wanted`; every start reports a weaker
    one."""
    return wanted.at_most(connector.max_guarantee)


def effective_guarantees(graph: Graph, wanted: Guarantee) -> dict[str, Guarantee]:
    """Returns the effective guarantee of each source and sink of a pipeline, by name."""
    connectors: dict[str, Source | Sink] = {node.name: node.source for node in graph.sources}
    connectors |= {node.name: node.sink for node in graph.sinks}
    return {name: effective_guarantee(wanted, each) for name, each in connectors.items()}
