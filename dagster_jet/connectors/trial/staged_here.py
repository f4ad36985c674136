"""Shared part of the trial sinks: rows are staged in the job's store and shown by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dagster_jet.connectors.staging import StagedInStore


class StagedHere(StagedInStore):
    """A sink that is reopened by its description."""

    def destination(self) -> dict[str, Any]:
        return {name: value for name, value in self.describe().items() if name != "guarantee"}

    @classmethod
    def reopen(cls, destination: Mapping[str, Any]) -> Any:
        return cls(**{name: value for name, value in destination.items() if name != "kind"})
