"""A pipeline: a named graph of stages, which every call extends by a frozen node."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Literal

from dagster_jet.contract import Sink, Source
from dagster_jet.errors import PipelineError
from dagster_jet.pipeline.builder import NAME_BYTES_MAX, GraphBuilder, check_length
from dagster_jet.pipeline.drawing import as_html, as_mermaid, as_text
from dagster_jet.pipeline.graph import Graph, Node, SinkNode, SourceNode
from dagster_jet.pipeline.stage import SourceStage
from dagster_jet.pipeline.stateful import StatefulMapNode

_KINDS = ("sources", "stages", "sinks")
_JOB_BYTES_MAX = 240
"""The longest name of a renamed job: a pipeline's name, a partition's key and its attempt."""


class Pipeline:
    """A streaming job as a named graph of stages. Building it runs nothing.

    State and positions are matched by stage name, also after the code has changed. So the names of
    sources, stateful stages and sinks must be unique and should not change.

    Args:
        name: name of the job, at most 100 bytes; it becomes part of store keys.

    Raises:
        PipelineError: the name is empty or too long, or has a character not allowed in keys and
            paths.

    Example:
        >>> p = Pipeline("copy")
        >>> rows = p.read_from(sources.files("/in", format="json", schema="id long"), name="rows")
        >>> written = rows.write_to(sinks.files("/out", format="json"), name="out")
    """

    def __init__(self, name: str) -> None:
        self._take_name(name, NAME_BYTES_MAX)

    def _take_name(self, name: str, bytes_max: int) -> None:
        if not name or name in (".", "..") or any(c in name for c in "/\\\0 \n"):
            raise PipelineError(
                f"{name!r} is not a valid pipeline name.",
                cure="Use letters, digits, '_', '-' and '.'; it becomes part of store keys.",
            )
        check_length(name, bytes_max=bytes_max)
        self.name = name
        self._builder = GraphBuilder(name)

    def read_from(self, source: Source, *, name: str) -> SourceStage:
        """Adds a source and returns the stream of its rows.

        Args:
            source: from `dagster_jet.sources`, or a connector of your own.
            name: name of the source, unique in the pipeline; saved positions are matched by it.

        Raises:
            PipelineError: the name is taken or not valid in a path, or the connector lacks
                attributes of `dagster_jet.contract.Source`.

        Example:
            >>> source = sources.files("/in", format="json", schema="id long, at timestamp")
            >>> more = p.read_from(source, name="more")
        """
        return SourceStage(self._builder, self._builder.add(SourceNode(name, source)).name, None)

    @property
    def graph(self) -> Graph:
        """The finished graph of all stages.

        Raises:
            PipelineError: there is no source, no sink, or no sink for a stage's dead letters.
        """
        graph = Graph(dict(self._builder.nodes))
        if not graph.sources:
            raise PipelineError(
                "the pipeline has no source.", job=self.name, cure="Call read_from()."
            )
        if not graph.sinks:
            raise PipelineError("the pipeline has no sink.", job=self.name, cure="Call write_to().")
        with_dead_letters = {sink.upstream[0] for sink in graph.sinks if sink.of_dead_letters}
        for stage in graph.stages:
            if (
                isinstance(stage, StatefulMapNode)
                and stage.keeps_dead_letters
                and stage.name not in with_dead_letters
            ):
                raise PipelineError(
                    'on_error="dead-letter" needs a sink for the dead letters.',
                    job=self.name,
                    stage=stage.name,
                    cure="Call dead_letter_to(sink, name=...) directly after the stage.",
                )
        return graph

    def with_connectors(
        self,
        sources: Mapping[str, Source] | None = None,
        sinks: Mapping[str, Sink] | None = None,
    ) -> Pipeline:
        """Returns a copy with other sources and sinks, for experiments and tests.

        Args:
            sources: replacements of sources, by name of the source.
            sinks: replacements of sinks, by name of the sink.

        Raises:
            PipelineError: there is no source or sink of that name.

        Example:
            >>> numbers = p.read_from(sources.sequence(rate=10), name="numbers")
            >>> written = numbers.write_to(sinks.files("/out", format="json"), name="numbers_out")
            >>> shown = p.with_connectors(sinks={"numbers_out": sinks.console()})
        """
        changed = self.renamed(self.name)
        builder = changed._builder
        for name, source in (sources or {}).items():
            builder.replace(replace(builder.end(name, SourceNode), source=source))
        for name, sink in (sinks or {}).items():
            builder.replace(replace(builder.end(name, SinkNode), sink=sink))
        return changed

    def show(self, *, format: Literal["text", "mermaid"] = "text") -> None:
        """Prints the sources, stateful stages and sinks, each with what it reads.

        Args:
            format: "text", or "mermaid" for a diagram in Markdown.

        Raises:
            PipelineError: `format` is not valid.

        Example:
            >>> p.show()  # doctest: +SKIP
            copy
              rows  files: /in, json  (source)
              out   files: /out, json  (sink)  <- rows
        """
        if format not in ("text", "mermaid"):
            raise PipelineError(
                f"format={format!r} is unknown.", job=self.name, cure='Use "text" or "mermaid".'
            )
        graph = Graph(dict(self._builder.nodes))
        print(as_text(self.name, graph) if format == "text" else as_mermaid(graph))

    def __repr__(self) -> str:
        graph = Graph(dict(self._builder.nodes))
        names = [", ".join(n.name for n in of) for of in (graph.sources, graph.stages, graph.sinks)]
        parts = [f"{what} {given}" for what, given in zip(_KINDS, names, strict=True) if given]
        return f"<Pipeline {self.name!r}: {'; '.join(parts) or 'empty'}>"

    def _repr_html_(self) -> str:
        """Returns HTML for a notebook."""
        return as_html(self.name, Graph(dict(self._builder.nodes)))

    def renamed(self, name: str) -> Pipeline:
        """Returns the same stages as another job with its own record, state and positions.

        The job can run beside this one, over other input. Its sinks must write elsewhere, because a
        sink's place belongs to one job.

        Args:
            name: name of the other job, at most 240 bytes: room for the key of a partition.

        Raises:
            PipelineError: the name is empty or too long, or has a character not allowed in keys and
                paths.

        Example:
            >>> p.renamed("copy@2024-01-01").name
            'copy@2024-01-01'
        """
        other = copy(self)
        other._take_name(name, _JOB_BYTES_MAX)
        other._builder.nodes.update(self._builder.nodes)
        return other

    def _with_nodes(self, nodes: Mapping[str, Node]) -> Pipeline:
        """Returns a pipeline of the same name with these nodes in place of those of their names."""
        other = self.renamed(self.name)
        other._builder.nodes.update(nodes)
        return other
