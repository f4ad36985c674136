"""The report of an execution in the store is recent, bounded, and written when it has changed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dagster_jet.errors import StoreMismatchError, StoreUnavailableError
from dagster_jet.execution.events import EpochCompleted, SourceProgress, StageProgress
from dagster_jet.execution.sink_committer import PendingCommit
from dagster_jet.observe.writing.kept_value import kept_values
from dagster_jet.observe.writing.progress_report import PARTITIONS_MAX, ProgressReport
from dagster_jet.observe.writing.report_keeper import KEEP_EVERY_S, ReportKeeper, read_report
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.store import Store, StoreConfig

VIEW = CoordinatorView()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    members = tuple(f"file://{tmp_path}/{name}" for name in "ab")
    with Store.open(StoreConfig(members, backup_count=1)) as store:
        yield store


class Measured:
    """Progress of sources and stages, as an execution publishes it."""

    def __init__(self) -> None:
        self.rows = 0

    def sources(self, view: CoordinatorView) -> Mapping[str, SourceProgress]:
        return {"orders": SourceProgress(self.rows, {"offset": self.rows}, {"rows": 3})}

    def stages(self, view: CoordinatorView) -> Mapping[str, StageProgress]:
        return {"out": StageProgress(self.rows, self.rows)}


class Kept:
    """A keeper, its clock, and how many writes it began."""

    def __init__(self, store: Any, execution_id: int = 1) -> None:
        self.now, self.progress, self.writes = 100.0, Measured(), 0
        self.commits: dict[str, PendingCommit] = {}
        progress: Any = self.progress
        self.keeper = ReportKeeper(
            store, "shop", execution_id, progress, lambda: self.commits,
            lambda: self.now, lambda: round(self.now * 1000),
        )  # fmt: skip
        start = self.keeper._worker.start

        def count(work: Any) -> None:
            self.writes += 1
            start(work)

        self.keeper._worker.start = count

    def epoch(self, rows: int) -> None:
        self.progress.rows += rows
        self.keeper.epoch_completed(EpochCompleted("shop", 1, 1, rows, 12.34))

    def pass_s(self, seconds: float = KEEP_EVERY_S) -> None:
        self.now += seconds
        self.keeper.keep_if_due(VIEW)


def kept(store: Store) -> ProgressReport:
    found = read_report(store, "shop")
    assert found is not None
    return found[1]


def test_before_data_flows_there_is_nothing_to_report(store: Store) -> None:
    one = Kept(store)
    one.pass_s()
    one.keeper.close(VIEW)
    assert one.writes == 0 and read_report(store, "shop") is None


def test_rows_rate_and_when_the_last_ones_came(store: Store) -> None:
    one = Kept(store)
    one.keeper.started()
    one.keeper.keep_if_due(VIEW)
    one.epoch(50)
    one.pass_s()
    one.keeper._worker.close()
    report = kept(store)
    assert report.rows_per_second == 50 / KEEP_EVERY_S
    assert (report.epochs, report.last_epoch_ms) == (1, 12.3)
    assert report.sources["orders"].rows_read == 50
    assert report.last_rows_ms == {"orders": 105_000}
    assert (report.started_ms, report.written_at_ms) == (100_000, 105_000)


def test_an_idle_job_writes_its_rate_down_once_and_then_nothing(store: Store) -> None:
    one = Kept(store)
    one.keeper.started()
    one.epoch(50)
    for _ in range(20):
        one.pass_s()
    assert one.writes == 2  # with the epoch's rate, and without any
    one.keeper.close(VIEW)
    assert one.writes == 2 and kept(store).rows_per_second == 0


def test_no_more_often_than_every_few_seconds(store: Store) -> None:
    one = Kept(store)
    one.keeper.started()
    for _ in range(100):
        one.epoch(1)
        one.pass_s(KEEP_EVERY_S / 50)
    assert one.writes <= 3


def test_failing_snapshots_have_a_beginning_that_a_success_forgets(store: Store) -> None:
    one = Kept(store)
    one.keeper.started()
    one.keeper.snapshot_failed("disk full", 1)
    one.now += 60
    one.keeper.snapshot_failed("still full", 2)
    one.commits = {"out": PendingCommit(1, "refused")}
    one.keeper.keep_if_due(VIEW)
    one.keeper._worker.close()
    report = kept(store)
    assert (report.failing_since_ms, report.last_failure) == (100_000, "still full")
    assert report.committing == {"out": PendingCommit(1, "refused")}
    again = Kept(store, 2)
    again.keeper.started()
    again.keeper.snapshot_failed("disk full", 1)
    again.keeper.snapshot_completed(7)
    again.keeper.close(VIEW)
    report = kept(store)
    assert (report.snapshot_id, report.failing_since_ms, report.failed_snapshots) == (7, None, 1)
    assert len(kept_values(store, "shop", "progress").keys("")) == 1


def test_a_store_that_does_not_answer_fails_no_job() -> None:
    class Away:
        def map(self, name: str) -> Any:
            raise StoreUnavailableError("nobody is there.")

    one = Kept(Away())
    one.keeper.started()
    one.pass_s()
    one.keeper.close(VIEW)
    assert one.writes == 1


def test_what_is_reported_is_bounded_and_read_back() -> None:
    partitions = {f"topic-{n}": n for n in range(1_000)}
    source = SourceProgress(
        10**12, {"every": partitions}, {"rows": 1}, partitions, unavailable="x" * 10_000
    )
    stage = StageProgress(1, 1, held_back_by="s0", held_back_since_ms=5, next_due_ms=9)
    report = ProgressReport(
        started_ms=1,
        sources={f"s{n}": source for n in range(5)},
        stages={f"t{n}": stage for n in range(20)},
        last_failure="y" * 10_000,
        committing={"out": PendingCommit(1, "z" * 10_000)},
    )
    data = report.to_bytes()
    assert len(data) < 15_000
    again = ProgressReport.from_bytes(data, "shop")
    assert again.stages == report.stages
    assert again.sources["s0"].partition_lag == {
        f"topic-{n}": n for n in range(999, 999 - PARTITIONS_MAX, -1)
    }
    small = replace(report, sources={"s0": SourceProgress(1, {}, {"rows": 1})}, last_failure="")
    small = replace(small, committing={})
    assert ProgressReport.from_bytes(small.to_bytes(), "shop") == small


def test_what_a_newer_version_has_kept_is_refused() -> None:
    document = json.loads(ProgressReport(1).to_bytes())
    data = json.dumps({**document, "format": 2, "more": 1}).encode()
    with pytest.raises(StoreMismatchError, match="Upgrade"):
        ProgressReport.from_bytes(data, "shop")
