"""Compares a changed pipeline with the last snapshot's state, before anything stops.

State and positions are matched by stage name. A stage whose state has a changed meaning, or that is
gone, would lose data that exists nowhere else; both are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from dagster_jet.core.durations import in_words

Columns = Mapping[str, Mapping[str, str]]
StagePlan = Mapping[str, Any]
"""Meaning of a stage's saved state as JSON: kind, format of the state, dependencies, and `COLUMNS`.
Stored in every manifest."""

COLUMNS = "columns"
"""Types of the state's columns by role. Known only after analysis of the pipeline; a plan without
this key makes no claim about columns."""
KEYS = "keys"
"""Role of the columns whose hash locates rows; other columns or another order change the hash. A
stage that deduplicates whole rows names none in its pipeline and has all columns here."""
VALUES = "values"
"""Role of what a stage's saved bytes hold by name: columns of rows, and values. A new one is null
in older states, so only types are compared."""

PLAIN = "plain"
"""Names of user state saved as plain values. Other state is pickled; without this key all of it."""

EVENT_TIME = "event_time"
"""Conversion of event times from their columns; without this key: none."""

FRAMES = "frames"
"""Slide (of a tumbling window: its size) and offset of windows, in ms; None: sessions."""

LEAD = "lead"
"""The last row of each key waits in the state for the next one; without this key: none does, or the
plan is of a version that did not say so."""

_LABELS = {FRAMES: "size or slide of its windows"}
_JUDGED_APART = ("format", EVENT_TIME, COLUMNS, PLAIN)


class Change(Enum):
    """Effect of a pipeline change on one stage's state or position."""

    KEPT = "kept"
    """The stage continues from the snapshot."""
    NEW = "new"
    """The stage starts empty; a source starts from its beginning."""
    DROPPED = "dropped"
    """The snapshot has state of the stage, the pipeline has no stage of the name."""
    INCOMPATIBLE = "incompatible"
    """The stage exists, but its state would have another meaning."""


@dataclass(frozen=True)
class StageChange:
    """Result for one stage."""

    stage: str
    kind: str
    change: Change
    reason: str = ""

    @property
    def is_refused(self) -> bool:
        return self.change in (Change.DROPPED, Change.INCOMPATIBLE)


def compare_plans(
    saved: Mapping[str, StagePlan], wanted: Mapping[str, StagePlan]
) -> tuple[StageChange, ...]:
    """Compares a snapshot's plan with a pipeline's plan."""
    changes = [
        StageChange(stage, str(plan["kind"]), *_change(saved.get(stage), plan))
        for stage, plan in wanted.items()
    ]
    gone = [stage for stage in saved if stage not in wanted]
    changes += [StageChange(stage, saved[stage]["kind"], Change.DROPPED) for stage in gone]
    return tuple(changes)


def _shown(name: str, plan: StagePlan) -> str:
    if name != FRAMES:
        return repr(plan[name])
    if not isinstance(plan[FRAMES], list):
        return f"none ({plan[FRAMES] or 'sessions'})"
    slide_ms, offset_ms = plan[FRAMES]
    return in_words(slide_ms) + (f" with offset {in_words(offset_ms)}" if offset_ms else "")


def _change(saved: StagePlan | None, wanted: StagePlan) -> tuple[Change, str]:
    if saved is None:
        return Change.NEW, ""
    if saved.get(EVENT_TIME) != wanted.get(EVENT_TIME):
        had, has = (plan.get(EVENT_TIME, "as the column has it") for plan in (saved, wanted))
        return Change.INCOMPATIBLE, f"the event time of its rows was {had}, is {has}"
    if saved.get("format", 1) > wanted.get("format", 1):  # a source has none
        return Change.INCOMPATIBLE, "its state was written by a newer version of dagster-jet"
    compared = [name for name in wanted if name in saved and name not in _JUDGED_APART]
    differing = [
        f"{_LABELS.get(name, name)} was {_shown(name, saved)}, is {_shown(name, wanted)}"
        + (f" (order={saved[name]!r} keeps it)" if name == "order" else "")
        for name in compared
        if saved[name] != wanted[name]
    ]
    if LEAD in saved and LEAD not in wanted:
        differing.append(
            "the last row of each key waits in its state for lead(), and would be lost without one"
        )
    pickled = sorted(set(wanted.get(PLAIN, ())) - set(saved.get(PLAIN, ())))
    if pickled and not differing:
        # Pickles are read only if the pipeline asks for it by name: anybody who can write to a
        # member may have written what a snapshot says of itself.
        return Change.INCOMPATIBLE, (
            f"its {', '.join(pickled)} were saved with pickle, and unpickling runs code from the "
            'snapshot; to restore them, set state_format="pickle"'
        )
    if not differing and COLUMNS in saved and COLUMNS in wanted:
        differing = list(_column_changes(saved[COLUMNS], wanted[COLUMNS]))
    if differing:
        return Change.INCOMPATIBLE, "; ".join(differing)
    return Change.KEPT, ""


def _column_changes(saved: Columns, wanted: Columns) -> Iterator[str]:
    """Yields changes that make saved rows unreadable, or readable but never found."""
    keys, now = list(saved[KEYS]), list(wanted[KEYS])
    if keys != now:
        yield f"its state has the keys {keys}, they are {now} now"
        return
    for role, columns in wanted.items():
        had = saved.get(role, {})
        for name, kind in columns.items():
            if name not in had:
                if role != VALUES:
                    yield f"its state has no column {name!r}, which it needs now"
            elif had[name] != kind:
                yield f"its state has {name!r} as {had[name]}, it is {kind} now"
