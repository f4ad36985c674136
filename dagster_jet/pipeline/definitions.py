"""What a pipeline knows about sources, tables and sinks; the rest is their connectors' business."""

from __future__ import annotations

from collections.abc import Iterable
from inspect import getattr_static
from typing import Any, Protocol

from dagster_jet.errors import PipelineError


class ConnectorDefinition(Protocol):
    def describe(self) -> dict[str, str]:
        """Returns kind, place and format: for people, lineage and the plan's fingerprint. No
        secrets."""
        ...


class SourceDefinition(ConnectorDefinition, Protocol):
    """What `read_from` takes: made by `dagster_jet.sources`, or a `dagster_jet.Source` of your own,
    which says in full what a source owes."""

    @property
    def schema(self) -> str | None: ...

    def open(self, *arguments: Any, **named: Any) -> Any: ...


class TableDefinition(ConnectorDefinition, Protocol):
    """What `enrich` takes: a `dagster_jet.Table`."""

    def frame(self, *arguments: Any, **named: Any) -> Any: ...


class SinkDefinition(ConnectorDefinition, Protocol):
    """What `write_to` takes: made by `dagster_jet.sinks`, or a `dagster_jet.Sink` of your own."""

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
    """Checks that a connector has all that its kind owes.

    Raises:
        PipelineError: names what is missing.
    """
    # Static: a property may ask the outside system, which may not be there yet.
    missing = [name for name in owed if getattr_static(definition, name, _ABSENT) is _ABSENT]
    if missing:
        raise PipelineError(
            f"a {type(definition).__name__} has no {', '.join(missing)}.",
            job=job,
            stage=stage,
            cure="Pass what dagster_jet.sources, sinks or Table make; a connector of your own "
            "implements dagster_jet.Source, Sink or Table.",
        )
