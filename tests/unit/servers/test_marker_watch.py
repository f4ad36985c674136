"""The soak's watch sees a sink that is ahead of what is decided."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.soak.three_sinks_watch import MarkerWatch


def decided(epoch: int | None) -> Any:
    """A `Jet` whose job has decided so much."""
    snapshot = None if epoch is None else SimpleNamespace(epoch_id=epoch)
    return SimpleNamespace(record=lambda name: SimpleNamespace(snapshot=snapshot))


def test_a_sink_that_is_ahead_is_told(tmp_path: Path) -> None:
    watch = MarkerWatch((), "", "", tmp_path)
    for epoch in (0, 3, 4):
        watch._compare("to_table", epoch, decided(4))
    assert watch.ahead == [] and watch.looked == {"to_table": 2}, "0: no marker yet"
    watch._compare("to_table", 5, decided(4))
    watch._compare("to_kafka", 1, decided(None))
    assert watch.ahead == [
        "to_table has epoch 5, the record 4",
        "to_kafka has epoch 1, the record 0",
    ]


def test_the_newest_epoch_of_a_folder_is_found(tmp_path: Path) -> None:
    watch = MarkerWatch((), "", "", tmp_path)
    assert watch._of_parquet() == 0
    (tmp_path / "_epochs").mkdir()
    for name in ("0000000009.json", "0000000010.json", ".owner.json"):
        (tmp_path / "_epochs" / name).touch()
    assert watch._of_parquet() == 10
