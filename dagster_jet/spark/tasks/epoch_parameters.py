"""What is of one epoch, for tasks that were made for any: a file that a property of the job names.

Frames of small epochs are made once and run again and again (`spark/frames/prepared_frames.py`).
Whatever is different in each epoch cannot be in their closures.

The file lies in the execution's private folder, and the next epoch's takes its place: a task that
is late by an epoch fails, before it has written anything.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from dagster_jet.spark.tasks.barrier import Barrier, private_folder
from dagster_jet.spark.tasks.stage_input import StageInput

PARAMETERS_PROPERTY = "dagster_jet.epoch"
"""The property: which file."""


@dataclass(frozen=True)
class EpochParameters:
    """Of one epoch."""

    barrier: Barrier
    stages: Mapping[str, StageInput]
    splits: Mapping[str, Any]
    """By source, `SplitParameters.what`."""

    def write(self) -> Path:
        """Into the work folder. A crash leaves a file in the folder of an execution that is over.

        Raises:
            As `private_folder`.
        """
        with private_folder(self.barrier.work_dir) as folder:
            path = folder / f"epoch-{self.barrier.epoch_id}.pickle"
            path.write_bytes(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))
        return path


def current_parameters() -> EpochParameters:
    """Inside of a task of an epoch."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    path = context.getLocalProperty(PARAMETERS_PROPERTY)
    assert path is not None
    return _read(path, os.stat(path).st_mtime_ns)  # another file may have had the name


@lru_cache(maxsize=1)
def _read(path: str, mtime_ns: int) -> EpochParameters:
    read = pickle.loads(Path(path).read_bytes())  # this execution's driver wrote it
    assert isinstance(read, EpochParameters)
    return read


Rows = Iterable[pa.RecordBatch]


class EpochTask(Protocol):
    """A task that was made for one epoch."""

    def in_epoch(self, parameters: EpochParameters) -> Callable[[Rows], Iterator[pa.RecordBatch]]:
        """The same one for another."""
        ...


@dataclass(frozen=True)
class PreparedTask:
    """A task of whatever epoch it runs in."""

    task: EpochTask

    def __call__(self, batches: Rows) -> Iterator[pa.RecordBatch]:
        return self.task.in_epoch(current_parameters())(batches)


@dataclass(frozen=True)
class CurrentSplit:
    """A source's split, as its tasks know it, of whatever epoch they run in."""

    source: str

    def __call__(self) -> Any:
        return current_parameters().splits[self.source]
