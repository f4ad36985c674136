"""Forms of the settings of a `JetResource`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dagster_jet.core.secret import Secret, Url, named, shown


def with_names(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Encodes each `EnvVar` or `Secret` as text, in the fields that may have secrets; Dagster would
    replace the first by its value."""
    found = dict(fields)
    if isinstance(found.get("store"), Sequence):
        found["store"] = [_by_name(url) for url in found["store"]]
    if found.get("encryption_keys") is not None:
        found["encryption_keys"] = _by_name(found["encryption_keys"])
    options = found.get("epochs_storage_options")
    if isinstance(options, Mapping):
        found["epochs_storage_options"] = {n: _by_name(value) for n, value in options.items()}
    return found


def _by_name(given: Url) -> str:
    found = named(given)
    return shown(found) if isinstance(found, Secret) else found


def dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flattens nested tables to dotted names."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat.update(dotted(value, f"{prefix}{name}."))
        else:
            flat[f"{prefix}{name}"] = value
    return flat
