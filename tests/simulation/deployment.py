"""Pipeline and settings of one start of the job; it may begin from an older snapshot."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dagster_jet.core.guarantee import Guarantee

from .scenario import COUNT, PROMISES, ROW_SINK, SINKS, SOURCE, WINDOW, WINDOW_SINK

REOPENABLE, SEALED = "place", "sealed place"
"""Kinds of destinations: a sealed one is opened by a pipeline that has it, and by nobody else."""


@dataclass(frozen=True)
class SinkHere:
    """A sink as one deployment has it."""

    name: str
    place: str


@dataclass(frozen=True)
class Deployment:
    sinks: Mapping[str, SinkHere]
    """Sinks by what they are given (`SINKS`); without those that are dropped."""
    counts: bool = True
    """Whether the pipeline has the stage `COUNT`."""
    in_two_phases: bool = False
    kind: str = REOPENABLE
    initial_snapshot: int | str | None = None
    guarantee: Guarantee | None = None
    """Guarantee other than the scenario's."""

    @property
    def stages(self) -> tuple[str, ...]:
        """The stateful ones."""
        wanted = {WINDOW: True, COUNT: self.counts, PROMISES: self.in_two_phases}
        return tuple(stage for stage, is_there in wanted.items() if is_there)

    @property
    def plan(self) -> dict[str, Any]:
        return {name: {"kind": name} for name in (SOURCE, *self.stages)}

    @property
    def destinations(self) -> dict[str, dict[str, str]]:
        return {sink.name: {"kind": self.kind, "place": sink.place} for sink in self.sinks.values()}


AS_EVER = {stream: SinkHere(stream, stream) for stream in SINKS}


def changed(rng: random.Random) -> dict[str, SinkHere]:
    """Each sink as ever, at another place, under another name, or not at all."""
    found: dict[str, SinkHere] = {}
    for stream in (ROW_SINK, WINDOW_SINK):
        choices = (
            AS_EVER[stream],
            SinkHere(stream, f"{stream}/elsewhere"),
            SinkHere(f"{stream}_renamed", f"{stream}/renamed"),
            None,
        )
        chosen = rng.choices(choices, (5, 2, 2, 2))[0]
        if chosen is not None:
            found[stream] = chosen
    return found
