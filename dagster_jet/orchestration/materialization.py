"""Converts events of a job into the asset events that Dagster stores. Pure.

The result is always an `AssetMaterialization`. A step may yield one `MaterializeResult` per asset
only, but a stream yields one event per snapshot. Dagster adds no version tags to an
`AssetMaterialization`, so they are added here.

Dagster stores each event twice, for ever, and shows its metadata as a table. About eight numbers
that are plotted are entries of their own; the rest is one entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from dagster_jet.core.measures import Measures, distributions_of, gauges_of
from dagster_jet.execution.events import (
    ExecutionStarted,
    SnapshotCommitted,
    SourceProgress,
    StageProgress,
)
from dagster_jet.orchestration import metadata_keys as keys

_POSITION_CHARACTERS_MAX = 2_000
"""Longer positions are omitted; they are in the snapshot's manifest."""
_MINUTE_MS = 60_000
_TO_COPY = (keys.TIME_TRAVEL, keys.TABLE_HISTORY)
"""Facts of a lake table's commit that people copy, so they are entries of their own."""

Metadata = Mapping[str, dg.MetadataValue]


@dataclass(frozen=True)
class ReportedAsset:
    """An asset that a run reports on."""

    stage: str
    key: dg.AssetKey
    code_version: str | None
    is_sink: bool
    has_state: bool
    stage_inputs: tuple[dg.AssetKey, ...] = ()
    """Upstream stages of the same pipeline, cut at the same snapshot."""
    outside_inputs: tuple[dg.AssetKey, ...] = ()
    """Upstream assets outside of the pipeline."""
    freshness_seconds: float | None = None
    """Maximum age of the newest materialization, if the asset has a freshness policy."""
    uri: str | None = None
    """Place that this run writes; a definition that was loaded later may name another one."""
    normal_lag_ms: int = 0
    """Lag of its watermark if all input is read: the lag that the pipeline allows."""


@dataclass(frozen=True)
class InputVersion:
    """Version of an input of an asset, as named in Dagster's event log."""

    version: str = keys.UNVERSIONED
    pointer: str = keys.NO_POINTER


def facts_of_commit(event: SnapshotCommitted, asset: ReportedAsset, now_ms: int) -> Metadata:
    """Return the metadata of one asset for a committed snapshot."""
    output = dict(event.outputs.get(asset.stage, {}))
    to_copy = {name: _text(output.pop(name)) for name in _TO_COPY if name in output}
    tables = {name: {**one["table"], **one["version"]} for name, one in event.tables.items()}
    return {
        **_stage(asset, event.stages.get(asset.stage), event.sources, now_ms),
        keys.SNAPSHOT_ID: _int(event.snapshot_id),
        keys.SNAPSHOT_MS: _float(event.phase1_ms + event.phase2_ms),
        **_if_any({keys.RESTARTS: event.restarts}),
        **to_copy,
        keys.DETAILS: _details(
            asset,
            event.stages.get(asset.stage),
            event.sources,
            {
                keys.EPOCH: event.epoch_id,
                keys.EXECUTION_ID: event.execution_id,
                keys.SNAPSHOT_BYTES: event.bytes_written,
                keys.STATE_BYTES: event.state_bytes,
                keys.FAILED_SNAPSHOTS: event.failed_snapshots,
                **({keys.OUTPUT: output} if output else {}),
                **({keys.TABLES: tables} if tables else {}),
            },
        ),
    }


def facts_of_restore(
    event: ExecutionStarted, asset: ReportedAsset, now_ms: int, mark: str = keys.RESTORED
) -> Metadata:
    """Return the metadata of one asset for the snapshot that an execution is restored from.

    Args:
        event: start of the execution.
        asset: the asset.
        now_ms: wall clock time in ms.
        mark: metadata key that states the reason for the report.
    """
    assert event.restored_snapshot_id is not None
    return {
        **_stage(asset, event.stages.get(asset.stage), event.sources, now_ms),
        keys.SNAPSHOT_ID: _int(event.restored_snapshot_id),
        mark: dg.MetadataValue.bool(True),
        **_if_any({keys.RESTARTS: event.restarts}),
        keys.DETAILS: _details(
            asset,
            event.stages.get(asset.stage),
            event.sources,
            {keys.EPOCH: event.restored_epoch_id, keys.EXECUTION_ID: event.execution_id},
        ),
    }


def facts_of_source(source: SourceProgress) -> Metadata:
    """Return the metadata of a source's observation: progress and backlog."""
    facts: dict[str, dg.MetadataValue] = {keys.ROWS_READ: _int(source.rows_read)}
    for unit, value in source.lag.items():
        number = _int(value) if isinstance(value, int) else _float(value)
        facts[keys.WAITING_PREFIX + unit] = number
    facts.update(_if_any({keys.LOST: source.lost}))
    if source.watermark_ms is not None:
        facts[keys.WATERMARK] = dg.MetadataValue.timestamp(source.watermark_ms / 1000)
    position = _short(source.position)
    if position is not None:
        facts[keys.POSITION] = dg.MetadataValue.json(position)
    if source.unavailable is not None:
        facts["unavailable"] = dg.MetadataValue.text(source.unavailable)
    return facts


