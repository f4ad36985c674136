"""Parameters of one epoch for prepared tasks: a file, named by a property of the Spark job.

Frames of small epochs are made once and run many times (`spark/frames/prepared_frames.py`). Their
closures cannot contain anything that differs between epochs.

The file is in the execution's private folder, and the next epoch's replaces it: a task that is late
by an epoch fails before it writes anything.
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
"""Job property with the path of the file."""


@dataclass(frozen=True)
class EpochParameters:
    """Parameters of one epoch."""

    barrier: Barrier
    stages: Mapping[str, StageInput]
    splits: Mapping[str, Any]
    """`SplitParameters.what` by source."""

    def write(self) -> Path:
        """Writes them to the work folder. A crash leaves a file in the folder of a dead execution.

        Raises:
            As `private_folder`.
        """
        with private_folder(self.barrier.work_dir) as folder:
            path = folder / f"epoch-{self.barrier.epoch_id}.pickle"
            path.write_bytes(pickle.dumps(self, pickle.HIGHEST_PROTOCOL))
        return path


def current_parameters() -> EpochParameters:
    """Returns the parameters of the epoch of the current task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    path = context.getLocalProperty(PARAMETERS_PROPERTY)
    assert path is not None
    return _read(path, os.stat(path).st_mtime_ns)  # another file may have had the name


@lru_cache(maxsize=1)
def _read(path: str, mtime_ns: int) -> EpochParameters:
    read = pickle.loads(Path(path).read_bytes())  # written by this execution's driver
    assert isinstance(read, EpochParameters)
    return read


Rows = Iterable[pa.RecordBatch]


class EpochTask(Protocol):
    """A task made for one epoch."""

    def in_epoch(self, parameters: EpochParameters) -> Callable[[Rows], Iterator[pa.RecordBatch]]:
        """Returns the same task for another epoch."""
        ...


@dataclass(frozen=True)
class PreparedTask:
    """Runs a task in the current epoch."""

    task: EpochTask

    def __call__(self, batches: Rows) -> Iterator[pa.RecordBatch]:
        return self.task.in_epoch(current_parameters())(batches)


@dataclass(frozen=True)
class CurrentSplit:
    """Returns a source's split of the current epoch, as its tasks know it."""

    source: str

    def __call__(self) -> Any:
        return current_parameters().splits[self.source]
