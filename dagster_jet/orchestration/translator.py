"""Translates a stage of a pipeline into the asset that represents it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dagster as dg

from dagster_jet.connectors.guarantees import shown_guarantee
from dagster_jet.core.ddl import DEAD_LETTER_COLUMNS
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import PipelineError
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.column_schema import columns_from_ddl
from dagster_jet.orchestration.dagster_name import dagster_name
from dagster_jet.pipeline.graph import Graph, Node, SinkNode, SourceNode
from dagster_jet.pipeline.stage_kind import StageKind
from dagster_jet.pipeline.stateful import StatefulNode

_GIVES = {
    Guarantee.EXACTLY_ONCE.value: "Rows are committed exactly once, unless the job asks for less.",
    Guarantee.AT_LEAST_ONCE.value: "Rows are written at least once: a restart may repeat some.",
    Guarantee.NONE.value: "There is no guarantee: a restart may lose or repeat rows.",
}


@dataclass(frozen=True)
class JetStageData:
    """Input of a translator: one source, stateful stage or sink.

    Attributes:
        pipeline: name of the pipeline.
        stage: name of the stage, unique in the pipeline.
        kind: kind of the stage; equal to its word ("source", "aggregate", "sink", ...).
        upstream: names of the nearest named stages upstream.
        description: the connector's description (kind, path, format, ...), without secrets.
        columns_ddl: the columns as a DDL string, if they are known without running.
        of_dead_letters: whether the stage is a sink for bad rows of a source or stateful stage.
        tables: keys of the assets that the stage's rows are enriched with.
        asset: key of the asset that a source reads and others define; () if there is none.
    """

    pipeline: str
    stage: str
    kind: StageKind
    upstream: tuple[str, ...] = ()
    description: Mapping[str, str] = field(default_factory=dict)
    columns_ddl: str | None = None
    of_dead_letters: bool = False
    tables: tuple[tuple[str, ...], ...] = ()
    asset: tuple[str, ...] = ()

    @property
    def storage(self) -> str | None:
        """Storage format or system in lower case ("json", "parquet"); None if unknown."""
        found = self.description.get("format") or self.description.get("kind")
        return found.lower() if found else None

    @property
    def uri(self) -> str | None:
        """Location of the data; None if unknown."""
        return self.description.get("uri") or self.description.get("path")


class DagsterJetTranslator:
    """Determines how stages appear in Dagster. Subclass it and change the spec it returns.

    Example:
        .. code-block:: python

            class MyTranslator(DagsterJetTranslator):
                def get_asset_spec(self, data):
                    return super().get_asset_spec(data).replace_attributes(group_name="flights")
    """

    def get_asset_spec(self, data: JetStageData) -> dg.AssetSpec:
        """Return the asset spec of one stage.

        Called once per stage when definitions are loaded, and again when a run needs the keys, so
        the result must depend on `data` alone. Dependencies on other stages of the pipeline are
        added later, from its edges and the keys returned here. `deps` of the spec are kept.

        Args:
            data: the stage.
        """
        return dg.AssetSpec(
            key=dg.AssetKey(list(data.asset) or [data.pipeline, data.stage]),
            description=_describe(data),
            group_name=data.pipeline if dagster_name(data.pipeline) == data.pipeline else None,
            kinds=_kinds(data),
            metadata=_metadata(data),
        )


def stage_data(
    pipeline: str, graph: Graph, name: str, links: Mapping[str, tuple[str, ...]] | None = None
) -> JetStageData:
    """Return the translator's input for one named stage.

    Args:
        pipeline: name of the pipeline.
        graph: graph of the pipeline.
        name: name of the stage.
        links: asset keys of other pipelines' sinks, by the place they write to.
    """
    node = graph[name]
    connector = _connector(node)
    description = _description(node, connector)
    if isinstance(node, SinkNode):
        description |= shown_guarantee(node.sink.max_guarantee)
    asset: tuple[str, ...] = ()
    if isinstance(node, SourceNode):
        asset = node.source.asset_key or (links or {}).get(place_of(description) or "", ())
    return JetStageData(
        pipeline=pipeline,
        stage=node.name,
        kind=node.kind,
        upstream=graph.named_upstreams(node.name),
        description=description,
        asset=asset,
        columns_ddl=_columns_ddl(node),
        of_dead_letters=isinstance(node, SinkNode) and node.of_dead_letters,
        tables=tuple(
            dict.fromkeys(
                key for table in graph.upstream_tables(node.name) if (key := table.asset_key)
            )
        ),
    )


def _connector(node: Node) -> Any | None:
    if isinstance(node, SourceNode):
        return node.source
    if isinstance(node, SinkNode):
        return node.sink
    return None


def _description(node: Node, connector: Any | None) -> dict[str, str]:
    if isinstance(node, StatefulNode):
        return node.describe()
    return {} if connector is None else dict(connector.describe())


def _columns_ddl(node: Node) -> str | None:
    if isinstance(node, SinkNode):
        return DEAD_LETTER_COLUMNS if node.of_dead_letters else None
    try:
        return node.source.row_schema() if isinstance(node, SourceNode) else None
    except PipelineError:  # known once a job starts, for example the columns of a database table
        return None


def _describe(data: JetStageData) -> str:
    if data.kind is StageKind.SOURCE:
        return f"Source `{data.stage}` of the streaming pipeline `{data.pipeline}`."
    if data.of_dead_letters:
        return f"Bad rows of `{', '.join(data.upstream)}`, with reason and position."
    if data.kind is StageKind.SINK:
        guarantee = data.description.get("guarantee", Guarantee.EXACTLY_ONCE.value)
        text = f"Sink `{data.stage}` of the streaming pipeline `{data.pipeline}`."
        return f"{text} {_GIVES[guarantee]}"
    text = f"Stateful stage `{data.stage}` of the streaming pipeline `{data.pipeline}`."
    facts = "\n".join(f"- {name}: {value}" for name, value in data.description.items())
    return f"{text}\n\n{facts}" if facts else text


def _kinds(data: JetStageData) -> set[str]:
    return {"spark", "jet"} | ({data.storage} if data.storage else set())


def _metadata(data: JetStageData) -> dict[str, Any]:
    metadata: dict[str, Any] = {
        keys.META_STAGE: data.stage,
        keys.META_STAGE_KIND: data.kind.value,
    }
    if data.uri:
        metadata[keys.DAGSTER_URI] = _as_uri(data.uri)
    if data.storage:
        metadata[keys.DAGSTER_STORAGE_KIND] = data.storage
    if data.columns_ddl:
        metadata[keys.DAGSTER_COLUMN_SCHEMA] = columns_from_ddl(data.columns_ddl)
    return metadata


def place_of(description: Mapping[str, str]) -> str | None:
    """Return the place that a source reads or a sink writes, normalized; None if unknown.

    A folder and a file pattern in it are the same place. For Kafka it is a topic of a cluster, for
    Iceberg a table of a catalog.
    """
    if "servers" in description:
        topic = description.get("topic") or description.get("topics")
        return f"kafka://{description['servers']}/{topic}" if topic else None
    path = description.get("uri") or description.get("path")
    if not path:
        return None
    folder, _, last = path.rstrip("/").rpartition("/")
    return _as_uri(folder if any(c in last for c in "*?[") else path.rstrip("/"))


def _as_uri(place: str) -> str:
    if urlsplit(place).scheme:
        return place
    return Path(place).absolute().as_uri()


__all__ = ["DagsterJetTranslator", "JetStageData", "place_of", "stage_data"]
