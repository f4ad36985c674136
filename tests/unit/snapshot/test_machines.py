"""The tables of legal moves: whole, with an end that can be reached, and one place that moves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dagster_jet import snapshot
from dagster_jet.snapshot.epoch_cycle import CycleState, EpochCycle
from dagster_jet.snapshot.machine import IllegalMoveError, Machine
from dagster_jet.snapshot.pending_snapshot import PendingSnapshot, PendingState
from dagster_jet.snapshot.recovery import Recovery, RecoveryState

MACHINES = (
    (Recovery, RecoveryState, RecoveryState.CLAIMING),
    (EpochCycle, CycleState, CycleState.RECOVERING),
    (PendingSnapshot, PendingState, PendingState.NONE),
)


@pytest.mark.parametrize(("machine", "states", "first"), MACHINES)
def test_every_state_has_its_moves_and_can_be_reached(machine, states, first) -> None:
    assert machine.moves.keys() == set(states)
    reached, todo = {first}, [first]
    while todo:
        new = machine.moves[todo.pop()] - reached
        reached |= new
        todo += new
    assert reached == set(states)


def test_an_illegal_move_is_refused_and_changes_nothing() -> None:
    class Door(Machine[RecoveryState]):
        moves = Recovery.moves

    door = Door(RecoveryState.CLAIMING)
    with pytest.raises(IllegalMoveError, match="CLAIMING -> OVER"):
        door.become(RecoveryState.OVER)
    assert door.state is RecoveryState.CLAIMING


def test_nobody_assigns_a_state_but_become() -> None:
    assert snapshot.__file__ is not None
    for path in Path(snapshot.__file__).parent.glob("*.py"):
        if path.name != "machine.py":
            found = re.findall(r"\.state = ", path.read_text(encoding="utf-8"))
            assert not found, path.name
