"""Tasks that run twice, executions that wake up too late, and snapshots that fail leave nothing
wrong. Each check is shown to find the mistake that it is there for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet import sources
from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.connectors.files.files_source import FilesReader
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.errors import JetError, SourceError
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.execution.source_polling import poll_now
from dagster_jet.execution.undecided_input import UndecidedInput
from dagster_jet.operators.stateful_map import StatefulMap
from dagster_jet.snapshot.manifest import Ack, ChunkSet
from dagster_jet.snapshot.protocol import RunEpoch
from dagster_jet.snapshot.storage import snapshot_store
from dagster_jet.snapshot.storage.chunks import ChunkSetName, write_chunk_set
from dagster_jet.snapshot.storage.snapshot_store import Retained, SnapshotStore
from dagster_jet.spark.tasks import fused_task
from dagster_jet.spark.tasks.barrier import ACK_COLUMN, SHARD_COLUMN
from dagster_jet.spark.tasks.fused_task import FusedTask
from dagster_jet.spark.tasks.fusion import Fusion
from dagster_jet.spark.tasks.input_statistics import InputRef
from dagster_jet.spark.tasks.stage_input import StageInput, StageSpec
from dagster_jet.store import Store
from tests.unit.operators.stepping import PARTITIONS, addressed, as_input
from tests.unit.spark.shard import Row, Shard

# --- a task that is run twice ---------------------------------------------------------------------


def replaced(state: Any, row: Row) -> Row:
    before, state.value = state.value, row["v"]
    return {"k": row["k"], "before": before}


def last_value() -> StatefulMap:
    """The last of several rows of one time counts; each attempt may read them in another order."""
    rows = pa.schema([("k", pa.string()), ("v", pa.int64())])
    results = pa.schema([("k", pa.string()), ("before", pa.int64())])
    return StatefulMap("s", ("k",), rows, results, replaced, int, None, None)


class TwiceRun(Shard):
    """Runs tasks as Spark does, with chosen names of their attempts."""

    def attempt(self, *values: int, saves: bool) -> Ack:
        given = StageInput((self.state,), None, None, None)
        fusion = Fusion((StageSpec("s", self.operator),), (InputRef("s", 0),))
        task = FusedTask(self._barrier(saves), fusion, {"s": given})
        (schema,) = self.operator.input_schemas
        rows = [addressed(0, {"k": "a"}, v=value) for value in values]
        table = as_input(rows, schema)
        shard = pa.array([0] * len(rows), pa.int32())
        batches = table.append_column(SHARD_COLUMN, shard).to_batches()
        acks = [batch.column(ACK_COLUMN) for batch in task(iter(batches))]
        (ack,) = [Ack.from_bytes(told.as_py()) for column in acks for told in column]
        return ack

    def twice(self, *, saves: bool) -> None:
        """The attempt that counts has seen 2 last. Another one is slower, and has seen 1 last."""
        self.epoch += 1
        counts = self.attempt(1, 2, saves=saves)
        self.attempt(2, 1, saves=saves)
        self.state = self.state.after_epoch(counts)
        if saves:
            self.state = self.state.at_barrier().after_snapshot(counts)


def value_after_two_attempts(store: Store, folder: Path, *, saves: bool) -> list[Row]:
    shard = TwiceRun(store, folder, last_value())
    shard.twice(saves=saves)
    if saves:
        shard.restart()
    return shard.step([addressed(0, {"k": "a"}, v=3)], watermark=0)


@pytest.mark.parametrize("saves", [True, False], ids=["chunks", "runs"])
def test_of_two_attempts_the_acknowledged_one_counts(
    store: Store, tmp_path: Path, saves: bool
) -> None:
    found = value_after_two_attempts(store, tmp_path, saves=saves)
    assert found == [{"k": "a", "before": 2}]


@pytest.mark.parametrize("saves", [True, False], ids=["chunks", "runs"])
def test_names_without_the_attempt_are_noticed(
    store: Store, tmp_path: Path, saves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_task, "new_attempt", lambda: "any")
    try:
        found = value_after_two_attempts(store, tmp_path, saves=saves)
    except JetError:
        return  # what the manifest names is not what is there
    assert found != [{"k": "a", "before": 2}]


# --- an execution that wakes up in its abort pass -------------------------------------------------


def left_to_the_successor(
    store: Store, folder: Path, abort: Callable[[FilesSink, CommitContext], object]
) -> tuple[int, int]:
    """Execution 2 has staged a file and written a chunk set, of which no record tells yet, when
    execution 1 gets round to cleaning up after those before it. What of each is left."""
    sink, snapshots = (
        FilesSink(f"{folder}/out", "json").with_store(store),
        SnapshotStore(store, "j"),
    )
    sink.check("j", "out", is_new_job=True)
    for execution in (0, 2):
        writer = sink.open_writer(TransactionId("j", "out", 1, execution, 1, 0, "a"))
        writer.write(pa.RecordBatch.from_pydict({"v": [execution]}))
        writer.prepare()
        rows = pa.table({"__partition": pa.array([3], pa.int32()), "v": [execution]})
        write_chunk_set(
            store.map("jobs/j/state"), ChunkSetName("s", 1, execution, 0, "a"), rows, [],
            sequence=0, is_base=False, partition_count=PARTITIONS,
        )  # fmt: skip
    abort(sink, CommitContext("j", "out", 1, 1, recovering=True))
    snapshots.delete_unreferenced(1, Retained({}, {}))
    files = [path for path in (folder / "out").rglob("*-a*") if path.is_file()]
    return len(files), len(store.map("jobs/j/state").keys(""))


def abort_older(sink: FilesSink, context: CommitContext) -> None:
    sink.abort_orphans(context, ())


def test_a_late_abort_pass_leaves_the_successors_work_alone(store: Store, tmp_path: Path) -> None:
    assert left_to_the_successor(store, tmp_path, abort_older) == (1, 2), "and removes the rest"


def test_an_abort_pass_that_ignores_execution_ids_is_noticed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_store, "execution_of", lambda name: -1)

    def abort_all(sink: FilesSink, context: CommitContext) -> None:
        everybody = CommitContext(
            context.job, context.sink, context.timeline, 2**60, recovering=True
        )
        sink.abort_orphans(everybody, ())

    assert left_to_the_successor(store, tmp_path, abort_all) == (0, 0)


# --- a snapshot that fails ------------------------------------------------------------------------


class DropsWhatFailed(SourceJournals):
    """Takes a snapshot that was begun for one that was decided."""

    def begin_epoch(self, command: RunEpoch, chains: Mapping[str, tuple[ChunkSet, ...]]) -> None:
        self.decided()
        super().begin_epoch(command, chains)


def read_again_after_a_failed_snapshot(
    store: Store, folder: Path, journals_of: type[SourceJournals]
) -> list[str]:
    """Three epochs of four files each; the second one's snapshot fails. The files that a restart
    from the third takes for new. (A set of the journal has one of its parts whole: of one file it
    might be the part.)"""
    (folder / "in").mkdir()
    source = sources.files(f"{folder}/in", format="json", schema="v long")
    reader = source.open("j", "in", None)
    assert isinstance(reader, FilesReader)
    journals = journals_of({"in": reader}, SnapshotStore(store, "j"), UndecidedInput(store, "j"))
    chain: tuple[ChunkSet, ...] = ()
    for epoch in (1, 2, 3):
        names = [f"{epoch}-{number}.json" for number in range(4)]
        for name in names:
            (folder / "in" / name).write_text('{"v": 1}\n')
        poll_now(reader)
        assert sorted(Path(file.path).name for file in reader.plan(10) or ()) == names
        command = RunEpoch(1, epoch, epoch, terminal=False, final=False)
        journals.begin_epoch(command, {"in": chain})
        journals.begun()
        written, failure = journals.written("in")
        assert written is not None and failure is None
        if epoch != 2:
            chain = (*chain, written)
            journals.decided()
    journals.close()
    restarted = source.open("j", "in", None)
    restarted.restore(reader.position(), SnapshotStore(store, "j").read_journal("in", chain))
    poll_now(restarted)
    return [Path(file.path).name for file in restarted.plan(10) or ()]


def test_the_journal_of_a_failed_snapshot_is_in_the_next_one(store: Store, tmp_path: Path) -> None:
    assert read_again_after_a_failed_snapshot(store, tmp_path, SourceJournals) == []


def test_a_journal_that_drops_rows_of_a_failed_snapshot_is_noticed(
    store: Store, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=r"lists \d+ files read, its position 12"):
        read_again_after_a_failed_snapshot(store, tmp_path, DropsWhatFailed)
