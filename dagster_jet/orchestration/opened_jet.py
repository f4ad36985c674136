"""Opens the library for a tick, a check or an op, by a resource or by its key."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dagster_jet.orchestration.resource import JetResource

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


@contextmanager
def opened_jet(resources: Any, jet: JetResource | str) -> Iterator[Jet]:
    """Opens the library; closes what it has opened itself.

    Args:
        resources: the resources of the context.
        jet: the resource, or its key in the definitions.
    """
    if isinstance(jet, JetResource):
        with jet.process_config_and_initialize_cm() as resource:
            yield resource.jet
    else:
        yield getattr(resources, jet).jet
