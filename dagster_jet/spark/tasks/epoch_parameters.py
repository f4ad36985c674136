"""Parameters of one epoch for prepared tasks: they travel as a property of the Spark job.

Frames of small epochs are made once and run many times (`spark/frames/prepared_frames.py`). Their
closures cannot contain anything that differs between epochs.
"""

from __future__ import annotations

import base64
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.stage_input import StageInput

if TYPE_CHECKING:
    from pyspark import SparkContext

_PROPERTY = "dagster_jet.epoch"


@dataclass(frozen=True)
class EpochParameters:
    """Parameters of one epoch."""

    barrier: Barrier
    stages: Mapping[str, StageInput]
    splits: Mapping[str, Any]
    """`SplitParameters.what` by source."""
    ingestion_ms: Mapping[str, int]
    """`EpochInput.ingestion_ms`."""

    def hand_on(self, context: SparkContext) -> None:
        """Passes them to the tasks of jobs that this thread starts next."""
        pickled = pickle.dumps(self, pickle.HIGHEST_PROTOCOL)
        # Chunk sets of many shards have much in common.
        text = base64.b64encode(zlib.compress(pickled, 1)).decode("ascii")
        context.setLocalProperty(_PROPERTY, text)


def current_parameters() -> EpochParameters:
    """Returns the parameters of the epoch of the current task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    text = context.getLocalProperty(_PROPERTY)
    assert text is not None
    return _read(text)


@lru_cache(maxsize=1)
def _read(text: str) -> EpochParameters:
    read = pickle.loads(zlib.decompress(base64.b64decode(text)))  # this execution's driver wrote it
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
