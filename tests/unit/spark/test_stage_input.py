"""Tasks read only their part of an epoch's parameters."""

from __future__ import annotations

import pickle
from typing import Any

from dagster_jet.snapshot.manifest import ChunkSet, Run, ShardState
from dagster_jet.spark.tasks.stage_input import StageInput

read: list[int] = []


def noted(shard: int) -> str:
    read.append(shard)
    return f"run-{shard}"


class Path:
    """Path of a run; notes that a task reads it."""

    def __init__(self, shard: int) -> None:
        self.shard = shard

    def __reduce__(self) -> Any:
        return noted, (self.shard,)


def test_a_task_reads_its_own_shard_alone() -> None:
    """Each read all of them: the square of their number."""
    path: Any = Path
    chain = (ChunkSet("counts/1", 1, 1, 1, 1),)
    shards = tuple(ShardState(saved=(Run(path(n), 1, 8),), chain=chain) for n in range(5))
    given = StageInput(shards, 10, 20, None, obsolete=("old",), early=True)
    read.clear()
    arrived = pickle.loads(pickle.dumps(given))
    assert len(arrived.shards) == 5 and read == []
    assert arrived.shards[3].runs[0].path == "run-3" and arrived.shards[3].chain == chain
    assert set(read) == {3}
    assert (arrived.before_ms, arrived.after_ms, arrived.obsolete) == (10, 20, ("old",))
    assert [one.runs[0].path for one in pickle.loads(pickle.dumps(arrived)).shards] == [
        f"run-{n}" for n in range(5)
    ]
    assert given.shards is shards
