"""Compares a changed pipeline with the state of a snapshot, before the pipeline starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dagster_jet.connectors.reopening import destination_of
from dagster_jet.contract import Sink
from dagster_jet.execution.start_connectors import at_start, on_store
from dagster_jet.jobs.stored_snapshot import Wanted, find_snapshot
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.pipeline.graph import Graph
from dagster_jet.pipeline.pipeline import Pipeline
from dagster_jet.snapshot.adaptation import Adaptation, Plan, needed
from dagster_jet.snapshot.owed import Destination, names_at_place
from dagster_jet.snapshot.plan import COLUMNS, compare_plans
from dagster_jet.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def plan_change(
    store: Store,
    open_session: Callable[[], SparkSession],
    pipeline: Pipeline,
    snapshot: Wanted,
    words: Adaptation,
) -> Plan:
    """Compares a pipeline with a snapshot; see `Jet.plan`.

    Args:
        store: the open store.
        open_session: returns the Spark session; called only if columns of states are compared.
        pipeline: with the name of the job.
        snapshot: None: the job's newest one, if there is any.
        words: which states are renamed or dropped, and which sinks are renamed.
    """
    given = words
    words = replace(given, renamed=pipeline.graph.renamed_states(given.renamed))
    record, found = read_record(store, pipeline.name), None
    if snapshot is not None or (record is not None and record.snapshots):
        is_export = isinstance(snapshot, str) and not snapshot.isdigit()
        found = find_snapshot(store, None if is_export else pipeline.name, snapshot)
    wanted = pipeline.graph.plan()
    saved = found.manifest.plan if found is not None else {}
    if saved:
        saved = words.plan(saved, wanted, pipeline.name)
    changes = compare_plans(saved, wanted)
    has_columns = any(COLUMNS in plan for plan in saved.values())
    if has_columns and not any(change.is_refused for change in changes):
        wanted = _analysed(store, open_session(), pipeline)
        if found is not None:
            saved = words.plan(found.manifest.plan, wanted, pipeline.name)
        changes = compare_plans(saved, wanted)
    needs = given.and_also(needed(changes, saved, wanted))
    if found is not None:
        sinks = renamed_sinks(on_store(pipeline.graph, store), found.manifest.sinks)
        needs = needs.and_also(Adaptation(sinks))
    return Plan(changes, needs)


def renamed_sinks(graph: Graph, saved: Mapping[str, Destination]) -> dict[str, str]:
    """Returns the sinks that must be renamed by word, present name by former name: their places
    have marks of sinks that have left the pipeline."""
    today = {
        node.name: destination_of(node.sink)
        for node in graph.sinks
        if type(node.sink).formerly is not Sink.formerly
    }
    gone = [name for name in saved if name not in graph.nodes]
    return {name: new for name in gone for new in names_at_place(name, saved, today, {})}


def _analysed(store: Store, session: SparkSession, pipeline: Pipeline) -> dict[str, Any]:
    """The plan of a pipeline as its start would make it."""
    from dagster_jet.spark.planning.analysis import analyse
    from dagster_jet.spark.runtime import SparkRuntime

    graph = on_store(pipeline.graph, store)
    with closing(SparkRuntime(session, pipeline.name, {}, 1)) as runtime:
        graph = at_start(graph, pipeline.name, on_one_host=runtime.is_local)
        return analyse(runtime, graph, store.partition_count).stage_plans()
