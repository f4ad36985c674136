"""What a run reports to Dagster of its assets: rows that are new, and signs of life that are not.

A materialization says "there is something new": downstream assets run, freshness passes, and an
asset that has one is not shown as failed. So a restart, or a snapshot without rows, must not be
one. It is an observation: shown, and nothing follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import dagster as dg

from dagster_jet.execution.events import (
    ExecutionStarted,
    SnapshotCommitted,
    SourceProgress,
    StageProgress,
)
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.input_versions import InputVersions, KnownVersions
from dagster_jet.orchestration.materialization import (
    InputVersion,
    Metadata,
    ReportedAsset,
    facts_of_commit,
    facts_of_restore,
    facts_of_source,
    materialization,
)
from dagster_jet.orchestration.table_facts import TableFacts

AssetEvent: TypeAlias = dg.AssetMaterialization | dg.AssetObservation

IDLE_SECONDS = 900.0
"""How often a job that waits for input says that it lives: an event is stored for ever."""


@dataclass(frozen=True)
class LastReport:
    """What Dagster knows of an asset."""

    data_version: str
    rows: tuple[int, int] | None
    """In and out, since the job began; None: not known."""


@dataclass
class AssetReports:
    """The assets of one run, and what Dagster knows of each.

    An asset's data version is the snapshot with which its rows last changed. One asset with new
    rows is enough for all to be materialized: they are cut at one snapshot, and Dagster would show
    those that were left out as out of sync. A condition that asks for new rows of one asset asks
    for `AutomationCondition.data_version_changed()`.

    Attributes:
        assets: stages and sinks.
        last: by stage, as Dagster's log has it when the run begins.
        inputs: the versions of what the pipeline only reads.
        sources: by name, the external assets that stand for the pipeline's own sources.
        partition: of a bounded run.
        tables: the columns of the assets, once Spark has planned them.
    """

    assets: Sequence[ReportedAsset]
    last: dict[str, LastReport] = field(default_factory=dict)
    inputs: InputVersions = field(default_factory=KnownVersions)
    sources: Mapping[str, dg.AssetKey] = field(default_factory=dict)
    partition: str | None = None
    tables: TableFacts = field(default_factory=TableFacts)
    _reported_s: dict[str, float] = field(default_factory=dict, init=False)
    _facts: dict[str, Metadata] = field(default_factory=dict, init=False)
    """By stage: what was reported last."""
    _of_sources: Mapping[str, SourceProgress] = field(default_factory=dict, init=False)

    def committed(
        self, event: SnapshotCommitted, now_ms: int, *, again: bool = False
    ) -> Iterator[AssetEvent]:
        """Yield one materialization per asset, if the snapshot has rows that Dagster does not know.

        Args:
            event: the newest committed snapshot.
            now_ms: the wall clock.
            again: even if it does know: the report may have been cut short.
        """
        facts = {asset.stage: facts_of_commit(event, asset, now_ms) for asset in self.assets}
        is_news = self._take(event.snapshot_id, event.stages)
        yield from self._events(facts, event.sources, now_ms, as_news=is_news or again)

    def restored(self, event: ExecutionStarted, now_ms: int) -> Iterator[AssetEvent]:
        """Yield what an execution goes on from: news only if Dagster missed that commit.

        Nothing is yielded where there was nothing to restore.
        """
        if event.restored_snapshot_id is None or event.restored_epoch_id is None:
            return
        facts = {asset.stage: facts_of_restore(event, asset, now_ms) for asset in self.assets}
        is_news = self._take(event.restored_snapshot_id, event.stages)
        yield from self._events(facts, event.sources, now_ms, as_news=is_news, or_else_observe=True)

    def missed(self, event: ExecutionStarted, now_ms: int) -> Iterator[AssetEvent]:
        """Yield what was committed and never reported, as no run lives that would; else nothing."""
        assert event.restored_snapshot_id is not None
        facts = {
            asset.stage: facts_of_restore(event, asset, now_ms, keys.REPLAYED)
            for asset in self.assets
        }
        is_news = self._take(event.restored_snapshot_id, event.stages)
        yield from self._events(facts, event.sources, now_ms, as_news=is_news)

    def last_committed(self, event: SnapshotCommitted, now_ms: int) -> Iterator[AssetEvent]:
        """Yield the end of a run: an observation where its last snapshot has no new rows."""
        facts = {asset.stage: facts_of_commit(event, asset, now_ms) for asset in self.assets}
        is_news = self._take(event.snapshot_id, event.stages)
        yield from self._events(facts, event.sources, now_ms, as_news=is_news, or_else_observe=True)

    def idle_due(self, now_ms: int) -> list[ReportedAsset]:
        """Return the assets that are due for a sign of life: nothing was reported for long."""
        now_s = now_ms / 1000
        for asset in self.assets:
            self._reported_s.setdefault(asset.stage, now_s)
        return [a for a in self.assets if now_s - self._reported_s[a.stage] >= _idle_seconds(a)]

    def idle(self, due: Sequence[ReportedAsset], now_ms: int) -> Iterator[AssetEvent]:
        """Yield signs of life of a job that waits for input.

        An asset with a freshness policy is materialized at the data version that it has: Dagster
        measures freshness by nothing else. Others are observed.
        """
        for asset in due:
            self._reported_s[asset.stage] = now_ms / 1000
            last = self.last.get(asset.stage)
            facts = {
                **self._facts.get(asset.stage, {}),
                keys.WAITING_FOR_INPUT: dg.MetadataValue.bool(True),
            }
            if asset.freshness_seconds is not None and last is not None:
                yield self._materialization(asset, facts)
            else:
                yield dg.AssetObservation(asset.key, metadata=facts, partition=self.partition)
        yield from self._observed_sources()

    def _take(self, snapshot_id: int, stages: Mapping[str, StageProgress]) -> bool:
        """Note what each asset is at now; return whether any has changed."""
        is_news = False
        for asset in self.assets:
            rows, last = _rows(stages.get(asset.stage)), self.last.get(asset.stage)
            if last is None or rows is None or rows != last.rows:
                self.last[asset.stage] = LastReport(str(snapshot_id), rows)
                is_news = True
        return is_news

    def _events(
        self,
        facts: dict[str, Metadata],
        sources: Mapping[str, SourceProgress],
        now_ms: int,
        *,
        as_news: bool,
        or_else_observe: bool = False,
    ) -> Iterator[AssetEvent]:
        self._of_sources = sources
        if not as_news and not or_else_observe:
            return
        self.inputs.refresh(sources, now_ms)
        self._facts = facts
        for asset in self.assets:
            self._reported_s[asset.stage] = now_ms / 1000
            if as_news:
                yield self._materialization(asset, facts[asset.stage])
            else:
                yield dg.AssetObservation(
                    asset.key, metadata=facts[asset.stage], partition=self.partition
                )
        yield from self._observed_sources()

    def _materialization(self, asset: ReportedAsset, facts: Metadata) -> dg.AssetMaterialization:
        version_of = {a.key: self.last[a.stage] for a in self.assets if a.stage in self.last}
        inputs = {key: InputVersion(last.data_version) for key, last in version_of.items()}
        inputs.update(self.inputs.versions)
        version = self.last[asset.stage].data_version
        facts = {**facts, **self.tables.of(asset.stage)}
        return materialization(asset, version, inputs, facts, self.partition)

    def _observed_sources(self) -> Iterator[dg.AssetObservation]:
        for name, source in sorted(self._of_sources.items()):
            if name in self.sources:
                yield dg.AssetObservation(self.sources[name], metadata=facts_of_source(source))


def _rows(progress: StageProgress | None) -> tuple[int, int] | None:
    return None if progress is None else (progress.rows_in, progress.rows_out)


def _idle_seconds(asset: ReportedAsset) -> float:
    if asset.freshness_seconds is None:
        return IDLE_SECONDS
    # Twice within the window: one of them may come late.
    return min(IDLE_SECONDS, asset.freshness_seconds / 2)
