"""Minimal interfaces of connectors that a pipeline requires."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import getattr_static
from typing import Any, Protocol

from dagster_jet.errors import PipelineError


class ConnectorDefinition(Protocol):
    def describe(self) -> dict[str, str]:
        """Returns kind, place and format for users, lineage and the fingerprint; no secrets."""
        ...


class SourceDefinition(ConnectorDefinition, Protocol):
    """Argument of `read_from`: made by `dagster_jet.sources`, or a `dagster_jet.Source`, which
    documents the full contract."""

    @property
    def schema(self) -> str | None: ...

    def open(self, *arguments: Any, **named: Any) -> Any: ...


class TableDefinition(ConnectorDefinition, Protocol):
    """Argument of `enrich`: a `dagster_jet.Table`."""

    def frame(self, *arguments: Any, **named: Any) -> Any: ...


class SinkDefinition(ConnectorDefinition, Protocol):
    """Argument of `write_to`: made by `dagster_jet.sinks`, or a `dagster_jet.Sink`."""

    @property
    def max_guarantee(self) -> Any: ...

    def open_writer(self, *arguments: Any, **named: Any) -> Any: ...

    def open_committer(self, *arguments: Any, **named: Any) -> Any: ...


OF_A_SOURCE = ("describe", "schema", "open")
OF_A_TABLE = ("describe", "frame")
OF_A_SINK = (
    "describe", "max_guarantee", "check", "takes", "render", "open_writer", "open_committer",
)  # fmt: skip
_ABSENT = object()


def check_definition(definition: object, owed: Iterable[str], *, job: str, stage: str) -> None:
    """Checks that a connector has all required attributes of its kind.

    Raises:
        PipelineError: names the missing attributes.
    """
    # Static lookup: a property may call the outside system, which may not be reachable yet.
    missing = [name for name in owed if getattr_static(definition, name, _ABSENT) is _ABSENT]
    if missing:
        raise PipelineError(
            f"a {type(definition).__name__} has no {', '.join(missing)}.",
            job=job,
            stage=stage,
            cure="Pass a result of dagster_jet.sources, sinks or Table. Your own connector "
            "implements dagster_jet.Source, Sink or Table.",
        )