def materialization(
    asset: ReportedAsset,
    version: str,
    inputs: Mapping[dg.AssetKey, InputVersion],
    facts: Metadata,
    partition: str | None = None,
) -> dg.AssetMaterialization:
    """Return a materialization of the asset with this version and these input versions.

    Without the versions of its inputs Dagster shows an asset as out of sync.
    """
    tags = {keys.TAG_DATA_VERSION: version}
    if asset.code_version is not None:
        tags[keys.TAG_CODE_VERSION] = asset.code_version
    for key in (*asset.stage_inputs, *asset.outside_inputs):
        known = inputs.get(key, InputVersion())
        tags[f"{keys.TAG_INPUT_VERSION_PREFIX}{key.to_user_string()}"] = known.version
        tags[f"{keys.TAG_INPUT_POINTER_PREFIX}{key.to_user_string()}"] = known.pointer
    if asset.uri is not None:
        facts = {**facts, keys.DAGSTER_URI: dg.MetadataValue.text(asset.uri)}
    return dg.AssetMaterialization(
        asset_key=asset.key, metadata=facts, tags=tags, partition=partition
    )


def _stage(
    asset: ReportedAsset,
    progress: StageProgress | None,
    sources: Mapping[str, SourceProgress],
    now_ms: int,
) -> dict[str, dg.MetadataValue]:
    facts: dict[str, dg.MetadataValue] = {}
    if progress is not None:
        if asset.is_sink:
            facts[keys.DAGSTER_ROW_COUNT] = _int(progress.rows_out)
        else:
            facts[keys.ROWS_IN] = _int(progress.rows_in)
            facts[keys.ROWS_OUT] = _int(progress.rows_out)
        if asset.has_state:
            facts[keys.STATE_ROWS] = _int(progress.state_rows)
        facts.update(_if_any({keys.LATE: progress.late, keys.REJECTED: progress.rejected}))
        counted = sorted(progress.counted.items())
        facts.update({f"{keys.COUNTED_PREFIX}{name}": _int(number) for name, number in counted})
        facts.update(_measured(progress.measured))
    facts[keys.ROWS_READ] = _int(sum(source.rows_read for source in sources.values()))
    facts.update(_if_any({keys.LOST: sum(source.lost for source in sources.values())}))
    watermark_ms = _watermark_ms(progress, sources)
    if watermark_ms is not None:
        facts[keys.WATERMARK] = dg.MetadataValue.timestamp(watermark_ms / 1000)
        facts.update(lag_facts(now_ms - watermark_ms, asset.normal_lag_ms))
    return facts


def _measured(measured: Measures) -> dict[str, dg.MetadataValue]:
    """Gauges, and number and mean of histograms."""
    facts = {f"{keys.GAUGE_PREFIX}{n}": _float(v) for n, v in sorted(gauges_of(measured).items())}
    for name, recorded in sorted(distributions_of(measured).items()):
        facts[f"{keys.HISTOGRAM_PREFIX}{name}_count"] = _int(recorded.count)
        facts[f"{keys.HISTOGRAM_PREFIX}{name}_mean"] = _float(recorded.mean)
    return facts


def lag_facts(lag_ms: int, normal_ms: int) -> dict[str, dg.MetadataValue]:
    """Returns the lag of a watermark, in minutes if a minute or more is normal."""
    if normal_ms >= _MINUTE_MS:
        return {keys.LAG_MINUTES: _float(lag_ms / _MINUTE_MS)}
    return {keys.LAG_SECONDS: _float(lag_ms / 1000)}


def _details(
    asset: ReportedAsset,
    progress: StageProgress | None,
    sources: Mapping[str, SourceProgress],
    more: Mapping[str, Any],
) -> dg.MetadataValue:
    said: dict[str, Any] = dict(more)
    if progress is not None and asset.is_sink:
        said[keys.ROWS_IN] = progress.rows_in
    if progress is not None and progress.held_back_by is not None:
        said[keys.HELD_BACK] = {
            "by": progress.held_back_by,
            "partition": progress.held_back_partition,
            "since_ms": progress.held_back_since_ms,
        }
    said[keys.SOURCES] = {
        name: {
            keys.ROWS_READ: source.rows_read,
            "waiting": source.lag,
            keys.POSITION: _short(source.position),
        }
        for name, source in sorted(sources.items())
    }
    return dg.MetadataValue.json(said)


def _short(position: dict[str, Any]) -> dict[str, Any] | None:
    return position if len(str(position)) <= _POSITION_CHARACTERS_MAX else None


def _watermark_ms(
    progress: StageProgress | None, sources: Mapping[str, SourceProgress]
) -> int | None:
    if progress is not None and progress.watermark_ms is not None:
        return progress.watermark_ms
    known = [s.watermark_ms for s in sources.values() if s.watermark_ms is not None]
    return min(known, default=None)


def _if_any(numbers: Mapping[str, int]) -> dict[str, dg.MetadataValue]:
    """Omits zeros, because these numbers are almost always zero."""
    return {name: _int(number) for name, number in numbers.items() if number}


def _text(value: Any) -> dg.MetadataValue:
    return dg.MetadataValue.text(str(value))


def _int(value: int) -> dg.MetadataValue:
    return dg.MetadataValue.int(value)


def _float(value: float) -> dg.MetadataValue:
    return dg.MetadataValue.float(round(float(value), 3))
