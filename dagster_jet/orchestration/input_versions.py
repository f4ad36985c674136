"""The versions of the assets that a pipeline only reads, as it has read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import dagster as dg

from dagster_jet.execution.events import SourceProgress
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.materialization import InputVersion


class InputVersions(Protocol):
    """Which version of each outside input is in what the job has committed."""

    @property
    def versions(self) -> Mapping[dg.AssetKey, InputVersion]: ...

    def refresh(self, sources: Mapping[str, SourceProgress], now_ms: int) -> None:
        """Called with the state of the sources before each report."""
        ...


@dataclass
class KnownVersions:
    """Versions that do not change."""

    versions: Mapping[dg.AssetKey, InputVersion] = field(default_factory=dict)

    def refresh(self, sources: Mapping[str, SourceProgress], now_ms: int) -> None:
        return


@dataclass
class VersionsInLog:
    """Versions as Dagster's event log has them.

    Never ahead of what was read. A table counts as it was when the run began, or, if it is read
    anew now and then, as it was one such interval ago. A source counts as it is now if nothing
    waits in it, and otherwise as it was before.

    Attributes:
        instance: Dagster's.
        tables: assets that rows are enriched with; how often each is read anew, if it is.
        sources: assets that are read as streams; by which source.
    """

    instance: dg.DagsterInstance
    tables: Mapping[dg.AssetKey, int | None] = field(default_factory=dict)
    sources: Mapping[dg.AssetKey, str] = field(default_factory=dict)
    versions: dict[dg.AssetKey, InputVersion] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Called before the job starts: what it reads is at least as new."""
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
