"""Warms up executors that join while a job runs, so that a restart may give them shards.

A restart after a loss uses the executors that are left. One that replaces a lost one joins seconds
later, and its JVM and Python need seconds more before they are of use. Rows do not wait for it: it
is warmed up as soon as it has joined, and the warm-up holds its cores, because Spark gives a free
core the next task that has no place, such as the one that reads an epoch's rows.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.errors import PySparkException

from dagster_jet.spark.cluster.executor_watch import SESSION_GONE, is_session_gone
from dagster_jet.spark.cluster.executors import executors_known, frame_of, rows_on
from dagster_jet.system.own_task import OwnTask

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

_logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_AGAIN_S = 5.0
"""Seconds from a warm-up that failed to the next one."""
_ALONE_S = 30.0
"""Time after which no executor is expected to join, from the last one that did."""


class JoiningExecutors:
    """Looks for executors from its creation on, on a thread of its own."""

    def __init__(self, session: SparkSession, at_first: frozenset[str], wanted: int) -> None:
        """
        Args:
            at_first: ids of the executors that are there, and of the driver.
            wanted: the number of all that are asked for.
        """
        self._session, self._at_first, self._wanted = session, at_first, wanted
        self._closed, self._ready = threading.Event(), threading.Event()
        self._tag = f"jet-joining-{uuid.uuid4().hex}"
        if len(at_first) < wanted:
            threading.Thread(target=self._run, name="jet-joining", daemon=True).start()

    @property
    def are_ready(self) -> bool:
        """Whether executors have joined, all are warm, and no other one is expected soon."""
        return self._ready.is_set()

    def close(self) -> None:
        """Cancels a warm-up that is running: of an executor that is lost it would wait for long."""
        self._closed.set()
        with suppress(*SESSION_GONE):
            self._session.sparkContext.cancelJobsWithTag(self._tag)

    def _run(self) -> None:
        warm, joined_at = set(self._at_first), time.monotonic()
        self._session.sparkContext.addJobTag(self._tag)
        while not self._closed.wait(_LOOK_EVERY_S):
            try:
                there = executors_known(self._session)
                for number in there.keys() - warm:
                    _warm_up(self._session, there[number])
                    warm.add(number)
                    joined_at = time.monotonic()
            except (PySparkException, *SESSION_GONE) as error:
                if is_session_gone(error):
                    return
                # It is gone again, or has another version.
                _logger.info("an executor that has joined was not warmed up: %s", error)
                self._closed.wait(_AGAIN_S)
                continue
            is_last = time.monotonic() - joined_at > _ALONE_S
            have_joined = len(there) > len(self._at_first) and there.keys() <= warm
            if have_joined and (len(there) >= self._wanted or is_last):
                self._ready.set()
                return


def _warm_up(session: SparkSession, executor: JavaObject) -> None:
    """Runs small tasks like an epoch's on this executor: they start Python, load the library, and
    write and read a shuffle."""
    rows = rows_on(session, executor)
    rows.countAsync()  # holds the cores until the frames are made
    made = frame_of(session, rows).mapInArrow(OwnTask(_load), "id int")
    counts = made.repartition(2, "id").groupBy("id").count()
    counts.mapInArrow(OwnTask(_load), "id int").collect()


def _load(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from dagster_jet.spark.tasks import fused_task, restore_task  # noqa: F401

    for batch in batches:
        yield pa.record_batch({"id": pa.array(batch.column(0), pa.int32())})
