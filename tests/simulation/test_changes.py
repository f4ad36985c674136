"""A job loses no snapshot while an operator changes the members of its store, and both die.

Histories are played from seeds; a failure names its seed. The mutants show that the histories are
hard enough: each of these mistakes is found.
"""

import json
import os
from typing import Any

import pytest

from dagster_jet.store import MapKey, OwnedRegister, Store, connection
from dagster_jet.store.membership import with_registers_moved
from dagster_jet.store.upkeep import administration
from dagster_jet.store.upkeep.migration import Migrated, migrate
from tests.long import long
from tests.simulation.changes import PARTITIONS, ChangeHistory, content
from tests.simulation.rebalancing import Violation
from tests.simulation.seeds import beginning_with

SEEDS = int(os.environ.get("JET_CHANGE_HISTORIES", "30"))


class WithoutBackups(ChangeHistory):
    """Every chunk is in one place only: what is missing there is missing."""

    BACKUPS = 0
    CHANGES = ("add", "remove")


@pytest.mark.parametrize("kind", [ChangeHistory, pytest.param(WithoutBackups, marks=long)])
def test_no_history_loses_a_snapshot(kind: type[ChangeHistory]) -> None:
    executions = changes = 0
    for seed in range(SEEDS):
        history = kind(seed)
        try:
            history.play()
        except BaseException as error:
            raise AssertionError(f"{kind.__name__}({seed}).play()") from error
        executions += history.executions
        changes += history.changes
    assert executions > 2 * SEEDS
    assert changes > 1.5 * SEEDS


class DecidesUnderTheNewMembers(WithoutBackups):
    """Writes chunks by the former table, and names them in the record of the new members."""

    def _snapshot(self, store: Store, owned: OwnedRegister) -> None:
        handle = store.handle()
        for _ in range(self.random.randint(0, 1_000)):
            self.interleaving.step()
        chunks = [MapKey(partition, f"late {owned.sequence}") for partition in range(PARTITIONS)]
        handle.map("state").put_all({chunk: content(chunk) for chunk in chunks})
        store.refresh()
        owned = self._restore(store)
        decision = json.dumps([[chunks[0].name]]).encode()
        self.decided.add(decision)
        owned.write(decision)
        self.decided = {decision}


def test_chunks_of_the_former_table_must_not_be_decided_under_the_new_members() -> None:
    """Why ``StoreHandle.configuration_number`` must be the record's."""
    with pytest.raises(Violation):
        for seed in beginning_with(493, 2_000):  # the only one below 500
            DecidesUnderTheNewMembers(seed).play()


def _registers_stay(admin: Any, view: connection.View) -> connection.View:
    if view.metadata.registers_have_moved:
        return view
    return admin._connection.decide(view, with_registers_moved(view.metadata))


_move_registers = administration.Administration._move_registers


def _copied_before_registers_move(admin: Any, view: connection.View) -> connection.View:
    if not view.metadata.registers_have_moved:
        migrate(view.members, view.metadata.routing, check_still_ours=lambda: None)
    return _move_registers(admin, view)


@pytest.mark.parametrize(
    "mistakes",
    [
        {(administration.Administration, "_move_registers"): _registers_stay},
        {(administration, "migrate"): lambda *_, **__: Migrated()},
        {
            (administration.Administration, "_move_registers"): _copied_before_registers_move,
            (administration, "migrate"): lambda *_, **__: Migrated(),
        },
    ],
    ids=["registers stay", "nothing is copied", "copied before registers move"],
)
def test_a_mistake_is_found(
    monkeypatch: pytest.MonkeyPatch, mistakes: dict[tuple[Any, str], Any]
) -> None:
    for (place, name), mistake in mistakes.items():
        monkeypatch.setattr(place, name, mistake)
    with pytest.raises(Violation):
        for seed in range(500):
            WithoutBackups(seed).play()
