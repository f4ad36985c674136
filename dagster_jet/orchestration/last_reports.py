"""Reads earlier reports on a pipeline's assets from Dagster's event log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg

from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_reports import LastReport
from dagster_jet.orchestration.materialization import InputVersion, ReportedAsset


def last_reports(
    instance: dg.DagsterInstance, assets: Sequence[ReportedAsset], partition: str | None = None
) -> dict[str, LastReport]:
    """Return the newest report of each asset that has one, by stage."""
    found: dict[str, LastReport] = {}
    for asset in assets:
        event = newest_materialization(instance, asset.key, partition)
        version = (event.tags or {}).get(keys.TAG_DATA_VERSION) if event is not None else None
        if event is not None and version is not None:
            found[asset.stage] = LastReport(version, _rows(event.metadata))
    return found


def last_inputs(
    instance: dg.DagsterInstance, assets: Sequence[ReportedAsset], partition: str | None = None
) -> dict[dg.AssetKey, InputVersion]:
    """Return the versions of the outside inputs in the assets' newest reports."""
    found: dict[dg.AssetKey, InputVersion] = {}
    for asset in assets:
        event = newest_materialization(instance, asset.key, partition)
        tags = (event.tags if event is not None else None) or {}
        for key in asset.outside_inputs:
            name = key.to_user_string()
            version = tags.get(f"{keys.TAG_INPUT_VERSION_PREFIX}{name}", keys.UNVERSIONED)
            pointer = tags.get(f"{keys.TAG_INPUT_POINTER_PREFIX}{name}", keys.NO_POINTER)
            found[key] = InputVersion(version, pointer)
    return found


def newest_materialization(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None = None
) -> dg.AssetMaterialization | None:
    """Return an asset's newest materialization; None if it has none."""
    wanted = dg.AssetRecordsFilter(
        asset_key=key, asset_partitions=None if partition is None else [partition]
    )
    records = instance.fetch_materializations(wanted, limit=1).records
    return records[0].asset_materialization if records else None


def number(metadata: Mapping[str, dg.MetadataValue], key: str) -> int | None:
    """Return a number from a report's metadata: an entry of its own, or one of the details."""
    value = metadata[key].value if key in metadata else None
    if value is None and keys.DETAILS in metadata:
        details = metadata[keys.DETAILS].value
        value = details.get(key) if isinstance(details, Mapping) else None
    return value if isinstance(value, int) else None


def _rows(metadata: Mapping[str, dg.MetadataValue]) -> tuple[int, int] | None:
    rows_in = number(metadata, keys.ROWS_IN)
    rows_out = number(metadata, keys.ROWS_OUT)
    if rows_out is None:
        rows_out = number(metadata, keys.DAGSTER_ROW_COUNT)
    return None if rows_in is None or rows_out is None else (rows_in, rows_out)
