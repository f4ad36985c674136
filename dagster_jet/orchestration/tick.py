"""The store inside a tick, and what a tick says when it cannot be asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.errors import JetError
from dagster_jet.orchestration.resource import JetResource

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


class JetTickError(dg.DagsterError):
    """A tick has failed, and its sentence says why.

    Dagster shows its own errors as they are; around any other it puts "Error occurred during the
    execution of evaluation_fn" and a stack, and the sentence is last.
    """


@contextmanager
def jet_of_tick(
    jet: JetResource | str, context: dg.SensorEvaluationContext | dg.ScheduleEvaluationContext
) -> Iterator[Jet]:
    """Gives the store that a tick looks into.

    Args:
        jet: the resource, or the key it has in the definitions.
        context: the tick's.

    Raises:
        JetTickError: whatever `JetError` has ended the tick, such as that of a store that does not
            answer. Nothing was requested; the next tick asks again.
    """
    try:
        if isinstance(jet, JetResource):
            with jet.process_config_and_initialize_cm() as resource:
                yield resource.jet
        else:
            yield getattr(context.resources, jet).jet
    except JetError as error:
        raise JetTickError(str(error)) from None


def required_key(jet: JetResource | str) -> set[str] | None:
    """Returns what a definition that looks into the store requires of the definitions around it."""
    return {jet} if isinstance(jet, str) else None
