"""Decides which job events become materializations and which become observations.

A materialization signals new data: downstream assets run, freshness checks pass, and an asset is no
longer shown as failed. So a restart or a snapshot without rows is reported as an observation, which
is shown but triggers nothing.
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
    StandingBy,
)
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.committed_snapshot import job_mark
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

_ATTEMPT = "@"
"""In a data version: separates the snapshot's id from the partition's attempt."""
IDLE_SECONDS = 900.0
"""Interval of idle reports of a job that waits for input; Dagster keeps every event for ever."""


@dataclass(frozen=True)
class LastReport:
    """The newest report on an asset in Dagster's log."""

    data_version: str
    rows: tuple[int, int] | None
    """Rows in and rows out since the job began; None: not known."""


@dataclass
class AssetReports:
    """Reports on the assets of one run, given what Dagster knows of each.

    An asset's data version is the snapshot at which its rows last changed, followed by a mark if
    the job was deleted and began anew, and by the partition's attempt. If one asset has new
    rows, all are materialized: they are cut at one snapshot, and Dagster would show the others as
    out of sync. A condition on new rows of a single asset uses
    `AutomationCondition.data_version_changed()`.

    Attributes:
        assets: stages and sinks.
        last: newest report by stage, as in Dagster's log when the run begins.
        inputs: versions of the assets that the pipeline only reads.
        sources: external assets of the pipeline's own sources, by source name.
        partition: partition key of a bounded run.
        attempt: computation of the partition; "" for the first. Rows of another one are news, also
            if they are as many.
        tables: columns of the assets, available once Spark has planned them.
    """

    assets: Sequence[ReportedAsset]
    last: dict[str, LastReport] = field(default_factory=dict)
    inputs: InputVersions = field(default_factory=KnownVersions)
    sources: Mapping[str, dg.AssetKey] = field(default_factory=dict)
    partition: str | None = None
    attempt: str = ""
    tables: TableFacts = field(default_factory=TableFacts)
    has_materialized: bool = field(default=False, init=False)
    """Whether this run has reported a materialization."""
    _job_mark: str = field(default="", init=False)
    _reported_s: dict[str, float] = field(default_factory=dict, init=False)
    _facts: dict[str, Metadata] = field(default_factory=dict, init=False)
    """Facts of the newest report, by stage."""
    _of_sources: Mapping[str, SourceProgress] = field(default_factory=dict, init=False)

    def committed(
        self, event: SnapshotCommitted, now_ms: int, *, again: bool = False
    ) -> Iterator[AssetEvent]:
        """Yield one materialization per asset if the snapshot has rows that Dagster does not know.

        Args:
            event: the newest committed snapshot.
            now_ms: wall clock time in ms.
            again: report in any case, because the previous report may have been interrupted.
        """
        facts = {asset.stage: facts_of_commit(event, asset, now_ms) for asset in self.assets}
        is_news = self._take(event.snapshot_id, event.stages)
        yield from self._events(facts, event.sources, now_ms, as_news=is_news or again)

    def restored(self, event: ExecutionStarted, now_ms: int) -> Iterator[AssetEvent]:
        """Yield materializations of the restored snapshot, or observations if Dagster knows it.

        Nothing is yielded if no snapshot was restored, or the one of epoch 0, which has no output.
        """
        self._job_mark = job_mark(event.first_execution_id)
        if not event.restored_epoch_id:
            return
        assert event.restored_snapshot_id is not None
        facts = {asset.stage: facts_of_restore(event, asset, now_ms) for asset in self.assets}
        is_news = self._take(event.restored_snapshot_id, event.stages)
        yield from self._events(facts, event.sources, now_ms, as_news=is_news, or_else_observe=True)

    def missed(
        self, event: ExecutionStarted, now_ms: int, *, again: bool = False
    ) -> Iterator[AssetEvent]:
        """Yield materializations of a commit that no run reported; nothing if Dagster knows it,
        unless it is to be reported `again`."""
        assert event.restored_snapshot_id is not None
        self._job_mark = job_mark(event.first_execution_id)
        is_news = self._take(event.restored_snapshot_id, event.stages)
        mark = keys.REPLAYED if is_news else keys.UNCHANGED
        facts = {asset.stage: facts_of_restore(event, asset, now_ms, mark) for asset in self.assets}
        yield from self._events(facts, event.sources, now_ms, as_news=is_news or again)

    def last_committed(self, event: SnapshotCommitted, now_ms: int) -> Iterator[AssetEvent]:
        """Yield the final reports of a run: observations if its last snapshot has no new rows."""
        facts = {asset.stage: facts_of_commit(event, asset, now_ms) for asset in self.assets}
        is_news = self._take(event.snapshot_id, event.stages)
        yield from self._events(facts, event.sources, now_ms, as_news=is_news, or_else_observe=True)

    def idle_due(self, now_ms: int) -> list[ReportedAsset]:
        """Return the assets that are due for an idle report after a long time without reports."""
        now_s = now_ms / 1000
        for asset in self.assets:
            self._reported_s.setdefault(asset.stage, now_s)
        return [a for a in self.assets if now_s - self._reported_s[a.stage] >= _idle_seconds(a)]

    def idle(self, due: Sequence[ReportedAsset], now_ms: int) -> Iterator[AssetEvent]:
        """Yield idle reports of a job that waits for input.

        An asset with a freshness policy is materialized again at its current data version, because
        Dagster measures freshness by materializations only. Other assets are observed.
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

    def standing_by(self, event: StandingBy) -> Iterator[AssetEvent]:
        """Yield an observation per asset: a run stands by for the one that reports them."""
        facts = {keys.STANDS_BY_FOR: dg.MetadataValue.int(event.execution_id)}
        for asset in self.assets:
            yield dg.AssetObservation(asset.key, metadata=facts)

    def _take(self, snapshot_id: int, stages: Mapping[str, StageProgress]) -> bool:
        """Record the current rows of each asset; return whether any changed. Rows of an earlier
        job of this name, or of another attempt, are other rows, even if they are as many."""
        is_news = False
        mark = self._job_mark + (f"{_ATTEMPT}{self.attempt}" if self.attempt else "")
        for asset in self.assets:
            rows, last = _rows(stages.get(asset.stage)), self.last.get(asset.stage)
            is_known = last is not None and last.data_version.lstrip("0123456789") == mark
            if last is None or not is_known or rows is None or rows != last.rows:
                self.last[asset.stage] = LastReport(f"{snapshot_id}{mark}", rows)
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
                self.has_materialized = True
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
    # Two reports per freshness window, because one of them may be late.
    return min(IDLE_SECONDS, asset.freshness_seconds / 2)
