"""A task's times: each sink has its own writing, each shard the waiting for it."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.operators.operator import Step
from dagster_jet.snapshot.manifest import Ack
from dagster_jet.spark.tasks import sink_writers, stage_task
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.sink_writers import SinkWriters
from dagster_jet.spark.tasks.stage_input import OwnSink
from dagster_jet.spark.tasks.stage_task import ShardRun

ROWS = pa.record_batch([pa.array([1, 2, 3])], ["v"])


class Seconds:
    """The clock of the tasks' modules; what takes time moves it."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    clock = Seconds()
    for module in (sink_writers, stage_task):
        monkeypatch.setattr(module, "time", clock)
    return clock


class SlowSink:
    """Takes a fixed time to write a batch, and one to prepare; is its own writer."""

    def __init__(self, seconds: Seconds, write_s: float, prepare_s: float) -> None:
        self.seconds, self.write_s, self.prepare_s = seconds, write_s, prepare_s

    def open_writer(self, transaction: Any) -> SlowSink:
        return self

    def refused(self, rows: pa.RecordBatch) -> dict[int, Any]:
        return {}

    def write(self, batch: pa.RecordBatch) -> None:
        self.seconds.now += self.write_s

    def prepare(self) -> tuple[()]:
        self.seconds.now += self.prepare_s
        return ()

    def close(self) -> None:
        pass


def test_sinks_of_one_task_each_have_their_own_time(seconds: Seconds, tmp_path: Path) -> None:
    fast: Any = SlowSink(seconds, 0.001, 0.002)
    slow: Any = SlowSink(seconds, 0.1, 0.05)
    barrier = Barrier("j", 1, 1, 1, None, str(tmp_path), 4, None)
    writers = SinkWriters(barrier, [OwnSink("fast", fast), OwnSink("slow", slow)], 0, "t")
    for _ in range(3):
        writers.write(ROWS)
        seconds.now += 7  # somebody else's
    times = {ack.vertex: ack.work_ms for ack in writers.prepare()}
    assert times == {"fast": pytest.approx(5), "slow": pytest.approx(350)}


class SlowSave(Future[Any]):
    """The task waits for it at its end."""

    def __init__(self, seconds: Seconds, took_s: float) -> None:
        super().__init__()
        self.seconds, self.took_s = seconds, took_s

    def result(self, timeout: float | None = None) -> Any:
        self.seconds.now += self.took_s
        return super().result(timeout)


def run(saving: Future[Any] | None) -> ShardRun:
    nothing = pa.table({})
    return ShardRun(Step(nothing, nothing, 0), Ack("s", 0, "t"), saving)


def test_a_shard_says_how_long_was_waited_for_its_state(seconds: Seconds) -> None:
    save = SlowSave(seconds, 0.25)
    save.set_result((None, 0))
    acked = run(save).with_work(0.5).acked()
    assert (acked.work_ms, acked.save_ms) == (500, pytest.approx(250))
    assert Ack.from_bytes(acked.to_bytes()) == acked


def test_without_a_snapshot_nothing_is_waited_for(seconds: Seconds) -> None:
    assert run(None).acked().save_ms == 0


def test_a_save_that_has_failed_says_why(seconds: Seconds) -> None:
    save = SlowSave(seconds, 0.25)
    save.set_exception(StoreUnavailableError("nobody is there."))
    assert "nobody is there" in (run(save).acked().snapshot_error or "")
