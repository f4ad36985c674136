"""Sinks that one task writes: a failure of one is a failure of that one's stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.contract import SinkWriter
from dagster_jet.errors import ExecutorLostError, JetError
from dagster_jet.spark.tasks.barrier import Barrier
from dagster_jet.spark.tasks.sink_writers import SinkWriters
from dagster_jet.spark.tasks.stage_input import OwnSink

BATCH = pa.record_batch({"n": [1, 2]})


@dataclass(frozen=True)
class Failing(FilesSink):
    """Opens writers whose method of this name fails."""

    at: str = ""
    error: type[Exception] = ValueError

    def open_writer(self, transaction: Any) -> Any:
        if self.at == "open_writer":
            raise self.error("too odd")
        writer: SinkWriter = super().open_writer(transaction)

        def fails(*_: Any) -> Any:
            raise self.error("too odd")

        setattr(writer, self.at, fails)
        return writer


@pytest.mark.parametrize("at", ["open_writer", "write", "prepare"])
@pytest.mark.parametrize(
    ("error", "raised"), [(ValueError, JetError), (OSError, ExecutorLostError)]
)
def test_the_sink_that_fails_is_named(
    tmp_path: Path, at: str, error: type[Exception], raised: type[JetError]
) -> None:
    for name in ("first", "second", "third"):
        (tmp_path / name / ".staging" / "j" / name).mkdir(parents=True)
    owns = [
        OwnSink("first", FilesSink(str(tmp_path / "first"), "json")),
        OwnSink("second", Failing(str(tmp_path / "second"), "json", at=at, error=error)),
        OwnSink("third", FilesSink(str(tmp_path / "third"), "json")),
    ]
    barrier = Barrier("j", 0, 1, 1, None, str(tmp_path / "tasks"), 271, None)
    with pytest.raises(raised) as caught, SinkWriters(barrier, owns, 0, "a") as writers:
        writers.write(BATCH)
        list(writers.prepare())
    assert type(caught.value) is raised
    assert caught.value.stage == "second"
    prepared = {"first"} if at == "prepare" else set()
    staged = {p.relative_to(tmp_path).parts[0] for p in tmp_path.rglob("*") if p.is_file()}
    assert staged == prepared


def test_a_failing_abort_does_not_hide_why_the_task_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".staging" / "j" / "s").mkdir(parents=True)
    barrier = Barrier("j", 0, 1, 1, None, str(tmp_path / "tasks"), 271, None)
    owns = [OwnSink("s", Failing(str(tmp_path), "json", at="abort", error=OSError))]
    with pytest.raises(ZeroDivisionError), SinkWriters(barrier, owns, 0, "a"):
        raise ZeroDivisionError
    assert "s: rows of a failed task are left: OSError('too odd')" in caplog.messages
