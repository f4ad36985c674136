"""Compares installed versions of a cluster's executors with the driver's, which pickles tasks."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from dagster_jet.errors import JetError, MissingEnvironmentError, Reaction
from dagster_jet.spark.cluster.session import parallelism
from dagster_jet.system.own_task import check_same, installed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def check_versions(
    session: SparkSession, job: str, failure: Callable[[Exception], JetError]
) -> None:
    """Asks every executor, by a Spark job with a task for each core. Executors that join later are
    checked by each task (`OwnTask`).

    Args:
        failure: translates the error of a failed Spark job.

    Raises:
        MissingEnvironmentError: an executor has another version of a package, lacks it, or cannot
            run Python at all.
        JetError: translated from Spark's error, if the job is to restart.
    """
    versions, cores = _reporter(), parallelism(session)
    rows = session.range(0, cores, 1, cores).mapInArrow(versions, "host string, versions string")
    try:
        answers = {(row.host, row.versions) for row in rows.collect()}
    except (PySparkException, Py4JError) as raised:
        error = failure(raised)
        if error.reaction is not Reaction.FAIL:
            raise error from raised
        raise MissingEnvironmentError(
            f"the executors cannot run a task of Python: {error.message}",
            job=job,
            cure="Install the same image, or the same packages, on the executors as on the driver.",
        ) from raised
    for host, there in answers:
        check_same(installed(), json.loads(there), host, job)


def _reporter() -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Returns a function pickled by value: it must run where this package differs or is missing."""

    def versions(batches: Iterable[Any]) -> Iterator[Any]:
        import importlib
        import json
        import platform
        import socket

        import pyarrow as pa

        for _ in batches:
            pass
        found = {"Python": ".".join(platform.python_version_tuple()[:2])}
        for name in ("dagster_jet", "pyarrow"):
            try:
                found[name] = importlib.import_module(name).__version__
            except ImportError:
                found[name] = "(none)"
        answer = {"host": [socket.gethostname()], "versions": [json.dumps(found)]}
        yield pa.RecordBatch.from_pydict(answer)

    return versions
