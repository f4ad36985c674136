"""Building a DAG: what is refused, and which vertices a snapshot waits for."""

import pytest

from dagster_jet.dag import DAG, Edge, Processor, Vertex
from dagster_jet.errors import PipelineError


def dag_of(*names: str) -> DAG:
    dag = DAG("test")
    for name in names:
        dag.new_vertex(name, Processor)
    return dag


def test_vertices_come_after_what_they_read_from():
    dag = dag_of("sink", "map", "source")
    dag.edge(Edge.between("map", "sink")).edge(Edge.between("source", "map"))
    assert [vertex.name for vertex in dag] == ["source", "map", "sink"]
    dag.validate()


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda d: d.vertex(Vertex("a", Processor)), "two vertices of this name"),
        (lambda d: d.edge(Edge.between("a", "x")), "'x' that is not in the DAG"),
        (lambda d: d.edge(Edge.between("a", "c")), "leave it at the same ordinal"),
        (lambda d: d.edge(Edge.between("c", "b")), "enter it at the same ordinal"),
        (lambda d: d.edge(Edge.from_vertex("b").to_vertex("a")), "cycle"),
        (lambda d: Vertex("d", Processor, 0), "local_parallelism is 0"),
        (lambda d: Vertex("", Processor), "needs a name"),
    ],
)
def test_what_cannot_be_built(build, message):
    dag = dag_of("a", "b", "c").edge(Edge.between("a", "b"))
    with pytest.raises(PipelineError, match=message):
        build(dag)


@pytest.mark.parametrize(
    "edge, message",
    [
        (Edge.from_vertex("a", 1).to_vertex("b"), "outbound ordinals are"),
        (Edge.from_vertex("a").to_vertex("b", 2), "inbound ordinals are"),
        (Edge.between("a", "b").with_queue_size(0), "queue_size 0"),
    ],
)
def test_what_cannot_be_run(edge, message):
    with pytest.raises(PipelineError, match=message):
        dag_of("a", "b").edge(edge).validate()


def test_an_empty_dag_cannot_be_run():
    with pytest.raises(PipelineError, match="no vertices"):
        DAG().validate()


def test_snapshots_wait_for_all_that_feeds_a_prioritised_edge():
    dag = dag_of("rows", "table", "parse", "join")
    dag.edge(Edge.between("rows", "join"))
    dag.edge(Edge.between("table", "parse"))
    dag.edge(Edge.between("parse", "join").to_vertex("join", 1).with_priority(-1))
    assert dag.awaited() == {"table", "parse"}
