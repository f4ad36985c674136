"""Access to the store within a tick, and the error of a tick that cannot read it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import dagster as dg

from dagster_jet.errors import ConfigurationError, JetError
from dagster_jet.orchestration.opened_jet import opened_jet
from dagster_jet.orchestration.resource import JetResource

if TYPE_CHECKING:
    from dagster_jet.jet import Jet


class JetTickError(dg.DagsterError):
    """Ends a tick with an error whose message is shown as it is.

    Dagster wraps every error that is not its own into "Error occurred during the execution of
    evaluation_fn" and a stack trace, with the message last.
    """


@contextmanager
def jet_of_tick(
    jet: JetResource | str, context: dg.SensorEvaluationContext | dg.ScheduleEvaluationContext
) -> Iterator[Jet]:
    """Opens the store for the duration of a tick.

    Args:
        jet: the `JetResource`, or its key in the definitions.
        context: context of the tick.

    Raises:
        JetTickError: a `JetError` ended the tick, for example because the store does not answer.
            Nothing was requested; the next tick tries again.
    """
    try:
        with opened_jet(context.resources, jet) as opened:
            yield opened
    except JetError as error:
        raise JetTickError(str(error)) from None


def required_key(jet: JetResource | str) -> set[str] | None:
    """Returns the resource keys that a definition which reads the store requires.

    Whether a resource has the key is checked when definitions are loaded for assets, checks and
    jobs, by Dagster. Sensors and schedules do not see the resources there: `opened_jet` checks it
    at each tick.

    Raises:
        ConfigurationError: it is neither a `JetResource` nor a key.
    """
    if isinstance(jet, JetResource):
        return None
    if not isinstance(jet, str) or not jet:
        raise ConfigurationError(
            f"jet: expected a JetResource or its key in the definitions, not {jet!r:.80}."
        )
    return {jet}
