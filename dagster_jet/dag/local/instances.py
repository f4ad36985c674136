"""Builds tasklets from a DAG: the instances, and a queue between connected instances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dagster_jet.dag import (
    DAG,
    BoundedQueue,
    Edge,
    Guarantee,
    InboundEdge,
    OutboundEdge,
    Outbox,
    Partitioning,
    ProcessorCalls,
    ProcessorContext,
    ProcessorInput,
    ProcessorTasklet,
    Routing,
    SnapshotContext,
    Vertex,
    new_processor,
)
from dagster_jet.dag.calls import Callback
from dagster_jet.dag.local.snapshot_coordinator import Participant
from dagster_jet.dag.local.snapshots import Snapshot, SnapshotWriter
from dagster_jet.dag.saved_entry import redistribute
from dagster_jet.errors import PipelineError, SnapshotInvalidError


@dataclass(frozen=True)
class Wiring:
    """Settings shared by all tasklets of an execution."""

    dag: DAG
    job: str
    guarantee: Guarantee
    parallelism: int
    partitioning: Partitioning
    inbox_limit: int
    max_retention_ms: int | None
    now_ms: Callable[[], int]
    clock: Callable[[], float]
    slow_call_s: float
    fencing_token: int
    on_slow_call: Callable[[ProcessorContext, Callback, float], None]

    def participants(self, context: SnapshotContext, restore: Snapshot | None) -> list[Participant]:
        """Create one connected tasklet per instance of each vertex."""
        if restore is not None:
            self._check_restore(restore)
        queues = {edge: self._queues(edge) for edge in self.dag.edges}
        made: list[Participant] = []
        for vertex in self.dag:
            self._vertex(vertex, queues, context, restore, made)
        return made

    def parallelism_of(self, name: str) -> int:
        return self.dag[name].local_parallelism or self.parallelism

    def _queues(self, edge: Edge) -> list[list[BoundedQueue | None]]:
        """Return the queues by producing and consuming instance; None: not connected."""
        producers, consumers = (
            self.parallelism_of(edge.source),
            self.parallelism_of(edge.destination),
        )
        isolated = edge.routing is Routing.ISOLATED
        if isolated and consumers > producers:
            raise PipelineError(
                f"edge {edge} is isolated, but {producers} instances feed {consumers}.",
                job=self.job,
                stage=edge.destination,
                cure="Give both vertices the same local_parallelism.",
            )
        return [
            [
                None if isolated and p % consumers != c else BoundedQueue(edge.queue_size)
                for c in range(consumers)
            ]
            for p in range(producers)
        ]

    def _vertex(
        self,
        vertex: Vertex,
        queues: dict[Edge, list[list[BoundedQueue | None]]],
        context: SnapshotContext,
        restore: Snapshot | None,
        made: list[Participant],
    ) -> None:
        """Append the vertex's participants to those created before."""
        parallelism = self.parallelism_of(vertex.name)
        known = restore is not None and vertex.name in restore.entries
        ended = self._ended(vertex.name, restore)
        shares = (
            redistribute(restore.entries[vertex.name], parallelism, excluded=ended)
            if restore is not None and known
            else None
        )
        for index in range(parallelism):
            writer = SnapshotWriter(self.partitioning)
            outbound = [
                OutboundEdge(
                    edge,
                    [queue for queue in queues[edge][index] if queue is not None],
                    producer=index,
                    partitioning=self.partitioning,
                )
                for edge in self.dag.outbound(vertex.name)
            ]
            tasklet = ProcessorTasklet(
                self._calls(vertex, index, Outbox(outbound, writer), made),
                self._input(vertex.name, index, queues),
                context,
                restored=None if shares is None else (entry.load() for entry in shares[index]),
                is_finished=index in ended,
                inbox_limit=self.inbox_limit,
                now_ms=self.now_ms,
            )
            made.append(Participant(tasklet, writer, vertex.name, index))

    def _calls(
        self, vertex: Vertex, index: int, outbox: Outbox, made: list[Participant]
    ) -> ProcessorCalls:
        context = ProcessorContext(
            vertex.name,
            index,
            self.parallelism_of(vertex.name),
            self.guarantee,
            self.job,
            self.fencing_token,
        )
        others = [participant.tasklet.calls.processor for participant in made]
        processor = new_processor(vertex.supplier, vertex.name, index, job=self.job, others=others)
        return ProcessorCalls(
            processor,
            outbox,
            context,
            clock=self.clock,
            slow_call_s=self.slow_call_s,
            on_slow_call=lambda callback, took: self.on_slow_call(context, callback, took),
        )

    def _input(
        self, name: str, index: int, queues: dict[Edge, list[list[BoundedQueue | None]]]
    ) -> ProcessorInput:
        exactly_once = self.guarantee is Guarantee.EXACTLY_ONCE
        edges = [
            InboundEdge(
                edge.destination_ordinal,
                [queue for row in queues[edge] if (queue := row[index]) is not None],
                exactly_once=exactly_once,
                priority=edge.priority,
                max_retention_ms=self.max_retention_ms,
                now_ms=self.now_ms(),
            )
            for edge in self.dag.inbound(name)
        ]
        return ProcessorInput(
            edges,
            exactly_once=exactly_once,
            max_retention_ms=self.max_retention_ms,
            now_ms=self.now_ms(),
        )

    # --- restore --------------------------------------------------------------------------------

    def _check_restore(self, restore: Snapshot) -> None:
        was, now = restore.partition_count, self.partitioning.partition_count
        if was != now:
            raise SnapshotInvalidError(
                f"snapshot {restore.snapshot_id} was taken with {was} partitions, and this job "
                f"has {now}: instances would get items of keys whose state is in another "
                "instance.",
                job=self.job,
                cure=f"Restart with partitioning=partitioning({was}), or your own with that count.",
            )
        lost = sorted(
            name
            for name, entries in restore.entries.items()
            if entries and name not in {vertex.name for vertex in self.dag}
        )
        if lost:
            raise SnapshotInvalidError(
                f"snapshot {restore.snapshot_id} has state of vertices that the DAG does not have:"
                f" {', '.join(lost)}.",
                job=self.job,
                cure="Keep the names of vertices: state is matched by them.",
            )

    def _ended(self, name: str, restore: Snapshot | None) -> frozenset[int]:
        """Return the instances that had ended before the snapshot and do not run again."""
        found = restore.ended.get(name) if restore is not None else None
        parallelism = self.parallelism_of(name)
        if found is None:
            return frozenset()
        if found.all:
            return frozenset(range(parallelism))
        if found.parallelism != parallelism:
            raise SnapshotInvalidError(
                f"{len(found.indices)} of its {found.parallelism} instances had ended before the "
                "snapshot and saved nothing: with another parallelism their input would be read "
                "again.",
                job=self.job,
                stage=name,
                cure=f"Restart with local_parallelism={found.parallelism} for this vertex.",
            )
        return found.indices
