"""Fakes at the edges of the engine's committer and snapshot driver: sinks, manifests, tasks."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dagster_jet.contract import CommitContext, Committer
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    JetError,
    SinkError,
    SinkUnavailableError,
    StoreUnavailableError,
)
from dagster_jet.execution.failures import Failures
from dagster_jet.snapshot import protocol as c
from dagster_jet.snapshot.coordinator_view import CoordinatorView
from dagster_jet.snapshot.manifest import Ack, Artifact, Manifest, checksum

from .deployment import SEALED
from .oracle import Violation
from .promises import kept_by
from .scenario import JOB, Point
from .sinks import ArtifactGone

if TYPE_CHECKING:
    from .driver import Driver

DURING = Point("during", "Complete")
DECIDING = Point("during", "Decide")


@dataclass(frozen=True)
class SimulatedSink(Committer):
    """A sink's definition that writes to a place of the world, for the engine's committer."""

    name: str
    place: str
    driver: Driver

    def open_committer(self, job: str, stage: str) -> SimulatedSink:
        return self

    def abort_orphans(self, context: CommitContext, keep: Collection[str]) -> int:
        raise NotImplementedError  # see `recovery.abort_orphans`

    def commit(self, artifacts: Collection[Artifact], context: CommitContext) -> None:
        """One artifact after the other, in any order; any of them may go wrong in its own way."""
        driver, world, waiting = self.driver, self.driver.world, self.driver.waiting
        left = list(artifacts)
        shards = world.sink_at(self.place).shards  # none of what was staged for another place
        places = [(one.epoch_id, shards[one.token]) for one in left if one.token in shards]
        if places != sorted(places):
            raise Violation(f"{self.name} is given rows in another order than theirs: {places}")
        if any(shard > 10 for _, shard in places):
            world.seen["an epoch of twelve writers was committed"] += 1
        world.rng.shuffle(left)
        for artifact in left:
            waiting.pause(DURING)
            if world.chance("commit_given_up"):
                raise SinkError("the sink does not answer.", job=JOB, stage=self.name)
            if world.chance("commit_throws"):
                world.seen["a commit threw"] += 1
                raise SinkUnavailableError("the sink is away.", job=JOB, stage=self.name)
            waiting.send(lambda it=artifact: self._land(it, context), DURING)
            if world.chance("commit_answer_lost"):
                world.seen["the answer of a commit was lost"] += 1
                raise SinkUnavailableError("no answer.", job=JOB, stage=self.name)
        del driver

    def has_committed(self, artifacts: Collection[Artifact], context: CommitContext) -> bool:
        there = self.driver.world.sink_at(self.place).committed
        return all(artifact.target in there for artifact in artifacts)

    def _land(self, artifact: Artifact, context: CommitContext) -> None:
        world = self.driver.world
        try:
            world.sink_at(self.place).commit(artifact)
        except ArtifactGone as gone:
            if self.driver.owns_the_job:
                raise Violation(f"{gone} is neither staged nor committed") from gone
            if world.sink_at(self.place).has_lost(artifact.target):
                # A sleeper commits again what its successor has committed; the place is another.
                world.seen["a sleeper found another place"] += 1
            elif artifact.token in world.oracle.left:
                # A sleeper's, whose successor went back to before this was decided.
                world.seen["what a rewind has left was rolled back"] += 1
            elif context.repeatable:
                # A sleeper's epoch that its successor has rolled back, and runs again.
                raise ArtifactLostError(f"{gone}.", job=JOB, stage=self.name) from gone
            else:
                raise Violation(f"{gone} is neither staged nor committed") from gone


@dataclass(frozen=True)
class SimulatedNode:
    """Node of a sink as it is in the graph."""

    name: str
    sink: SimulatedSink
    of_dead_letters: bool = False


def nodes(driver: Driver) -> list[Any]:
    return [
        SimulatedNode(sink.name, SimulatedSink(sink.name, sink.place, driver))
        for sink in driver.deployment.sinks.values()
    ]


def reopened(driver: Driver, destination: Mapping[str, Any]) -> Any:
    if destination["kind"] == SEALED:
        driver.world.seen["a start was refused that could not reopen a sink"] += 1
        driver.world.refuse(driver)
        raise ConfigurationError("it is sealed.")
    return SimulatedSink("reopened", destination["place"], driver)


class Manifests:
    """Takes the place of the engine's `SnapshotStore`."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def write(self, manifest: Manifest) -> int:
        world, snapshot_id = self.driver.world, manifest.snapshot_id
        self.driver.waiting.pause(DECIDING)
        world.oracle.on_attempt(snapshot_id, manifest.execution_id, manifest.epoch_id)
        if world.store_is_full() or world.chance("manifest_not_stored"):
            raise StoreUnavailableError("a member's disk is full.")
        world.seen["rows were held back"] += bool(manifest.held)
        data = manifest.to_bytes()
        world.chunks.manifests[manifest.name] = (manifest.execution_id, data)
        self.driver.waiting.pause(DECIDING)
        if world.chance("manifest_answer_lost"):
            world.seen["the answer of a manifest write was lost"] += 1
            raise StoreUnavailableError("no answer.")
        return checksum(data)


def await_saved(driver: Driver, ack: Ack) -> Ack:
    if ack.saving is None:
        return ack
    while ack.saving.path not in driver.saved:
        driver.waiting.pause(at_least=20)
    return driver.saved[ack.saving.path]


def commit_stages(driver: Driver, stages: Collection[str], view: CoordinatorView) -> None:
    """Phase 2 of processors: an answer that is lost has it made once more."""
    left = kept_by(driver, view) if stages else []
    driver.world.rng.shuffle(left)
    for keep in left:
        driver.waiting.pause(DURING)
        driver.waiting.send(keep, DURING)
        if driver.world.chance("commit_answer_lost"):
            driver.waiting.send(keep, DURING)


class StrictFailures(Failures):
    """Reports errors that are no simulated outage as violations: bugs of the engine or of the
    simulator."""

    def event(self, error: Exception) -> c.Failed | c.RecordAnswer:
        if not isinstance(error, JetError):
            raise Violation(f"{type(error).__name__}: {error}") from error
        return super().event(error)


def never_fenced() -> threading.Event:
    return threading.Event()
