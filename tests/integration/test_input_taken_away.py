"""Input files that are deleted or rotated away at every moment: nothing goes missing in silence."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from dagster_jet import JobConfig, Pipeline, sinks, sources
from dagster_jet.connectors.files.files_source import FilesReader
from dagster_jet.errors import InputLostError
from dagster_jet.execution.events import InputLost
from dagster_jet.snapshot.record import JobStatus
from tests.long import long

from . import child
from .oracle import committed, input_rows
from .world import World


def move(files: list[Path], folder: Path) -> list[Path]:
    """Moves a file as `mv` does: names and times stay."""
    folder.mkdir(exist_ok=True)
    return [file.rename(folder / file.name) for file in files]


def test_files_are_taken_away_before_and_after_a_snapshot_has_them(world: World) -> None:
    """The driver dies behind the acks of an epoch, and before its decision."""
    world.fill()
    inbox = world.folder / "in/left"
    world.run_child("epoch.acked:4=kill")
    with world.jet() as jet:
        consumed = [Path(path) for path in jet.job(child.JOB).consumed_files("left")]
    assert consumed and inbox / "00003.json" not in consumed
    consumed = move(consumed, world.folder / "consumed")
    (early,) = move([inbox / "00003.json"], world.folder / "early")

    with pytest.raises(InputLostError) as told:
        world.run()
    for part in ("stage 'left'", f"{inbox}/00003.json (", "epochs 4", "Put the input back"):
        assert part in str(told.value)
    record = world.record()
    assert record is not None and record.status is JobStatus.FAILED

    move([early], inbox)
    assert world.run().status is JobStatus.COMPLETED
    with world.jet() as jet:
        assert len(jet.job(child.JOB).consumed_files("left")) == 5, "also those that are gone"
    move(consumed, inbox)
    world.assert_exactly_once()


@long  # the same kill is above, lost output is accepted in test_crashes.py
def test_a_loss_that_is_accepted_is_told(world: World) -> None:
    world.fill()
    world.run_child("epoch.acked:4=kill")
    lost = world.folder / "in/left/00003.json"
    lost.unlink()
    assert world.run(accept_loss=True).status is JobStatus.COMPLETED
    (told,) = world.events_of(InputLost)
    assert told.source == "left" and told.epoch_ids == (4,) and str(lost) in told.input[0]
    world.assert_exactly_once()  # of what is there


def test_a_file_that_goes_between_listing_and_loading(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is neither "Spark cannot plan the stage" nor a file that does not fit its
    schema."""
    world.fill()
    plan, taken = FilesReader.plan, []

    def plan_and_lose(self: FilesReader, max_rows: int) -> Any:
        split = plan(self, max_rows)
        for file in split or ():
            if file.path.endswith("left/00002.json") and not taken:
                taken.extend(move([Path(file.path)], world.folder / "taken"))
        return split

    monkeypatch.setattr(FilesReader, "plan", plan_and_lose)
    with pytest.raises(InputLostError, match=r"left/00002\.json.*removed before it was read"):
        world.run()
    move(taken, world.folder / "in/left")
    with world.jet() as jet:
        jet.run(child.crash_pipeline(world.folder), JobConfig(**child.CONFIG), until="completed")
    world.assert_exactly_once()


def test_a_source_that_was_away_from_the_pipeline_begins_anew(world: World) -> None:
    """Failed before: the start missed files of which an earlier snapshot had all rows."""

    def pipeline(*names: str) -> Pipeline:
        p = Pipeline("changing")
        for name in names:
            folder, out = f"{world.folder}/in/{name}", f"{world.folder}/{name}_out"
            rows = p.read_from(sources.files(folder, format="json", schema="ts long"), name=name)
            rows.write_to(sinks.files(out, format="json"), name=f"{name}_out")
        return p

    world.fill(2)
    with world.jet() as jet:
        jet.run(pipeline("left", "right"), until="drained")
        move([*(world.folder / "in/right").iterdir()], world.folder / "done")
        world.fill(1, first=2)
        jet.run(pipeline("left"), until="drained", dropped_state=["right"])
        jet.run(pipeline("left", "right"), until="drained")
    for name, read in (("left", ["in/left"]), ("right", ["done", "in/right"])):
        rows = [(row["ts"],) for folder in read for row in input_rows(world.folder / folder)]
        assert committed(world.folder / f"{name}_out", ["ts"]) == Counter(rows)
