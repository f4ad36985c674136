"""Modes in which `verify_processor` runs a processor."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Mode:
    """One way of splitting the input, taking snapshots and restarting."""

    name: str
    inbox_limit: int = 1
    snapshot_every: int = 0
    """Steps between snapshots; one more is taken before the first step. 0: never."""
    restore_every: int = 0
    """Snapshots between restarts, in which a new instance restores the last one. 0: never."""
    restores_in_the_middle: bool = False
    """A new instance is restored once, halfway through the input."""
    commits_before_restore: bool = True
    """False: the crash comes between the decision and phase 2."""
    fails_every: int = 0
    """Snapshots between discarded ones, whose phase 2 has success=False. 0: never."""
    parallelisms: tuple[int, ...] = (1,)
    """Numbers of instances; the next one is used at each restore."""
    overtaking: int = 0
    """At-least-once: number of steps taken after a barrier before the state is saved. They are
    repeated after a restore. Every expected item must then come at least once."""


LARGE = 1024

_PLAIN = (
    Mode("no snapshots, inbox limit 1"),
    Mode("no snapshots, large inbox", inbox_limit=LARGE),
)
_SNAPSHOTS = (
    Mode("restore after every snapshot", snapshot_every=1, restore_every=1),
    Mode(
        "restore after every snapshot, crash before phase 2",
        snapshot_every=1,
        restore_every=1,
        commits_before_restore=False,
    ),
    Mode("restore after every second snapshot", snapshot_every=1, restore_every=2),
    Mode("restore once, in the middle", snapshot_every=1, restores_in_the_middle=True),
    Mode("restore, large inbox", inbox_limit=LARGE, snapshot_every=1, restore_every=1),
    Mode("snapshots, never restored", snapshot_every=1),
    Mode("every second snapshot discarded", snapshot_every=1, fails_every=2),
)
_OVERTAKING = (
    Mode("one step overtakes the barrier", snapshot_every=1, restore_every=1, overtaking=1),
    Mode("three steps overtake the barrier", snapshot_every=1, restore_every=2, overtaking=3),
    Mode(
        "all that is left overtakes the barrier in the middle",
        snapshot_every=1,
        restores_in_the_middle=True,
        overtaking=LARGE,
    ),
)


def modes(*, snapshots: bool, overtaking: bool, parallelisms: tuple[int, ...] | None) -> list[Mode]:
    """Returns the modes to run.

    Args:
        snapshots: whether the processor takes part in snapshots.
        overtaking: whether items may overtake barriers, in at-least-once.
        parallelisms: also run several instances, changing their number at every restore.
    """
    chosen = [*_PLAIN, *(_SNAPSHOTS if snapshots else ())]
    if snapshots and overtaking:
        chosen += _OVERTAKING
    if parallelisms:
        chosen += [_with_instances(mode, parallelisms) for mode in chosen]
    return chosen


def _with_instances(mode: Mode, parallelisms: tuple[int, ...]) -> Mode:
    if mode.restores_in_the_middle:  # not into a single instance, which owns every key
        parallelisms = (parallelisms[0], max(parallelisms))
    return replace(mode, name=f"{mode.name}, instances {parallelisms}", parallelisms=parallelisms)
