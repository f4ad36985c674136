"""All histories of a small world, by exploration; how many states there were is printed (``-s``).

``late`` bounds how many requests arrive without their answer: late, again, or the answer is lost.
Losing requests, delaying them within an operation and reordering them is never bounded. ``make
soak`` (JET_SIMULATION_FULL_SCOPES=1) explores the larger scopes as well: minutes each.
"""

from __future__ import annotations

import os
import time

import pytest

from .scope import Begin, End, Order, Scope
from .scopes import owners, replacement, two_movers, two_movers_in_a_dispute

FULL = os.environ.get("JET_SIMULATION_FULL_SCOPES") == "1"

SCOPES = {
    "owners, late unbounded": (owners(None, reads=0), None),
    "a member is replaced, late 0": (replacement(0), 50_000),
    "two movers, late 0": (two_movers(0, reads=1), 50_000),
}
FULL_SCOPES = {
    "owners and a reader, late 0": (owners(0, reads=1), None),
    "owners and a reader, late 1": (owners(1, reads=1), None),
    "a member is replaced, late 0, whole": (replacement(0), None),
    "two movers, late 0, whole": (two_movers(0, reads=1), None),
    "two movers in a dispute, late 0": (two_movers_in_a_dispute(0, reads=1), None),
    "two movers, late 1": (two_movers(1, reads=1), 2_000_000),
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("scope", "states_max"),
    [pytest.param(*s, id=name) for name, s in (SCOPES | (FULL_SCOPES if FULL else {})).items()],
)
def test_every_history_of_a_small_world_is_linearizable(
    request: pytest.FixtureRequest, scope: Scope, states_max: int | None
) -> None:
    began = time.process_time()
    states = scope.explore(states_max)
    whole = "all" if states_max is None or states < states_max else "the first"
    print(
        f"\n{request.node.callspec.id}: {whole} {states:,} states, {scope.transitions:,} "
        f"transitions, {time.process_time() - began:.1f} s of CPU"
    )
    assert states > 1_000


# --- the judge ---------------------------------------------------------------------------------


def judged(*calls: Begin | End) -> bool:
    order: Order | None = Order(frozenset({(None, frozenset())}))
    for call in calls:
        assert order is not None
        order = order.after(call)
    return order is not None


def test_the_judge_knows_what_a_variable_answers() -> None:
    write = Begin(0, "write", b"x", 1)
    assert judged(write, Begin(2, "read"), End(2, None))
    assert judged(write, Begin(2, "read"), End(2, b"x"))
    assert not judged(write, End(0), Begin(2, "read"), End(2, None))
    assert not judged(Begin(2, "read"), End(2, b"x"))
    seen = (write, Begin(2, "read"), End(2, b"x"), Begin(2, "read"))
    assert judged(*seen, End(2, b"x"))
    assert not judged(*seen, End(2, None))


def test_the_judge_lets_no_write_come_to_light_after_a_higher_claim() -> None:
    claim = Begin(1, "claim", ballot=2)
    write = Begin(0, "write", b"x", 1)
    assert judged(write, claim, End(1, b"x"), Begin(2, "read"), End(2, b"x"))
    assert judged(write, claim, End(1, None), Begin(2, "read"), End(2, None))
    for fenced in ((write, claim, End(1, None)), (claim, End(1, None), write)):
        assert not judged(*fenced, Begin(2, "read"), End(2, b"x"))
        assert not judged(*fenced, End(0))
