"""A job dies, and starts again with another guarantee: every pair of them, at every fail point.

What a record names is committed whatever today's guarantee is; a switch into places with the
other's epochs is refused, and the job goes on with the guarantee that it had.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import permutations

import pytest

from dagster_jet.core.guarantee import Guarantee
from dagster_jet.snapshot import protocol as c
from dagster_jet.snapshot.coordinator import Coordinator
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Artifact, Manifest
from dagster_jet.snapshot.newest_output import output_after
from dagster_jet.snapshot.record import JobStatus, SnapshotRef
from dagster_jet.snapshot.recovery import Recovery

from .deployment import AS_EVER, Deployment
from .driver import Driver
from .oracle import Oracle, Violation
from .register import Register
from .scenario import ALL_POINTS, SINKS, Mishap, Odds, Point, Scenario
from .world import Cast, World

PAIRS = list(permutations(Guarantee, 2))
NONE = Guarantee.NONE


class SwitchingDriver(Driver):
    """Refuses what the engine's recovery and sinks refuse."""

    def _claim(self) -> None:
        found = self.world.register.read()
        is_new = found is None or found.is_new_for(self.config.guarantee)
        if is_new and any(sink.committed for sink in self.world.sinks.values()):
            self.world.seen["refused as a new job"] += 1
            self._end(restart=False)
            return
        super()._claim()

    def _perform(self, command: c.Command, view: CoordinatorView) -> None:
        if isinstance(command, c.AbortOrphans) and command.keep:
            manifest = self.world.chunks.read_manifest(command.keep[0].manifest_name)
            self._check_committed(manifest)
            here = self.deployment.destinations
            output = output_after(manifest, is_committed=True, lost=(), sinks=here, renamed={})
            if self.config.guarantee is NONE and output:
                self.world.seen["refused from scratch"] += 1
                self.answer(command, c.Failed("it would write all again", restartable=False))
                return
        super()._perform(command, view)

    def _check_committed(self, manifest: Manifest) -> None:
        for artifact in manifest.artifacts:
            if artifact.target not in self.world.sink_at(artifact.sink).committed:
                raise Violation(f"{artifact.token} is decided, and stays behind")


class SwitchingOracle(Oracle):
    """Rows may come twice where an execution below exactly-once has run."""

    is_exact = True

    def on_commit(self, artifact: Artifact, rows: tuple[int, ...]) -> None:
        self.is_exact &= artifact.token in self.named

    def _check_committed(self, manifest: Manifest, ref: SnapshotRef) -> None:
        for artifact in manifest.artifacts:
            if artifact.target not in self.sinks[artifact.sink].committed:
                raise Violation(f"{artifact.token} is said to be committed")

    def _check_last(self, newest: object) -> None:
        pass

    def judge(self, register: Register) -> None:
        record = register.read()
        if record is None or record.status is not JobStatus.COMPLETED:
            raise Violation(f"the history ended with {record and record.status}")
        staged = {token for sink in self.sinks.values() for token in sink.staged}
        if staged & self.named:
            raise Violation(f"decided, and still staged: {sorted(staged & self.named)}")
        for name in SINKS:
            rows = self.sinks[name].rows
            doubled = [row for row, count in rows.items() if count > 1]
            if set(rows) != self.input or (self.is_exact and doubled):
                raise Violation(f"{name} has {sorted(rows)}, twice {doubled}")


class SwitchingWorld(World):
    """Begins with one guarantee, dies at a point, and is started with another one."""

    def __init__(
        self,
        pair: tuple[Guarantee, Guarantee],
        point: Point,
        skip: int,
        recovery: type[Recovery],
    ) -> None:
        self.pair = pair
        seed = f"{pair} {point} {skip}"
        drawn = replace(
            Scenario.draw(random.Random(seed)),
            guarantee=pair[0],
            in_two_phases=False,
            changes=False,
            sealed=False,
            rewinds=False,
            damages=False,
            snapshot_interval_ms=0,
            rows=((1, 2, 3, 4, 5, 6, 7), (101, 102, 103)),
            odds=Odds().scaled(0),
            mishaps=(Mishap("crash", point, skip), Mishap("crash", point, 0)),
        )
        cast = Cast(
            driver=SwitchingDriver,
            oracle=SwitchingOracle,
            coordinator=partial(Coordinator, recovery=recovery),
        )
        super().__init__(len(seed), cast, drawn)
        self.has_users = False

    def _deploy(self) -> Deployment:
        """A start that was refused is made as before from then on."""
        refused = self.seen["refused as a new job"] + self.seen["refused from scratch"]
        is_first = len(self.processes) == 0
        guarantee = self.pair[0] if is_first or refused else self.pair[1]
        return Deployment(AS_EVER, guarantee=guarantee)


def play(
    pair: tuple[Guarantee, Guarantee],
    point: Point,
    skip: int = 1,
    recovery: type[Recovery] = Recovery,
) -> World:
    world = SwitchingWorld(pair, point, skip, recovery)
    try:
        world.run()
    except Violation as violation:
        story = "\n".join(world.story)
        raise Violation(f"{pair}, {point}: {violation}\n{story}") from violation
    return world


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: " to ".join(one.value for one in pair))
def test_what_is_decided_is_committed_and_the_others_epochs_are_left_alone(
    pair: tuple[Guarantee, Guarantee],
) -> None:
    seen: Counter[str] = Counter()
    for point in ALL_POINTS:
        for skip in (0, 1):
            seen.update(play(pair, point, skip).seen)
    crashes = [f"crash {point}" for point in ALL_POINTS if seen[f"crash {point}"]]
    assert len(crashes) > (8 if NONE is pair[0] else 16), crashes
    if pair[1] is NONE:
        assert seen["refused from scratch"], "after a snapshot"
    if pair[0] is NONE:
        assert seen["refused as a new job"]


class LeavesWhatIsDecided(Recovery):
    """Loads no decided snapshot without a guarantee, as there is nothing to restore."""

    def on_ids_reserved(self, event: c.RecordAnswer) -> list[c.Command]:
        commands = super().on_ids_reserved(event)
        if self._begins_from_scratch and isinstance(commands[0], c.LoadManifest):
            return self._begin_from_scratch(None)
        return commands


def test_a_start_that_leaves_it_is_seen() -> None:
    with pytest.raises(Violation, match="is decided, and stays behind"):
        for point in ALL_POINTS:
            play((Guarantee.EXACTLY_ONCE, NONE), point, recovery=LeavesWhatIsDecided)
