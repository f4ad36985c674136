"""State that a start renames or drops by word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.adaptation import Adaptation, needed
from dagster_jet.snapshot.manifest import ChunkSet, Counters, Manifest
from dagster_jet.snapshot.plan import Change, compare_plans

HOURLY = {"kind": "aggregate", "format": 1, "keys": ["k"], "frames": [1, 0]}
SAVED: dict[str, Any] = {"rows": {"kind": "source"}, "hourly": HOURLY}


def manifest(**fields: Any) -> Manifest:
    chain = ((ChunkSet("hourly/1-1-0-a", 1, 1, 1, 1),),)
    given = {
        "plan": SAVED,
        "sources": {"rows": 1},
        "shards": {"rows": ((),), "hourly": chain},
        "counters": {"rows": Counters(5), "hourly": Counters(5), "out": Counters(2)},
        "watermarks": {
            "nodes": {"rows.timestamps": 1},
            "partitions": {"rows.timestamps": {}},
            "reached_ms": {"hourly": 7},
            "dead_until_ms": {"hourly": 6},
            "held_back_by": {"hourly": None},
        },
        "sinks": {"out": {"kind": "files"}},
        **fields,
    }
    whole = {"watermarks": {}, "artifacts": (), **given}
    return Manifest("j", 1, 1, 1, 1, "", 7, **whole)


def test_all_that_is_saved_of_a_stage_and_a_source_has_the_present_name() -> None:
    wanted = {"events": SAVED["rows"], "sums": HOURLY}
    words = Adaptation({"rows": "events", "hourly": "sums"})
    found = words.manifest(manifest(), wanted)
    assert found.plan == wanted
    assert found.sources == {"events": 1} and set(found.shards) == {"events", "sums"}
    assert set(found.counters) == {"events", "sums", "out"} and set(found.sinks) == {"out"}
    assert found.watermarks == {
        "nodes": {"events.timestamps": 1},
        "partitions": {"events.timestamps": {}},
        "reached_ms": {"sums": 7},
        "dead_until_ms": {"sums": 6},
        "held_back_by": {"sums": None},
    }
    assert words.manifest(found, wanted) == found, "the next start has the same words"


def test_only_state_that_cannot_be_used_is_dropped() -> None:
    words = Adaptation(dropped=frozenset({"hourly", "rows"}))
    kept = words.manifest(manifest(), SAVED)
    assert kept == manifest()
    other = {**SAVED, "hourly": {**HOURLY, "keys": ["v"]}}
    found = words.manifest(manifest(), other)
    assert set(found.plan) == set(found.shards) == {"rows"}
    assert found.watermarks["reached_ms"] == {"hourly": 7}, "results up to it are there"
    assert found.watermarks["dead_until_ms"] == {}
    assert {c.stage: c.change for c in compare_plans(found.plan, other)} == {
        "rows": Change.KEPT,
        "hourly": Change.NEW,
    }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (Adaptation({"hourly": "nothing"}), "no source or stateful stage 'nothing'"),
        (Adaptation({"rows": "hourly"}), "still has 'rows'"),
    ],
)
def test_words_that_name_nothing_are_refused(words: Adaptation, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        words.manifest(manifest(), SAVED)


def test_two_states_are_not_renamed_to_one_stage() -> None:
    saved = {**SAVED, "daily": HOURLY}
    wanted = {"rows": SAVED["rows"], "sums": HOURLY}
    words = Adaptation({"hourly": "sums", "daily": "sums"})
    with pytest.raises(ConfigurationError, match=r"'sums': renamed: .*'hourly' and of 'daily'"):
        words.manifest(manifest(plan=saved), wanted)
    assert set(words.manifest(manifest(), wanted).plan) == set(wanted), "it has one of them"
    words = Adaptation({"hourly": "sums"}, frozenset({"daily"}))
    assert set(words.manifest(manifest(plan=saved), wanted).plan) == set(wanted)


def test_prepared_transactions_are_not_dropped() -> None:
    words = Adaptation(dropped=frozenset({"hourly"}))
    with pytest.raises(ConfigurationError, match=r"stage 'hourly': dropped_state: .*prepared"):
        words.manifest(manifest(prepared=("hourly",)), {"rows": SAVED["rows"]})


def test_state_is_dropped_once_its_transactions_are_committed() -> None:
    """The manifest is written before phase 2; the record says that it is over."""
    written = manifest(prepared=("hourly",), unacknowledged={"rows": {"m1": 7}})
    decided = written.ref(1, 0)
    words = Adaptation(dropped=frozenset({"hourly"}))
    assert not decided.committed and written.as_of(decided) == written
    for ref in (replace(decided, committed=True), replace(decided, committed=True, holds=True)):
        found = words.manifest(written.as_of(ref), {"rows": SAVED["rows"]})
        assert set(found.plan) == {"rows"} and not found.prepared
        assert found.unacknowledged == written.unacknowledged, (
            "the acknowledgement may be unconfirmed"
        )


@pytest.mark.parametrize(
    ("wanted", "needs"),
    [
        (SAVED, Adaptation()),
        ({"rows": SAVED["rows"], "sums": HOURLY}, Adaptation({"hourly": "sums"})),
        ({"rows": SAVED["rows"]}, Adaptation(dropped=frozenset({"hourly"}))),
        (
            {"rows": SAVED["rows"], "a": HOURLY, "b": HOURLY},
            Adaptation(dropped=frozenset({"hourly"})),
        ),
        (
            {**SAVED, "hourly": {**HOURLY, "keys": []}},
            Adaptation(dropped=frozenset({"hourly"})),
        ),
    ],
)
def test_what_a_change_needs(wanted: dict[str, Any], needs: Adaptation) -> None:
    assert needed(compare_plans(SAVED, wanted), SAVED, wanted) == needs
    adapted = needs.plan(SAVED, wanted, "j")
    assert not any(change.is_refused for change in compare_plans(adapted, wanted))


def test_words_that_this_snapshot_does_not_need_are_said() -> None:
    wanted = {"events": SAVED["rows"], "hourly": HOURLY}
    words = Adaptation({"rows": "events", "old": "hourly"}, frozenset({"hourly", "hourley"}))
    assert words.without_effect(SAVED, wanted) == [
        "renamed 'old': the snapshot has no state of that name",
        "dropped_state 'hourley': the snapshot has no state of that name",
        "dropped_state 'hourly': the pipeline can use its state, which stays",
    ]
    after = {"events": SAVED["rows"], "hourly": HOURLY, "rows": SAVED["rows"]}
    assert Adaptation({"rows": "events"}).without_effect(after, wanted) == [
        "renamed 'rows': the snapshot has state of 'events' already"
    ]
    gone = Adaptation(dropped=frozenset({"hourly"}))
    assert gone.without_effect(SAVED, {"rows": SAVED["rows"]}) == []
