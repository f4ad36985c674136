"""Options of a run: those in the code override those in its config."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from dagster_jet.orchestration.run_config import start_options

NOTHING = {
    "initial_snapshot": None,
    "repeat_output": False,
    "accept_loss": False,
    "refused_to_dead_letters": False,
}
SAID = {"until": "drained", "initial_snapshot": 41, "accept_loss": True}


@pytest.mark.parametrize(
    ("config", "given", "options"),
    [
        ({}, {}, {}),
        (SAID, {}, {"initial_snapshot": 41, "accept_loss": True}),
        (SAID, {"initial_snapshot": "kept"}, {"initial_snapshot": "kept", "accept_loss": True}),
        (SAID, {"initial_snapshot": 0}, {"initial_snapshot": 0, "accept_loss": True}),
        ({"accept_loss": False}, {"accept_loss": True}, {"accept_loss": True}),
        ({"initial_snapshot": None}, {}, {}),
        ({"standby": True}, {}, {"standby": True}),
    ],
)
def test_the_options_of_a_start(
    config: dict[str, Any], given: dict[str, Any], options: dict[str, Any]
) -> None:
    context = dg.build_op_context(op_config=config)
    assert start_options(context, {**NOTHING, **given}) == options
