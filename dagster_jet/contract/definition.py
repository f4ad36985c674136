"""The common part of what users write: the definitions of sources, sinks and tables."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

from dagster_jet.contract.part import ClassifiesErrors

if TYPE_CHECKING:
    from dagster_jet.store import Store


class Definition(ClassifiesErrors):
    """A connector in a pipeline: a frozen, picklable value, whose repr shows no secret."""

    asset_key: tuple[str, ...] = ()
    """Key of the place in an orchestrator, as an asset; () if it has none."""

    @abstractmethod
    def describe(self) -> dict[str, str]:
        """Returns its `kind`, its place and format, without secrets: for people and lineage."""

    def with_store(self, store: Store) -> Definition:
        """Returns the definition for one execution, if it reads or writes the job's own store. It
        pickles a handle instead of the store."""
        return self

    def at_start(self, job: str, stage: str, *, on_one_host: bool) -> Definition:
        """Inspects the place before an execution or for a plan, and changes nothing there. Returns
        the definition to use, completed with facts that only the place knows.

        Args:
            on_one_host: all tasks see the files that the driver sees.

        Raises:
            ConfigurationError: it cannot work as configured.
            SourceUnavailableError, SinkUnavailableError: temporarily unavailable; an execution
                waits, and repeats the call.
        """
        return self
