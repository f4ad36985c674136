"""A handover's gap and steps, from the times of commits and of the processes' events."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.deployments import NoHandoverError, handover, times

OLD = {"ExecutionStarted": 1.0, "ExecutionEnded": 10.5}
NEW = {
    "StandingBy": 5.0,
    "PipelineAnalysed": 11.0,
    "ExecutionStarted": 11.5,
    "EpochCompleted": 13.0,
}


def test_the_gap_is_between_the_last_row_of_the_old_and_the_first_of_the_new() -> None:
    found = handover([9.0, 10.25, 13.5, 14.0], 9.5, OLD, NEW)
    assert found.gap_s == 3.25
    assert list(found.steps_s.values()) == [0.75, 0.25, 0.5, 0.5, 1.5, 0.5]


def test_without_rows_of_the_new_process_there_is_no_gap_to_tell() -> None:
    with pytest.raises(NoHandoverError, match="no row"):
        handover([9.0, 10.25], 9.5, OLD, NEW)


def test_the_first_event_of_each_kind_counts(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("WARN 1.5 Noise\n7.250 StandingBy\n8.000 EpochCompleted\n9.000 EpochCompleted\n")
    assert times(log) == {"StandingBy": 7.25, "EpochCompleted": 8.0}
