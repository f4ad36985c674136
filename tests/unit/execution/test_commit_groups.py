"""Sinks of one place are committed in one step, and one by one where it has no such step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from dagster_jet.contract import CommitPart, Committer
from dagster_jet.errors import SinkError
from dagster_jet.snapshot.protocol import StopKind

from .test_sink_committer import ARTIFACT, FULL, Full, Panic, Phase2

PLACE = "a catalog"


class Joint(Full):
    """A sink of a place that commits several in one step, unless `has_step` is false."""

    def __init__(self, place: str | None = PLACE, *, has_step: bool = True, tries: int = 0) -> None:
        super().__init__(0)
        self.place, self.has_step, self.tries = place, has_step, tries
        self.steps: list[list[str]] = []
        self.alone = 0

    def commit(self, artifacts: Any, context: Any) -> None:
        self.alone += 1

    def together_with(self) -> str | None:
        return self.place

    def commit_together(self, parts: Sequence[CommitPart]) -> bool:
        self.steps.append([one.context.sink for one in parts])
        assert any(one.committer is self for one in parts)
        assert all(a.sink == one.context.sink for one in parts for a in one.artifacts)
        self.tries -= 1
        if self.tries >= 0:
            raise FULL
        return self.has_step

    def output_facts(self) -> dict[str, int]:
        return {"snapshot_id": 3}


def commit(sinks: Mapping[str, Any], stop: StopKind | None = None) -> Phase2:
    phase2 = Phase2(sinks, stop)
    phase2.commit([replace(ARTIFACT, sink=name) for name in sinks])
    return phase2


def test_sinks_of_one_place_are_committed_in_one_step() -> None:
    a, b, c, d = Joint(), Joint("another"), Joint(), Joint(None)
    phase2 = commit({"a": a, "b": b, "c": c, "d": d, "e": Full(0)})
    assert a.steps == [["a", "c"]] and not c.steps and (a.alone, c.alone) == (0, 0)
    assert not b.steps and b.alone == 1 and d.alone == 1, "nobody shares their place"
    assert set(phase2.committer.took_ms) == {*"abcde"} and not phase2.committer.pending(0)
    assert set(phase2.committer.facts) == {*"abcd"}


def test_a_place_without_the_step_gets_commits_one_by_one() -> None:
    a, b = Joint(has_step=False), Joint(has_step=False)
    phase2 = commit({"a": a, "b": b})
    assert a.steps == [["a", "b"]] and (a.alone, b.alone) == (1, 1)
    assert set(phase2.committer.facts) == {*"ab"} and not phase2.committer.pending(0)


def test_a_panic_of_one_of_them_is_no_commit() -> None:
    class Panics(Joint):
        def commit(self, artifacts: Any, context: Any) -> None:
            raise Panic

    sinks = {"a": Joint(has_step=False), "b": Panics(has_step=False)}
    with pytest.raises(Panic):
        commit(sinks)
    assert sinks["a"].alone == 1


def test_a_step_is_retried_and_each_of_its_sinks_says_why() -> None:
    shown: list[Mapping[str, Any]] = []

    class Asked(Joint):
        def commit_together(self, parts: Sequence[CommitPart]) -> bool:
            shown.append(phase2.committer.pending(9))
            return super().commit_together(parts)

    a, b = Asked(tries=2), Joint()
    phase2 = Phase2({"a": a, "b": b}, StopKind.SUSPEND)
    phase2.commit([replace(ARTIFACT, sink=name) for name in "ab"])
    assert len(a.steps) == 3 and "a, b (/out, /out): commit is being retried" in phase2.told[0]
    assert {name: one.error for name, one in shown[-1].items()} == {n: str(FULL) for n in "ab"}
    assert not phase2.retrying.errors


def test_a_step_that_fails_is_a_failure_of_the_job() -> None:
    class Gone(Joint):
        def commit_together(self, parts: Sequence[CommitPart]) -> bool:
            raise SinkError("the table is gone.", stage="b")

    a, b, c = Gone(), Joint(), Joint("another")
    with pytest.raises(SinkError, match="the table is gone"):
        commit({"a": a, "b": b, "c": c})
    assert (a.alone, b.alone, c.alone) == (0, 0, 1)


def test_half_of_the_capability_is_refused() -> None:
    with pytest.raises(TypeError, match="together_with, but not commit_together"):

        class Half(Committer):
            def together_with(self) -> str:
                return PLACE
