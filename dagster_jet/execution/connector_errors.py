"""Reactions to errors of connectors."""

from __future__ import annotations

from dagster_jet.contract import ClassifiesErrors
from dagster_jet.errors import JetError, Reaction


def reaction_to(error: Exception, connector: ClassifiesErrors) -> Reaction | None:
    """Returns the job's reaction to a connector's error; None if nobody classifies it."""
    return error.reaction if isinstance(error, JetError) else connector.reaction(error)
