"""Connects a stateful stage's output to its own sinks and to downstream nodes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pyspark.sql.types import BinaryType, StructField, StructType

from dagster_jet.errors import PipelineError
from dagster_jet.operators.user.dead_letters import DEAD_LETTER_SCHEMA
from dagster_jet.pipeline.graph import Graph, Node, SinkNode, TimestampsNode, TransformNode
from dagster_jet.pipeline.stateful import ProcessorNode, StatefulNode
from dagster_jet.spark.planning.operator_plan import OperatorPlan
from dagster_jet.spark.tasks.barrier import ACK_COLUMN
from dagster_jet.spark.tasks.column_choice import ColumnChoice
from dagster_jet.spark.tasks.input_statistics import InputRef
from dagster_jet.spark.tasks.stage_input import OwnSink, StageSpec

ACK_TYPE = StructType([StructField(ACK_COLUMN, BinaryType())])


@dataclass(frozen=True)
class StageWiring:
    """A stateful stage, its inputs, and the readers of its output."""

    plan: OperatorPlan
    spec: StageSpec
    """Parameters of its tasks that are the same in every epoch."""
    late_inputs: frozenset[int]
    """Inputs whose late rows go to a sink."""
    readers: tuple[InputRef | str, ...]
    """Readers of the results besides the stage's own sinks: inputs a task might feed, other
    nodes."""
    passes_dead_letters: bool
    """Whether readers other than the stage's own sinks read its dead letters."""
    counted_inputs: tuple[str | None, ...] = ()
    """By input: the timestamps node whose statistics the stage's acks carry. None: Spark observes
    the node, or there is none."""

    def takes_out_late(self, ordinal: int) -> bool:
        """Whether late rows of this input are removed before the operator."""
        return ordinal < len(self.plan.late) and (
            self.plan.filters_late or ordinal in self.late_inputs
        )

    @property
    def own_sinks(self) -> tuple[str, ...]:
        """Sinks that the stage's own tasks write."""
        own = (*self.spec.sinks, *self.spec.dead_letter_sinks)
        letters = (one.dead_letters for one in own)
        return tuple(one.name for one in (*own, *letters) if one is not None)


def wire_stage(
    graph: Graph,
    node: StatefulNode,
    plan: OperatorPlan,
    counted: tuple[str | None, ...],
    plain: Mapping[str, ColumnChoice],
) -> StageWiring:
    """Finds the readers of the stage's output.

    Args:
        counted: `StageWiring.counted_inputs`.
        plain: selects that the stage's task can do by itself.
    """
    ends = list(_readers(graph, node, plain))
    own, readers = [], []
    for end, columns in ends:
        if isinstance(end, SinkNode):
            results = plan.operator.result_schema
            if end.sink.takes(results if columns is None else columns.schema(results)):
                own.append(own_sink(graph, end, columns))
                continue
        readers.append(end if isinstance(end, InputRef) else end.name)
    letters = [
        n for n in graph.downstream(node.name) if isinstance(n, SinkNode) and n.of_dead_letters
    ]
    letter_sinks = [n for n in letters if n.sink.takes(DEAD_LETTER_SCHEMA)]
    late = [n for n in graph.downstream(node.name) if isinstance(n, SinkNode) and n.of_late]
    spec = StageSpec(
        vertex=node.name,
        operator=plan.operator,
        sinks=tuple(own),
        dead_letter_sinks=tuple(OwnSink(n.name, n.sink) for n in letter_sinks),
        counted_inputs=tuple(n for n, name in enumerate(counted) if name is not None),
        statistics_columns=plan.statistics_columns,
        leaves_out_late=bool(late) and isinstance(node, ProcessorNode),
    )
    return StageWiring(
        plan,
        spec,
        late_inputs=frozenset(n.late_input for n in late),
        readers=tuple(readers),
        passes_dead_letters=len(letter_sinks) < len(letters),
        counted_inputs=counted,
    )


def own_sink(graph: Graph, node: SinkNode, columns: ColumnChoice | None = None) -> OwnSink:
    """A sink with its dead-letter sink, as tasks write them.

    Raises:
        PipelineError: there are two, or tasks cannot write the dead letters by themselves.
    """
    found = [n for n in graph.downstream(node.name) if isinstance(n, SinkNode)]
    if not found:
        return OwnSink(node.name, node.sink, columns)
    if len(found) > 1:
        raise PipelineError("dead_letter_to() is called twice.", stage=node.name)
    if not node.sink.can_leave_out():
        raise PipelineError(
            "the rows of this sink are changes that depend on earlier ones: no row can be left "
            "out, so the sink has no dead letters.",
            stage=node.name,
            cure="Leave dead_letter_to() out. Change the table so that it accepts all rows "
            "(wider columns, no constraints), or change the rows before the sink.",
        )
    [letters] = found
    if not letters.sink.takes(DEAD_LETTER_SCHEMA):
        raise PipelineError(
            f"a {letters.sink.describe()['kind']} sink cannot be the dead-letter sink of another "
            "sink.",
            stage=letters.name,
            cure="Use files, or append to a table.",
        )
    return OwnSink(node.name, node.sink, columns, OwnSink(letters.name, letters.sink))


def _readers(
    graph: Graph, node: Node, plain: Mapping[str, ColumnChoice], chosen: ColumnChoice | None = None
) -> Iterator[tuple[Node | InputRef, ColumnChoice | None]]:
    """Yields readers of a stage's results, also through selects its task can do; with columns."""
    for reader in graph.downstream(node.name):
        if isinstance(reader, SinkNode) and (reader.of_late or reader.of_dead_letters):
            continue
        if isinstance(reader, StatefulNode):
            for ordinal, name in enumerate(reader.upstream):
                if name == node.name:
                    yield InputRef(reader.name, ordinal), chosen
        elif isinstance(reader, TransformNode) and reader.name in plain:
            own = plain[reader.name]
            yield from _readers(graph, reader, plain, own if chosen is None else chosen.then(own))
        else:
            yield reader, chosen


def counted_inputs(
    graph: Graph, node: StatefulNode, watched: Collection[str]
) -> tuple[str | None, ...]:
    """By input, the timestamps node all of whose rows go to this stage and no other node. With a
    `max_ahead` Spark observes them: a group of rows does not tell which of them are ahead.

    Args:
        watched: nodes whose partitions Spark observes one by one.
    """
    if any(isinstance(n, SinkNode) and n.of_late for n in graph.downstream(node.name)):
        return ()  # late rows are removed before
    return tuple(
        name
        if isinstance(timestamps := graph[name], TimestampsNode)
        and timestamps.timestamps.max_ahead_ms is None
        and graph.downstream(name) == (node,)
        and node.upstream.count(name) == 1
        and name not in watched
        else None
        for name in node.upstream
    )
