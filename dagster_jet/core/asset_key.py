"""Keys of Dagster assets, as users name them at sources and tables."""

from __future__ import annotations

from collections.abc import Sequence


def asset_path(asset: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns the path of "raw/flights" or ["raw", "flights"]; () if there is no asset."""
    return tuple(asset.split("/")) if isinstance(asset, str) else tuple(asset or ())
