"""The soak's watch sees a sink that is ahead of what is decided, and a ledger ahead of a sink."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.observe.reading.ledger import LedgerEntry, LedgerOrigin
from tests.integration.connectors.plain_markers import FileMarkers
from tests.soak import marker_watch
from tests.soak.marker_watch import MarkerWatch

ARTIFACTS: dict[int, list[Any]] = {
    4: [SimpleNamespace(sink="table", epoch_id=4), SimpleNamespace(sink="files", epoch_id=4)],
    5: [SimpleNamespace(sink="files", epoch_id=5)],  # nothing for the table
    6: [SimpleNamespace(sink="table", epoch_id=6), SimpleNamespace(sink="files", epoch_id=6)],
}


class Job:
    """A `Jet`, and its job, which has decided so much, and says so much of its sinks."""

    def __init__(
        self,
        decided: int | None,
        ledger: Mapping[str, int | None] | None = None,
        consistent: int | None = None,
        origin: LedgerOrigin = LedgerOrigin.MARKERS,
    ) -> None:
        self.decided, self.consistent = decided, consistent
        self.entries = {
            sink: LedgerEntry(sink, epoch, decided or 0, origin)
            for sink, epoch in (ledger or {}).items()
        }

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def job(self, name: str) -> Job:
        return self

    def record(self) -> Any:
        snapshot = None if self.decided is None else SimpleNamespace(epoch_id=self.decided)
        return SimpleNamespace(snapshot=snapshot)

    def ledger(self) -> Any:
        return SimpleNamespace(entries=self.entries, consistent_epoch=self.consistent)

    def snapshots(self) -> Any:
        return [SimpleNamespace(snapshot_id=10 * epoch) for epoch in ARTIFACTS]

    def manifest(self, snapshot: int) -> Any:
        epoch = snapshot // 10
        return SimpleNamespace(epoch_id=epoch, artifacts=ARTIFACTS[epoch])


def watch(**markers: int) -> MarkerWatch:
    return MarkerWatch((), {sink: lambda epoch=epoch: epoch for sink, epoch in markers.items()})


def test_a_sink_that_is_ahead_is_told() -> None:
    watching = MarkerWatch((), {})
    for epoch in (0, 3, 4):
        watching._compare("to_table", epoch, 4)
    assert watching.ahead == [] and watching.looked == {"to_table": 2}, "0: no marker yet"
    watching._compare("to_table", 5, 4)
    assert watching.ahead == ["to_table has epoch 5, the record 4"]


def test_a_marker_without_a_decision_is_told() -> None:
    watching = watch(table=1)
    watching._look(Job(None))
    assert watching.ahead == ["table has epoch 1, the record 0"]


def test_a_ledger_that_is_as_far_as_the_markers_is_true() -> None:
    watching = watch(table=4, files=6)
    watching._look(Job(6, {"table": 5, "files": 6}, consistent=5))
    assert watching.broken() == [], "epoch 5 has nothing for the table"
    assert watching.asked == {"table": 1, "files": 1}


def test_a_ledger_that_is_ahead_of_a_sink_is_told() -> None:
    watching = watch(table=4, files=6)
    watching._look(Job(6, {"table": 6, "files": 6}, consistent=5))
    assert watching.ahead == ["the ledger says 6: table has to have epoch 6, and has 4 (markers)"]


def test_a_consistent_epoch_that_is_ahead_of_a_sink_is_told() -> None:
    watching = watch(table=4, files=6)
    watching._look(Job(6, {"table": 5, "files": 6}, consistent=6))
    assert watching.ahead == [
        "the consistent epoch says 6: table has to have epoch 6, and has 4 (markers)"
    ]


def test_what_the_record_says_for_a_sink_is_no_answer_of_it_and_has_to_be_true() -> None:
    watching = watch(table=4)
    said = Job(6, {"table": 6}, origin=LedgerOrigin.RECORD)
    watching._look(said)
    assert watching.asked == {}
    ahead, unasked = watching.broken()
    assert ahead.endswith("has 4 (record)")
    assert unasked == "['table'] never told the ledger anything"


def test_a_sink_that_hides_its_markers_is_not_compared_with_the_ledger() -> None:
    watching = MarkerWatch((), {"table": lambda: 4}, hidden={"table"})
    watching._look(Job(6, {"table": 6}, consistent=6))
    assert watching.broken() == []


def test_a_store_that_does_not_answer_is_asked_again() -> None:
    def fails() -> Any:
        raise StoreUnavailableError("no majority")

    watching, job = watch(table=4), Job(6, {"table": 5}, consistent=5)
    job.snapshots = fails
    watching._look(job)
    assert watching.looked == {"table": 1} and watching.asked == {}


def test_a_watch_that_dies_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise LookupError("a reader is wrong")

    monkeypatch.setattr(marker_watch, "Jet", lambda store: Job(4))
    watching = MarkerWatch((), {"table": fails})
    watching.start()
    watching.stop()
    assert watching.broken()[0] == (
        "the watch of the markers is dead: LookupError: a reader is wrong"
    )


def test_the_newest_epoch_of_a_folder_is_found(tmp_path: Path) -> None:
    read = FileMarkers(tmp_path)
    assert read() == 0
    (tmp_path / "_epochs").mkdir()
    for name in ("0000000009.json", "0000000010.json", ".owner.json"):
        (tmp_path / "_epochs" / name).touch()
    assert read() == 10
