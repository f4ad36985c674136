"""Checks of options that have a few possible values, and of arguments of one kind."""

from __future__ import annotations

from collections.abc import Collection

from dagster_jet.core.function_name import class_name
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


def check_kind(option: str, value: object, kind: type, cure: str) -> None:
    """
    Raises:
        ConfigurationError: the value is not of this kind.
    """
    if not isinstance(value, kind):
        raise ConfigurationError(
            f"{option}: expected a {kind.__name__}, not a {class_name(value)}.", cure=cure
        )
