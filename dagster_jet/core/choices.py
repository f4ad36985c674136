"""Checks of options that have a few possible values."""

from __future__ import annotations

from collections.abc import Collection

from dagster_jet.errors import ConfigurationError


def check_known(option: str, value: object, known: Collection[str]) -> None:
    """
    Raises:
        ConfigurationError: the value is none of those that are known.
    """
    if value not in known:
        raise ConfigurationError(
            f"{option}: {value!r} is unknown.", cure=f"Use one of {', '.join(known)}."
        )
