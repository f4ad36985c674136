"""Output that a decided snapshot owes is committed where it was staged, whatever the pipeline is
now."""

from __future__ import annotations

from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.snapshot.owed import SinkChange, names_at_place, owed_commits, present_name

HERE, THERE = ({"kind": "files", "path": path} for path in ("/here", "/there"))


def artifact(sink: str, epoch_id: int) -> Artifact:
    return Artifact(sink, epoch_id, f"{sink}-{epoch_id}", "", rows=3, bytes=8, checksum=7)


STAGED = tuple(artifact(sink, epoch_id) for epoch_id in (8, 9) for sink in ("a", "b", "c"))


def test_each_artifact_is_owed_to_the_place_that_the_snapshot_names() -> None:
    named = {"a": HERE, "b": HERE, "c": HERE, "idle": HERE}
    kept, moved, left = owed_commits(STAGED, named, {"a": HERE, "b": THERE, "new": HERE})
    assert [(o.sink, o.change) for o in (kept, moved, left)] == [
        ("a", SinkChange.KEPT),
        ("b", SinkChange.MOVED),
        ("c", SinkChange.LEFT),
    ]
    assert all(owed.destination == HERE for owed in (kept, moved, left))
    assert {a for owed in (kept, moved, left) for a in owed.artifacts} == set(STAGED)
    assert (left.rows, left.epoch_ids) == (6, (8, 9))


def test_a_sink_has_its_present_name_where_its_place_stayed() -> None:
    named = {"a": HERE, "b": HERE, "c": HERE, "d": HERE}
    today = {"a": HERE, "new b": HERE, "new c": THERE}
    renamed = {"a": "new b", "b": "new b", "c": "new c", "d": "gone"}
    found = {sink: present_name(sink, named, today, renamed) for sink in named}
    assert found == {"a": "a", "b": "new b", "c": None, "d": None}
    assert present_name("b", named, today, {}) is None


def test_a_place_is_found_under_a_new_name_without_a_word() -> None:
    """Going back with a renamed sink must not write rows again because nobody said its name."""
    named = {"a": HERE, "b": HERE, "c": THERE}
    today = {"a": HERE, "new b": HERE}
    found = {sink: names_at_place(sink, named, today, {}) for sink in named}
    assert found == {"a": ("a",), "b": ("new b",), "c": ()}
    assert names_at_place("b", named, today, {"b": "new b"}) == ("new b",)
