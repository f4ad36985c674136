"""Gives a standby a session on this host, for a job that warms up the driver's JVM.

A standby on a cluster must not hold cores there: the application of the job's owner could not get
them back if it had to start again. So its JVM runs a sample job by itself, as a `local` master, and
joins the cluster only when it takes the job over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from dagster_jet.spark.cluster.session import asks_for_cluster, is_local, open_session, start_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ON_THIS_HOST = {"spark.master": "local[2]"}


@contextmanager
def sample_session(
    settings: Mapping[str, str],
) -> Iterator[Callable[[], SparkSession] | None]:
    """Starts Spark's JVM with these settings, and yields what opens a session on this host.

    If the settings name a cluster, the session ends here and the JVM goes on: `open_session` then
    uses it. Yields None if this process already runs Spark on a cluster.

    Raises:
        MissingEnvironmentError: as `open_session`.
        ConfigurationError: as `open_session`.
    """
    from pyspark import SparkContext

    opened = partial(open_session, settings)
    if not asks_for_cluster(settings) or SparkContext._active_spark_context is not None:
        yield opened if is_local(opened()) else None
        return
    start_jvm(settings)  # with the memory and the class path that the job will need
    opened = partial(open_session, {**settings, **_ON_THIS_HOST})
    try:
        yield opened
    finally:
        opened().stop()
