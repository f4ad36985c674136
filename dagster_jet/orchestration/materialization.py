"""From a point in a job's life to what Dagster stores about its assets. Pure.

Always `AssetMaterialization`, never `MaterializeResult`: of the latter a step may have one per
asset, and a stream has one per snapshot. The price is that Dagster adds no version tags by
itself, so they are added here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import dagster as dg

from dagster_jet.execution.events import (
    ExecutionStarted,
    SnapshotCommitted,
    SourceProgress,
    StageProgress,
)
from dagster_jet.orchestration import metadata_keys as keys

_POSITION_CHARACTERS_MAX = 2_000
"""An event is stored twice and for ever; a longer position is left to the snapshot's manifest."""


@dataclass(frozen=True)
class ReportedAsset:
    """An asset that a run reports on."""

    stage: str
    key: dg.AssetKey
    code_version: str | None
    is_sink: bool
    has_state: bool
    stage_inputs: tuple[dg.AssetKey, ...] = ()
    """Upstream stages of the same pipeline: cut at the same snapshot."""
    outside_inputs: tuple[dg.AssetKey, ...] = ()
    """Upstream assets that this pipeline only reads."""


def committed(
    event: SnapshotCommitted, assets: Sequence[ReportedAsset], now_ms: int
) -> Iterator[dg.AssetMaterialization]:
    """Yield one materialization per asset for a committed snapshot."""
    common: dict[str, dg.MetadataValue] = {
        **_identity(event.snapshot_id, event.epoch_id, event.execution_id, event.restarts),
        keys.SNAPSHOT_DURATION_MS: _float(event.phase1_ms + event.phase2_ms),
        keys.SNAPSHOT_BYTES: _int(event.bytes_written),
        keys.STATE_BYTES: _int(event.state_bytes),
        keys.FAILED_SNAPSHOTS: _int(event.failed_snapshots),
        **_sources(event.sources),
    }
    for asset in assets:
        own = _stage(asset, event.stages.get(asset.stage), event.sources, now_ms)
        yield _materialization(asset, event.snapshot_id, {**common, **own})


def restored(
    event: ExecutionStarted, assets: Sequence[ReportedAsset], now_ms: int
) -> Iterator[dg.AssetMaterialization]:
    """Yield one materialization per asset for the snapshot that an execution goes on from.

    At once after recovery: until the first materialization of a run its assets look busy, and
    `eager()` assets downstream wait. Nothing is yielded where there was nothing to restore.
    """
    if event.restored_snapshot_id is None or event.restored_epoch_id is None:
        return
    common: dict[str, dg.MetadataValue] = {
        **_identity(
            event.restored_snapshot_id, event.restored_epoch_id, event.execution_id, event.restarts
        ),
        keys.RESTORED: dg.MetadataValue.bool(True),
        **_sources(event.sources),
    }
    for asset in assets:
        own = _stage(asset, event.stages.get(asset.stage), event.sources, now_ms)
        yield _materialization(asset, event.restored_snapshot_id, {**common, **own})


def _materialization(
    asset: ReportedAsset, snapshot_id: int, metadata: Mapping[str, dg.MetadataValue]
) -> dg.AssetMaterialization:
    tags = {keys.TAG_DATA_VERSION: str(snapshot_id)}
    if asset.code_version is not None:
        tags[keys.TAG_CODE_VERSION] = asset.code_version
    # Provenance per snapshot: without it Dagster shows every asset as out of sync.
    versions = {
        **dict.fromkeys(asset.stage_inputs, str(snapshot_id)),
        **dict.fromkeys(asset.outside_inputs, keys.UNVERSIONED),
    }
    for key, version in versions.items():
        tags[f"{keys.TAG_INPUT_VERSION_PREFIX}{key.to_user_string()}"] = version
        tags[f"{keys.TAG_INPUT_POINTER_PREFIX}{key.to_user_string()}"] = keys.NO_POINTER
    return dg.AssetMaterialization(asset_key=asset.key, metadata=metadata, tags=tags)


def _identity(
    snapshot_id: int, epoch_id: int, execution_id: int, restarts: int
) -> dict[str, dg.MetadataValue]:
    return {
        keys.SNAPSHOT_ID: _int(snapshot_id),
        keys.EPOCH: _int(epoch_id),
        keys.EXECUTION_ID: _int(execution_id),
        keys.RESTARTS: _int(restarts),
    }


def _stage(
    asset: ReportedAsset,
    progress: StageProgress | None,
    sources: Mapping[str, SourceProgress],
    now_ms: int,
) -> dict[str, dg.MetadataValue]:
    watermark_ms = _watermark_ms(progress, sources)
    metadata: dict[str, dg.MetadataValue] = {}
    if watermark_ms is not None:
        metadata[keys.WATERMARK] = dg.MetadataValue.timestamp(watermark_ms / 1000)
        metadata[keys.EVENT_TIME_LAG_SECONDS] = _float((now_ms - watermark_ms) / 1000)
    if progress is None:
        return metadata
    if progress.held_back_by is not None:
        metadata[keys.WATERMARK_HELD_BACK_BY] = dg.MetadataValue.text(progress.held_back_by)
    if progress.held_back_partition is not None:
        partition = dg.MetadataValue.text(progress.held_back_partition)
        metadata[keys.WATERMARK_HELD_BACK_PARTITION] = partition
    if progress.held_back_since_ms is not None:
        since_s = progress.held_back_since_ms / 1000
        metadata[keys.WATERMARK_HELD_BACK_SINCE] = dg.MetadataValue.timestamp(since_s)
    metadata[keys.ROWS_IN] = _int(progress.rows_in)
    metadata[keys.ROWS_OUT] = _int(progress.rows_out)
    metadata[keys.LATE] = _int(progress.late)
    metadata[keys.REJECTED] = _int(progress.rejected)
    if asset.has_state:
        metadata[keys.STATE_ROWS] = _int(progress.state_rows)
    if asset.is_sink:
        metadata[keys.DAGSTER_ROW_COUNT] = _int(progress.rows_out)
    return metadata


def _watermark_ms(
    progress: StageProgress | None, sources: Mapping[str, SourceProgress]
) -> int | None:
    if progress is not None and progress.watermark_ms is not None:
        return progress.watermark_ms
    known = [s.watermark_ms for s in sources.values() if s.watermark_ms is not None]
    return min(known, default=None)


def _sources(sources: Mapping[str, SourceProgress]) -> dict[str, dg.MetadataValue]:
    metadata: dict[str, dg.MetadataValue] = {
        keys.SOURCE_ROWS_READ: _int(sum(source.rows_read for source in sources.values())),
        keys.SOURCE_ITEMS_LOST: _int(sum(source.lost for source in sources.values())),
    }
    for name, source in sorted(sources.items()):
        if len(str(source.position)) <= _POSITION_CHARACTERS_MAX:
            metadata[keys.SOURCE_POSITION_PREFIX + name] = dg.MetadataValue.json(source.position)
        for unit, value in source.lag.items():
            key = f"{keys.SOURCE_LAG_PREFIX}{name}/{unit}"
            metadata[key] = _int(value) if isinstance(value, int) else _float(value)
    return metadata


def _int(value: int) -> dg.MetadataValue:
    return dg.MetadataValue.int(value)


def _float(value: float) -> dg.MetadataValue:
    return dg.MetadataValue.float(float(value))
