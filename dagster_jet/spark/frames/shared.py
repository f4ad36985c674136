"""Frames of one epoch that several branches read: persisted, so that all read the same rows."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError

from dagster_jet.spark.cluster.placement import Placement

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class SharedFrames:
    """The persisted frames, upstream ones first."""

    def __init__(self) -> None:
        self._frames: list[DataFrame] = []

    def add(self, frame: DataFrame) -> DataFrame:
        self._frames.append(frame.persist())
        return frame

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
