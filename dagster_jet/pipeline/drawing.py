"""Pictures of a pipeline: its sources, stateful stages and sinks, and what each reads."""

from __future__ import annotations

from collections.abc import Iterator

from dagster_jet.core.html_table import html_table
from dagster_jet.pipeline.graph import Graph, Node, SinkNode, SourceNode
from dagster_jet.pipeline.stateful import StatefulNode

_MARKS = {"source": ("([", "])"), "sink": ("[/", "/]")}


def as_text(name: str, graph: Graph) -> str:
    """One line per source, stage and sink, upstream before downstream."""
    nodes = list(_named(graph))
    width = max((len(node.name) for node in nodes), default=0)
    lines = [name]
    for node in nodes:
        reads = ", ".join(graph.named_upstreams(node.name))
        arrow = f"  <- {reads}" if reads else ""
        lines.append(f"  {node.name:{width}}  {_described(node)}  ({_kind(node)}){arrow}")
    return "\n".join(lines)


def as_html(name: str, graph: Graph) -> str:
    """A table with the same rows."""
    rows = [
        (node.name, _kind(node), _described(node), ", ".join(graph.named_upstreams(node.name)))
        for node in _named(graph)
    ]
    return html_table(f"Pipeline {name}", ("name", "kind", "definition", "reads"), rows)


def as_mermaid(graph: Graph) -> str:
    """A Mermaid flowchart."""
    numbers = {node.name: f"n{number}" for number, node in enumerate(_named(graph))}
    lines = ["flowchart LR"]
    for node in _named(graph):
        opening, closing = _MARKS.get(_kind(node), ("[", "]"))
        label = f"{node.name}<br>{_described(node)}".replace('"', "#quot;")
        lines.append(f'    {numbers[node.name]}{opening}"{label}"{closing}')
    for node in _named(graph):
        for upstream in graph.named_upstreams(node.name):
            lines.append(f"    {numbers[upstream]} --> {numbers[node.name]}")
    return "\n".join(lines)


def _named(graph: Graph) -> Iterator[Node]:
    return (node for node in graph if graph.is_named(node.name))


def _kind(node: Node) -> str:
    return node.kind.value


def _described(node: Node) -> str:
    if isinstance(node, StatefulNode):
        return "; ".join(f"{name} {value}" for name, value in node.describe().items() if value)
    assert isinstance(node, SourceNode | SinkNode)
    connector = node.source if isinstance(node, SourceNode) else node.sink
    described = dict(connector.describe())
    described.pop("schema", None)
    kind = described.pop("kind", "")
    return f"{kind}: {', '.join(described.values())}" if described else kind
