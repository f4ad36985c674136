"""Settings of a map, fixed at its creation and kept in the store."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from dagster_jet.core.choices import check_known
from dagster_jet.core.durations import to_ms
from dagster_jet.errors import ConfigurationError
from dagster_jet.maps.value_formats import FORMATS


@dataclass(frozen=True)
class JournalConfig:
    """Configures a map's journal, a bounded log of its changes.

    Attributes:
        capacity: events per partition (a store has 271 by default); the oldest are overwritten.
        time_to_live: age up to which readers see an event, for example "1 hour"; None: unlimited.
    """

    capacity: int = 10_000
    time_to_live: str | timedelta | None = None

    def __post_init__(self) -> None:
        if isinstance(self.capacity, bool) or not isinstance(self.capacity, int):
            raise ConfigurationError(f"capacity: expected a number, not {self.capacity!r}.")
        if not 1 <= self.capacity <= 10**9:
            raise ConfigurationError(f"capacity: {self.capacity} is not from 1 to 1,000,000,000.")
        if self.time_to_live_ms == 0:
            raise ConfigurationError("time_to_live: 0 would keep no event.", cure="Leave it out.")

    @property
    def time_to_live_ms(self) -> int | None:
        """``time_to_live`` in milliseconds."""
        return None if self.time_to_live is None else to_ms(self.time_to_live, "time_to_live")


@dataclass(frozen=True)
class MapSettings:
    """A map's format and journal. Fixed when the map is created.

    Attributes:
        format: format of the values: "json", "arrow", "bytes" or "pickle".
        journal_capacity: events per partition; None: no journal.
        journal_ttl_ms: age up to which readers see events; None: unlimited.
    """

    format: str = "json"
    journal_capacity: int | None = None
    journal_ttl_ms: int | None = None

    def __post_init__(self) -> None:
        check_known("format", self.format, FORMATS)

    @staticmethod
    def of(format: str | None, journal: JournalConfig | None) -> MapSettings:
        """Return the requested settings, with defaults."""
        return MapSettings(
            format or "json",
            journal.capacity if journal else None,
            journal.time_to_live_ms if journal else None,
        )

    def check(self, name: str, format: str | None, journal: JournalConfig | None) -> None:
        """Refuse to open the map with other settings than it has.

        Raises:
            ConfigurationError: names the setting, the stored value and the requested value.
        """
        asked = MapSettings.of(format, journal)
        if format is not None and asked.format != self.format:
            raise self._differs(name, "format", self.format, asked.format)
        if journal is not None:
            has = (self.journal_capacity, self.journal_ttl_ms)
            wants = (asked.journal_capacity, asked.journal_ttl_ms)
            if has != wants:
                raise self._differs(name, "journal (capacity, ms to live)", has, wants)

    @staticmethod
    def _differs(name: str, what: str, has: Any, wants: Any) -> ConfigurationError:
        return ConfigurationError(
            f"{what}: the map {name!r} was created with {has!r}, but {wants!r} was given.",
            cure="Leave the option out, which opens the map as it is, or use another name.",
        )
