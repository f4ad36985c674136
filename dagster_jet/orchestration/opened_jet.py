"""Opens the library for a tick, a check or an op, by a resource or by its key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dagster_jet.errors import ConfigurationError
from dagster_jet.orchestration.resource import JetResource

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


@contextmanager
def opened_jet(resources: Any, jet: JetResource | str) -> Iterator[Jet]:
    """Opens the library; closes what it has opened itself.

    Args:
        resources: the resources of the context.
        jet: the resource, or its key in the definitions.

    Raises:
        ConfigurationError: the definitions have no resource of this key. Dagster itself checks the
            keys of sensors and schedules nowhere.
    """
    if isinstance(jet, JetResource):
        with jet.process_config_and_initialize_cm() as resource:
            yield resource.jet
        return
    found = getattr(resources, jet, None)
    if found is None:
        raise ConfigurationError(
            f"jet: the definitions have no resource {jet!r}.",
            cure=f"Correct the key, or define it: resources={{{jet!r}: JetResource(...)}}.",
        )
    yield found.jet
