"""Ends an execution's Spark jobs when an executor is lost.

Spark itself may continue for a long time. It waits `spark.locality.wait.process` for a dead
executor as for a busy one: a task set counts the dead one's tasks as long as a living executor is a
key of the same table, and keys are removed only up to the first with tasks
(`TaskSetManager.getAllowedLocalityLevel`). Without such a wait it retries fetches, and runs tasks
elsewhere, where they do not find their runs. None of this could succeed.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from dagster_jet.errors import ExecutorLostError
from dagster_jet.spark.cluster.executors import await_status_store, executors, executors_dead
from dagster_jet.spark.errors import is_of_gateway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SESSION_GONE = (Py4JError, OSError, AttributeError)
"""Errors of a call after the JVM has died, or after the session was stopped and left None. Java's
own errors are among them, see `is_session_gone`."""

_POLL_S = 0.2
_NAMELESS = "one that started and ended within an epoch"


def is_session_gone(error: BaseException) -> bool:
    """Whether no later call can succeed. After an error that the JVM itself raises, such as that of
    a cancelled Spark job, another call can."""
    return is_of_gateway(error) or isinstance(error, OSError | AttributeError)


class ExecutorsGoneError(ExecutorLostError):
    """Executors have left the cluster; the others can go on."""


class ExecutorWatch:
    """Watches from its creation on. Ends the jobs of the thread that made it, and those of other
    threads that begin within `covering`.

    Executors that join later are watched, too: they can take blocks and shuffle files of an epoch
    with them.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._tag = f"jet-{uuid.uuid4().hex}"
        self.at_first = executors(session)
        """Spark's ids of the executors that were there when the watch began, and of the driver."""
        await_status_store(session)
        self._seen, self._dead = self.at_first, executors_dead(session)
        self._gone: frozenset[str] = frozenset()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        session.sparkContext.addJobTag(self._tag)
        self._thread = threading.Thread(target=self._run, name="jet-executors", daemon=True)
        self._thread.start()

    @contextmanager
    def covering(self) -> Iterator[None]:
        """Ends the calling thread's Spark jobs, too: Spark's tags belong to a thread."""
        context = self._session.sparkContext
        is_new = self._tag not in context.getJobTags()
        if is_new:
            context.addJobTag(self._tag)
        try:
            yield
        finally:
            if is_new:
                with suppress(*SESSION_GONE):
                    context.removeJobTag(self._tag)

    def check(self) -> None:
        """Called after a Spark job, before its results or errors are used.

        Raises:
            ExecutorsGoneError: an executor has left since the watch began. Its runs are lost, and
                rows that Spark computed again were observed twice.
        """
        gone = self._look()
        if gone:
            raise ExecutorsGoneError(
                f"executors are lost ({', '.join(sorted(gone))}), and with them the local state of "
                "their shards.",
                cure="The job restarts from its last snapshot.",
            )

    def close(self) -> None:
        self._closed.set()
        self._thread.join(10 * _POLL_S)
        with suppress(*SESSION_GONE):
            self._session.sparkContext.removeJobTag(self._tag)

    def _look(self) -> frozenset[str]:
        """Ids of the executors that are gone."""
        there, dead = executors(self._session), executors_dead(self._session)
        with self._lock:
            self._gone |= self._seen - there
            self._seen |= there
            if dead > self._dead and not self._gone:
                self._gone = frozenset([_NAMELESS])
            return self._gone

    def _run(self) -> None:
        from pyspark.errors import PySparkException  # a code server has this file, and no Spark

        while not self._closed.wait(_POLL_S):
            try:
                if self._look():
                    # Repeatedly: the epoch may be between two of its jobs. Tasks of living
                    # executors have `spark.python.task.killTimeout` to end in peace.
                    self._session.sparkContext.cancelJobsWithTag(self._tag)
            except (PySparkException, *SESSION_GONE) as error:
                if is_session_gone(error):
                    return  # the jobs are gone as well
