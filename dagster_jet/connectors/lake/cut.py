"""A cut: the versions of a job's tables that have the rows up to one and the same snapshot."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from dagster_jet.connectors.lake.staged_names import marker_of
from dagster_jet.snapshot.manifest import Manifest
from dagster_jet.snapshot.owed import Destination


@dataclass(frozen=True)
class TableAt:
    """The table of a sink, as readers name it. Without a version and a snapshot: the sink has
    committed nothing yet."""

    sink: str
    format: str
    """"delta" or "iceberg"."""
    catalog: str | None
    table: str
    """URL of a Delta Lake table, or name in the catalog."""
    location: str | None
    """The table's folder; of Iceberg the file with its metadata as of the snapshot."""
    version: int | None
    snapshot_id: int | None

    @classmethod
    def of(cls, sink: str, destination: Destination, facts: Mapping[str, Any]) -> TableAt:
        """
        Args:
            facts: `Committer.output_facts` of the sink; empty before its first commit.
        """
        format, snapshot_id = destination["kind"], facts.get("snapshot_id")
        if format == "delta":
            url, version = destination["path"], facts.get("table_version")
            return cls(sink, format, None, url, url, version, None)
        return cls(
            sink,
            format,
            destination["catalog"],
            destination["table"],
            facts.get("metadata_location"),
            None,
            None if snapshot_id is None else int(snapshot_id),
        )


@dataclass(frozen=True)
class Cut:
    """Versions of all lake tables of a job, as of one snapshot."""

    timeline: int
    epoch_id: int
    snapshot_id: int
    committed_ms: int
    """Wall-clock time at which the snapshot was found to be committed in all sinks."""
    tables: tuple[TableAt, ...]

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        sinks: Mapping[str, Destination],
        facts: Mapping[str, Mapping[str, Any]],
        now_ms: int,
    ) -> Cut:
        """
        Args:
            manifest: of a snapshot that is committed in all sinks.
            sinks: destinations of the lake sinks.
            facts: facts about the last commit of each sink, which no later snapshot has changed.
        """
        newest: dict[Hashable, Mapping[str, Any]] = {}
        for sink, where in sinks.items():
            mine = facts.get(sink, {})
            if _order(mine) >= _order(newest.get(_table(where), {})):
                newest[_table(where)] = mine  # of several sinks of one table the last commit
        tables = (TableAt.of(sink, where, newest[_table(where)]) for sink, where in sinks.items())
        at = (manifest.timeline, manifest.epoch_id, manifest.snapshot_id)
        return cls(*at, now_ms, tuple(tables))

    @property
    def marker(self) -> int:
        """Later cuts have higher markers."""
        return marker_of(self.timeline, self.epoch_id)


def _table(destination: Destination) -> Hashable:
    names = ("kind", "path", "catalog", "table", "branch")
    return tuple(destination.get(name) for name in names)


def _order(facts: Mapping[str, Any]) -> int:
    return int(facts.get("table_version", facts.get("sequence_number", -1)))
