"""Forms of the settings of a `JetResource`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_jet.core.secret import Secret, Url, named, shown


def by_name(given: Url) -> str:
    """Encodes an `EnvVar` or a `Secret` as text; Dagster would replace the first by its value."""
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
