"""Frames of one epoch that several branches read: persisted, so that all read the same rows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from dagster_jet.spark.cluster.placement import Placement
from dagster_jet.spark.plans.cached import from_cache

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SharedFrames:
    """The persisted frames, upstream ones first."""

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def add(self, frame: DataFrame, *, is_prepared: bool = False) -> DataFrame:
        """Returns the frame from which branches read.

        Args:
            is_prepared: it is persisted `again` for later epochs, with another cache in each.
        """
        self._frames.append(frame.persist())
        return frame if is_prepared else from_cache(frame)

    def __bool__(self) -> bool:
        return bool(self._frames)

    def again(self) -> None:
        """Persists them for the next epoch, after `release`."""
        for frame in self._frames:
            frame.persist()

    def fill(self, placement: Placement) -> None:
        for frame in self._frames:
            placement.fill(frame)

    def release(self) -> None:
        for frame in self._frames:
            with suppress(Py4JError, OSError):  # a dead JVM has released everything
                frame.unpersist()
