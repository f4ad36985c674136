"""Finds a job by its name; the error for a mistyped name lists the jobs that exist."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dagster_jet.core.first_of import first_of
from dagster_jet.errors import JobStateError

if TYPE_CHECKING:
    from dagster_jet.jet import Jet
    from dagster_jet.jobs.job import Job


def known_job(jet: Jet, name: str) -> Job:
    """Return the handle of a job that has run with this store.

    Raises:
        JobStateError: there is no such job; names those that exist.
    """

    from dagster_jet.ownership.record_keeper import read_record

    if read_record(jet.store, name) is None:
        raise unknown_job(jet, name)
    return jet.job(name)


def unknown_job(jet: Jet, name: str) -> JobStateError:
    """Return the error for a name of which the store has no job."""

    from dagster_jet.ownership.record_keeper import JOB_DIRECTORY

    names = sorted(key.name for key in jet.store.map(JOB_DIRECTORY).keys(""))
    return JobStateError(
        f"no job of this name exists in namespace {jet.store.config.namespace!r} of this store; "
        f"there are: {first_of(names)}.",
        job=name,
        cure="See 'dagster-jet jobs'; check --store and --namespace.",
    )
