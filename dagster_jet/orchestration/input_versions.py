"""Versions of the assets that a pipeline reads but does not produce."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import dagster as dg

from dagster_jet.execution.events import SourceProgress
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.materialization import InputVersion


class InputVersions(Protocol):
    """Version of each outside input that the committed output contains."""

    @property
    def versions(self) -> Mapping[dg.AssetKey, InputVersion]: ...

    def refresh(self, sources: Mapping[str, SourceProgress], now_ms: int) -> None:
        """Called with the progress of the sources before each report."""
        ...


@dataclass
class KnownVersions:
    """Versions that do not change."""

    versions: Mapping[dg.AssetKey, InputVersion] = field(default_factory=dict)

    def refresh(self, sources: Mapping[str, SourceProgress], now_ms: int) -> None:
        return


@dataclass
class VersionsInLog:
    """Input versions taken from Dagster's event log.

    A version is never newer than what was read. A table has the version at the start of the run,
    or, with a refresh interval, the version of one interval ago. A source has the current version
    if it has no backlog, and otherwise keeps its previous one.

    Attributes:
        instance: the Dagster instance.
        tables: assets that rows are enriched with, and their refresh interval in ms, if any.
        sources: assets that are read as streams, and the name of the reading source.
    """

    instance: dg.DagsterInstance
    tables: Mapping[dg.AssetKey, int | None] = field(default_factory=dict)
    sources: Mapping[dg.AssetKey, str] = field(default_factory=dict)
    versions: dict[dg.AssetKey, InputVersion] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Called before the job starts, so the data it reads is at least as new."""
        for key in self.tables:
            self._look(key)

    def refresh(self, sources: Mapping[str, SourceProgress], now_ms: int) -> None:
        for key, interval_ms in self.tables.items():
            if interval_ms is not None:
                self._look(key, not_after_ms=now_ms - interval_ms)
        for key, name in self.sources.items():
            source = sources.get(name)
            if source is not None and not any(source.lag.values()):
                self._look(key)

    def _look(self, key: dg.AssetKey, not_after_ms: int | None = None) -> None:
        record = self.instance.get_latest_data_version_record(key)
        if record is None:
            return
        if not_after_ms is not None and record.timestamp * 1000 > not_after_ms:
            return
        tags = record.event_log_entry.tags or {}
        version = tags.get(keys.TAG_DATA_VERSION, keys.UNVERSIONED)
        self.versions[key] = InputVersion(version, str(record.storage_id))
