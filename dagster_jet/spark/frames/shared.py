"""Frames of one epoch that several branches read: cached, so that all read the same rows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from dagster_jet.spark.cluster.placement import Placement
from dagster_jet.spark.plans.cached import Cache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SharedFrames:
    """The cached frames, upstream ones first."""

    def __init__(self, *, are_planned_again: bool = False) -> None:
        """
        Args:
            are_planned_again: later epochs plan the same frames again, and what is below a cache,
                too. It has shuffles, whose rows Spark keeps.
        """
        self._are_planned_again = are_planned_again
        self.frames: list[DataFrame] = []
        """As they were added."""
        self._persisted: list[DataFrame] = []
        self._caches: list[Cache] = []

    def add(self, frame: DataFrame) -> DataFrame:
        """Returns the frame that branches read."""
        self.frames.append(frame)
        if self._are_planned_again:
            self.persist(frame)
            return frame
        self._caches.append(Cache(frame))
        return self._caches[-1].rows

    def persist(self, frame: DataFrame) -> None:
        """For a frame that has branches already. One that its source has persisted stays so."""
        level = frame.storageLevel
        if not (level.useMemory or level.useDisk):
            self._persisted.append(frame.persist())

    def again(self) -> None:
        """Prepares them for the next epoch, after `release`."""
        for frame in self._persisted:
            frame.persist()

    def fill(self, placement: Placement) -> None:
        for frame in (*self._persisted, *(cache.rows for cache in self._caches)):
            placement.fill(frame)

    def release(self) -> None:
        with suppress(Py4JError, OSError):  # a dead JVM has released everything
            for frame in self._persisted:
                frame.unpersist()
            for cache in self._caches:
                cache.clear()
