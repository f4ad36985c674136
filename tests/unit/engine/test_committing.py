"""Phase 2 that cannot go on: retried, and given up in order."""

from __future__ import annotations

import errno
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from dagster_jet.engine.committing import SinkCommitter
from dagster_jet.engine.stopping import StopSignal
from dagster_jet.errors import FencedError, Reaction, SinkError
from dagster_jet.snapshot.protocol import StopKind


class Full:
    """A sink whose disk is full, until it has been tried `tries` times."""

    def __init__(self, tries: int = 10**9) -> None:
        self.left = tries

    def commit(self, artifacts: Any, context: Any) -> None:
        self.left -= 1
        if self.left >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")

    def describe(self) -> dict[str, str]:
        return {"kind": "files", "path": "/out"}


def committer(sink: Full, kind: StopKind | None = None) -> tuple[SinkCommitter, list[str]]:
    told: list[str] = []
    node: Any = SimpleNamespace(name="out", sink=sink)
    record: Any = SimpleNamespace(line=1, execution_id=1)
    stop = StopSignal(kind)
    fenced = threading.Event()
    return SinkCommitter("j", [node], False, lambda: record, fenced, told.append, stop), told


ARTIFACT: Any = SimpleNamespace(sink="out")


def test_it_is_retried_until_there_is_room_although_a_stop_is_wanted_that_commits() -> None:
    one, told = committer(Full(2), StopKind.SUSPEND)
    one.commit([ARTIFACT], recovering=False)
    assert len(told) == 2 and "out (/out): commit is being retried" in told[0]


@pytest.mark.parametrize(
    "kind, reaction", [(StopKind.CANCEL, Reaction.FAIL), (StopKind.SHUTDOWN, Reaction.RESTART)]
)
def test_a_stop_at_once_ends_it(kind: StopKind, reaction: Reaction) -> None:
    one, _ = committer(Full(), kind)
    with pytest.raises(SinkError, match="the next start commits it") as given_up:
        one.commit([ARTIFACT], recovering=True)
    assert given_up.value.reaction is reaction and given_up.value.stage == "out"


def test_the_end_of_the_execution_ends_it() -> None:
    one, _ = committer(Full())
    threading.Timer(0.05, one.give_up).start()
    with pytest.raises(SinkError, match="Nothing is lost"):
        one.commit([ARTIFACT], recovering=False)


def test_a_fenced_one_leaves_it_to_its_successor() -> None:
    one, _ = committer(Full())
    one.fenced.set()
    with pytest.raises(FencedError):
        one.commit([ARTIFACT], recovering=False)
