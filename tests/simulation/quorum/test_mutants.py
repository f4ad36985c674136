"""Every planted mistake is seen, and says its name."""

from __future__ import annotations

import pytest

from dagster_jet.store.register import acceptor_step

from . import scope
from .mutants import MUTANTS, Cast
from .scopes import two_movers_in_a_dispute
from .world import Violation, play

SEEDS = 500

CLOSER: dict[str, dict[str, float]] = {
    # Old members are used on for long, and a request's steps lie apart.
    name: {"change": 0.05, "late": 0.9, "haste": 0.3, "unrest": 0, "loss": 0, "patience": 0.03}
    for name in ("begins_below_the_floor", "lists_before_the_floor")
}
"""Odds that make the rare situation of a mistake more likely."""

DISPUTES = (
    "InstallsWhatTheSealFound",
    "keeps_its_own_at_install",
    "PrefersTheNewestToTheChosen",
)
"""Mistakes that show only where two movers meet a write and a claim that passed it over: too rare
for seeds."""


@pytest.mark.parametrize("mistake", sorted(set(MUTANTS) - set(DISPUTES)))
def test_a_planted_mistake_is_seen_in_some_history(mistake: str) -> None:
    for seed in range(SEEDS):
        try:
            play(seed, MUTANTS[mistake], **CLOSER.get(mistake, {}))
        except Violation as violation:
            print(f"{mistake}: {described(MUTANTS[mistake])}\n  seed {seed}: {violation}")
            return
    pytest.fail(f"{mistake} survived {SEEDS} histories")


@pytest.mark.parametrize("mistake", DISPUTES)
def test_a_planted_mistake_is_seen_in_a_dispute_of_movers(mistake: str) -> None:
    with pytest.raises(scope.Violation, match="not linearizable") as violation:
        two_movers_in_a_dispute(0, reads=2, cast=MUTANTS[mistake]).explore(200_000)
    print(f"{mistake}: {described(MUTANTS[mistake])}\n{violation.value}")


@pytest.mark.parametrize("mistake", sorted(CLOSER))
def test_without_the_mistake_the_closer_look_sees_nothing(mistake: str) -> None:
    for seed in range(60):
        play(seed, **CLOSER[mistake])


@pytest.mark.parametrize("mistake", sorted(MUTANTS))
def test_every_mistake_is_described(mistake: str) -> None:
    assert described(MUTANTS[mistake])


def described(cast: Cast) -> str:
    real = Cast()
    changed = [getattr(cast, f) for f in vars(cast) if getattr(cast, f) is not getattr(real, f)]
    assert len(changed) == 1
    assert changed[0] is not acceptor_step
    return (changed[0].__doc__ or "").strip()
