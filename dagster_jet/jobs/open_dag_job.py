"""May a DAG be run as asked? It runs in memory, and refuses what would need more."""

from __future__ import annotations

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.dag import DAG
from dagster_jet.errors import ConfigurationError, JobStateError
from dagster_jet.job_config import JobConfig, milliseconds
from dagster_jet.jobs.dag_job import DagJob
from dagster_jet.ownership.garbage import dag_snapshots
from dagster_jet.ownership.record_keeper import read_record
from dagster_jet.store import Store

_OF_DAGS = {"guarantee", "snapshot_interval", "parallelism", "max_watermark_retention"}
"""What a DAG's run takes from its configuration."""


def open_dag_job(dag: DAG, config: JobConfig, store: Store) -> DagJob:
    """Return the job of a DAG, not started yet.

    Raises:
        ConfigurationError: a setting that only pipelines have; the DAG is not valid.
        JobStateError: there is durable work under its name.
    """
    fields = JobConfig.model_fields.items()
    changed = {name for name, field in fields if getattr(config, name) != field.default}
    refuse_for_dags(dag, **dict.fromkeys(sorted(changed - _OF_DAGS), True))
    _refuse_stored(dag, store)
    has_snapshots = config.guarantee is not Guarantee.NONE
    return DagJob(
        dag,
        guarantee=config.guarantee,
        snapshot_interval_ms=milliseconds(config.snapshot_interval) if has_snapshots else None,
        parallelism=config.parallelism or 1,
        max_retention_ms=config.max_watermark_retention_ms,
    )


def refuse_for_dags(dag: DAG, **given: object) -> None:
    """Raises `ConfigurationError` if any of the settings given is set."""
    wanted = [name for name, value in given.items() if value]
    if wanted:
        raise ConfigurationError(
            f"{', '.join(wanted)}: a DAG runs in this process's memory, for tests and development,"
            " and has no use for that.",
            job=dag.name,
            cure="Leave it out, or write a pipeline: its snapshots are in the store.",
        )


def _refuse_stored(dag: DAG, store: Store) -> None:
    """Who runs a DAG under the name of durable work may think that it goes on from there."""
    if read_record(store, dag.name) is not None:
        raise JobStateError(
            "a pipeline of this name has its record in the store, and a DAG runs in memory.",
            job=dag.name,
            cure="Give the DAG a name of its own.",
        )
    older = dag_snapshots(store, dag.name)
    if older.get(older.key("latest")) is not None:
        raise JobStateError(
            "an older version has kept a snapshot of this DAG in the store; this one would not"
            " go on from it, but begin at the start.",
            job=dag.name,
            cure="Let the older version end it, or drop it with 'dagster-jet store gc'.",
        )
