"""Base class of queues as sources: the settings that all of them have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dagster_jet.connectors.values import JsonObjects, RawValues
from dagster_jet.connectors.values.declared_types import check_json_columns
from dagster_jet.contract import Source
from dagster_jet.core.choices import check_known
from dagster_jet.core.guarantee import Guarantee
from dagster_jet.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class QueueSource(Source):
    """One queue, read by its only consumer; creates nothing."""

    can_peek = False  # the server counts each delivery, and gives a message up after some of them
    metadata_ddl: ClassVar[str]
    """Columns that `metadata` adds."""
    prefetch_max: ClassVar[int]

    format: str
    value_schema: str | None
    """DDL of JSON values; None for raw values."""
    metadata: bool
    prefetch: int
    """Number of messages in the driver that are not acknowledged."""
    max_guarantee: Guarantee
    asset_key: tuple[str, ...]
    """Asset that the source reads, if the orchestrator knows it; else ()."""

    def __post_init__(self) -> None:
        check_known("format", self.format, ("json", "raw"))
        if (self.value_schema is None) == (self.format == "json"):
            has = "need one" if self.value_schema is None else "have none"
            raise ConfigurationError(f"schema: {self.format} values {has}.")
        check_json_columns(self.value_schema or "")
        check_count(
            "prefetch",
            self.prefetch,
            self.prefetch_max,
            cure="Use about the number of messages that arrive between two snapshots.",
        )

    @property
    def values(self) -> JsonObjects | RawValues:
        return RawValues() if self.value_schema is None else JsonObjects(self.value_schema)

    def row_schema(self) -> str:
        columns = self.values.schema
        return f"{columns}, {self.metadata_ddl}" if self.metadata else columns


def check_count(name: str, count: int, most: int, *, cure: str) -> None:
    """Raises `ConfigurationError` if a setting is not from 1 to `most`."""
    if not 0 < count <= most:
        raise ConfigurationError(f"{name}: {count} is not from 1 to {most}.", cure=cure)
