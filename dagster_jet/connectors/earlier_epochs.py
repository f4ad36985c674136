"""Refuses a new job in a place that has markers of a job of the same name."""

from __future__ import annotations

from dagster_jet.errors import ConfigurationError


def refuse_earlier_epochs(place: str, job: str, stage: str, *, cure: str) -> None:
    """Called if a sink of a job that its store does not know finds markers of its own.

    Args:
        place: what has the markers: "the table 'x'".

    Raises:
        ConfigurationError: always.
    """
    raise ConfigurationError(
        f"{place} has epochs of an earlier life of this job, which the store does not know: new "
        "epochs would be taken for those.",
        job=job,
        stage=stage,
        cure=cure,
    )
