"""The option `guarantee=` of connectors."""

from __future__ import annotations

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import ConfigurationError


def guarantee_named(value: str | Guarantee) -> Guarantee:
    """Parses a connector's `guarantee=`.

    Raises:
        ConfigurationError: the guarantee is unknown.
    """
    try:
        return Guarantee(value)
    except ValueError:
        known = ", ".join(f'"{guarantee.value}"' for guarantee in Guarantee)
        raise ConfigurationError(
            f"guarantee: {value!r} is unknown.", cure=f"Use one of {known}."
        ) from None


def shown_guarantee(limit: Guarantee) -> dict[str, str]:
    """Returns the entry for `describe`; empty for exactly-once."""
    return {} if limit is Guarantee.EXACTLY_ONCE else {"guarantee": limit.value}
