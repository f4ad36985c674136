"""What a changed pipeline means for the state of the last snapshot, before anything stops.

State and positions are matched by stage name. A stage that is still there but means something else
by its state, or one that is gone, would lose what exists nowhere else: both are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

Columns = Mapping[str, Mapping[str, str]]
StagePlan = Mapping[str, Any]
"""What a stage's saved state means, as JSON: kind, format of the state, what it depends on, and
its `COLUMNS`. Stored in every manifest."""

COLUMNS = "columns"
"""By role, the types of the state's columns. Only what has analysed the pipeline knows them; a plan
without says nothing about them."""
KEYS = "keys"
"""The role of columns by which rows are found: of others, or in another order, the hash is another.
A stage that deduplicates whole rows names none in its pipeline, and has all columns here."""

PLAIN = "plain"
"""The names of what users' code keeps in the state that is saved as plain values. Whatever else it
keeps is pickled; so is all of it where a plan does not say."""

EVENT_TIME = "event_time"
"""How event times were read from their columns; a plan without: as they stand there."""

_JUDGED_APART = ("format", EVENT_TIME, COLUMNS, PLAIN)


class Change(Enum):
    """What becomes of one stage's state or position."""

    KEPT = "kept"
    """It goes on from the snapshot."""
    NEW = "new"
    """It starts empty; a source starts from its beginning."""
    DROPPED = "dropped"
    """The snapshot has state of it, the pipeline has no stage of the name."""
    INCOMPATIBLE = "incompatible"
    """The stage is there, but its state would not mean the same."""


@dataclass(frozen=True)
class StageChange:
    """The answer for one stage."""

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
    """Compares the plan that a snapshot was taken with to the plan of a pipeline."""
    changes = [
        StageChange(stage, str(plan["kind"]), *_change(saved.get(stage), plan))
        for stage, plan in wanted.items()
    ]
    gone = [stage for stage in saved if stage not in wanted]
    changes += [
        StageChange(stage, str(saved[stage].get("kind", "")), Change.DROPPED) for stage in gone
    ]
    return tuple(changes)


def _change(saved: StagePlan | None, wanted: StagePlan) -> tuple[Change, str]:
    if saved is None:
        return Change.NEW, ""
    if saved.get(EVENT_TIME) != wanted.get(EVENT_TIME):
        had, has = (plan.get(EVENT_TIME, "as the column has it") for plan in (saved, wanted))
        return Change.INCOMPATIBLE, f"the event time of its rows was {had}, is {has}"
    if saved.get("format", 1) > wanted.get("format", 1):
        return Change.INCOMPATIBLE, "its state was written by a newer version of dagster-jet"
    compared = [name for name in wanted if name in saved and name not in _JUDGED_APART]
    differing = [
        f"{name} was {saved[name]!r}, is {wanted[name]!r}"
        for name in compared
        if saved[name] != wanted[name]
    ]
    pickled = sorted(set(wanted.get(PLAIN, ())) - set(saved.get(PLAIN, ())))
    if pickled and not differing:
        # Only a pipeline that asks for it by name reads pickles: what a snapshot says of itself
        # may have been written by anybody who can write to a member.
        return Change.INCOMPATIBLE, (
            f"its {', '.join(pickled)} were saved with pickle, and reading a pickle runs what it "
            'says; to go on from it say state_format="pickle"'
        )
    # What reads an older format judges the columns of that itself.
    same_format = saved.get("format") == wanted.get("format")
    if not differing and same_format and COLUMNS in saved and COLUMNS in wanted:
        differing = list(_column_changes(saved[COLUMNS], wanted[COLUMNS]))
    if differing:
        return Change.INCOMPATIBLE, "; ".join(differing)
    return Change.KEPT, ""


def _column_changes(saved: Columns, wanted: Columns) -> Iterator[str]:
    """What a restore could not read under today's columns, or would read and never find."""
    keys, now = list(saved[KEYS]), list(wanted[KEYS])
    if keys != now:
        yield f"its state has the keys {keys}, they are {now} now"
        return
    for role, columns in wanted.items():
        had = saved.get(role, {})
        for name, kind in columns.items():
            if name not in had:
                yield f"its state has no column {name!r}, which it needs now"
            elif had[name] != kind:
                yield f"its state has {name!r} as {had[name]}, it is {kind} now"
