"""Bugs planted on purpose: the judge must see each of them, or it would not see ours either."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from dagster_jet.engine.snapshot_store import snapshot_of
from dagster_jet.engine.source_journals import SourceJournals
from dagster_jet.snapshot import coordinator as c
from dagster_jet.snapshot.manifest import Manifest, ShardState
from dagster_jet.snapshot.owed import SinkFate
from dagster_jet.snapshot.record import SnapshotRef

from .driver import Driver
from .oracle import Violation
from .register import Register, Write
from .world import Cast, play

SEEDS = 500


class SkipsRecommit(c.Coordinator):
    """Trusts that the execution before has finished its phase 2."""

    def _on_restored(self, shards):
        super()._on_restored(shards)
        return self._abort_leftovers()


class AbortsBeforeRecommit(Driver):
    """Rolls back what is open first, and commits what the record names afterwards."""

    def _perform(self, command):
        if isinstance(command, c.Restore):
            for sink in self.world.sinks.values():
                sink.roll_back(lambda _, by: self.is_older(by))
        super()._perform(command)


class CommitsBeforeTheRecord(c.Coordinator):
    def _on_manifest_written(self, event):
        manifest = self._candidate
        commands = super()._on_manifest_written(event)
        if commands and manifest.artifacts:
            commands.append(
                c.Commit(manifest.snapshot_id, manifest.artifacts, False, (), manifest.sinks)
            )
        return commands


class CleansUpAfterUnknown(c.Coordinator):
    """Takes "perhaps written" for "not written"."""

    def _on_record_answer(self, event):
        if event.outcome is c.WriteOutcome.UNKNOWN:
            event = replace(event, outcome=c.WriteOutcome.UNAVAILABLE)
        return super()._on_record_answer(event)


class BelievesUnknown(c.Coordinator):
    """Takes "perhaps written" for "written"."""

    def _on_record_answer(self, event):
        if event.outcome is c.WriteOutcome.UNKNOWN:
            event = replace(event, outcome=c.WriteOutcome.WRITTEN)
        return super()._on_record_answer(event)


class ReusesSnapshotIds(c.Coordinator):
    def _not_decided(self, reason, now_ms):
        self._next_snapshot_id -= 1
        return super()._not_decided(reason, now_ms)


class ReservesNothing(c.Coordinator):
    """Begins above what the record has reserved, without reserving more before the first use."""

    def _on_claimed(self, event):
        self.record = event.record
        self._next_snapshot_id = event.record.reserved_snapshot_id + 1
        self.phase = c.Phase.RESERVING
        return self._on_ids_reserved(c.RecordAnswer(c.Purpose.STARTING, c.WriteOutcome.WRITTEN, 0))


class AcceptsDoubledAcks(c.Coordinator):
    def _incomplete(self, acks):
        problem = super()._incomplete(acks)
        return None if problem is not None and "twice" in problem else problem


class AcceptsMissingAcks(c.Coordinator):
    def _incomplete(self, acks):
        problem = super()._incomplete(acks)
        return None if problem is not None and "no ack" in problem else problem


class CountsRepeatedAnswers(c.Coordinator):
    """While an epoch is being published its answer counts once more."""

    def _on_epoch_acked(self, event):
        if self._publishing is not None:
            self._running, self._publishing = self._publishing, None
        return super()._on_epoch_acked(event)


class IgnoresWhoAcked(c.Coordinator):
    """Takes the answer of a dead execution for its own. (Of a commit it may: done is done.)"""

    def _is_running(self, execution_id, epoch_id):
        running = self._running
        return running is not None and super()._is_running(running.execution_id, epoch_id)


class CollectsAllButTheNewest(c.Coordinator):
    """Deletes the older snapshots, which the record still retains."""

    def _on_snapshot_decided(self, event):
        older: tuple[SnapshotRef, ...] = self.record.snapshots
        commands = super()._on_snapshot_decided(event)
        if any(isinstance(command, c.Commit) for command in commands):
            commands.append(c.CollectGarbage(tuple(ref.manifest_name for ref in older), {}))
        return commands


class CollectsWhatTheChainNeeds(c.Coordinator):
    """Deletes with a dropped snapshot all its chunk sets, also those of later ones."""

    def _garbage(self, dropped):
        gone = {
            vertex: names
            for ref in dropped
            for vertex, names in self._retained.get(ref.snapshot_id, {}).items()
        }
        super()._garbage(dropped)
        return [c.CollectGarbage((), gone)] if gone else []


class ForgetsOpenArtifacts(c.Coordinator):
    """Names the artifacts of the last epoch, not those of the epochs before it."""

    def _epoch_done(self, running, acks, now_ms):
        self._open_artifacts = [artifact for ack in acks for artifact in ack.artifacts]
        return super()._epoch_done(running, acks, now_ms)


class SnapshotsDuringPhase2(c.Coordinator):
    def _snapshot_is_due(self, now_ms):
        return True


class DecidesUnderARunningEpoch(c.Coordinator):
    """Says at once what is saved; the epoch's answer puts it back as it was given."""

    def _apply_outcome(self):
        running, self._running = self._running, None
        super()._apply_outcome()
        self._running = running


class TakesFailedForSaved(c.Coordinator):
    """After a failed snapshot the runs of its barrier are treated as if the store had them."""

    def _apply_outcome(self):
        if self._outcome is False and self._running is None:
            self.shards = {
                vertex: [ShardState((*s.saved, *s.deciding), s.unsaved, s.chain) for s in states]
                for vertex, states in self.shards.items()
            }
        super()._apply_outcome()


class ForgetsTheArtifactsOfAFailedSnapshot(c.Coordinator):
    """Those of its own epochs; the epoch beside it names only what is new."""

    def _not_decided(self, reason, now_ms):
        self._candidate = replace(self._candidate, artifacts=())
        return super()._not_decided(reason, now_ms)


class StopsBesideTheDecision(c.Coordinator):
    """Writes how it ended over a decision that is on its way."""

    def _stop_failed(self, reason, restartable):
        if not self.settling.is_decided:
            self.settling = c.Settling.NONE
        return super()._stop_failed(reason, restartable)


class RestoresUnsavedAsSaved(Driver):
    """After a change of parallelism state has no chain, and claims that it needs none."""

    def answer(self, command, event):
        if isinstance(event, c.Restored):
            shards = {
                vertex: tuple(_all_saved(state) for state in states)
                for vertex, states in event.shards.items()
            }
            event = c.Restored(shards)
        super().answer(command, event)


def _all_saved(state: ShardState) -> ShardState:
    return ShardState((*state.saved, *state.unsaved), (), state.chain)


class RollsBackNewerExecutions(Driver):
    """The abort pass takes whatever it does not know for a leftover."""

    def may_roll_back(self, execution_id: int, named: set[str]) -> Callable[[str, int], bool]:
        return lambda token, by: token not in named and by != execution_id


class HeartbeatsOvertakeDecisions(Driver):
    """Renews the lease with the record as it was when the execution began."""

    def _write_record(self, purpose, record):
        if purpose is c.Purpose.STARTING:
            self.first_record = record
        super()._write_record(purpose, self.first_record if purpose is c.Purpose.LEASE else record)


class RegisterWithoutBallots(Register):
    """The last one to write wins."""

    def accepts(self, write: Write) -> bool:
        return True


class RestartsWhenAskedToStayDown(c.Coordinator):
    @property
    def _may_begin_again(self):
        return True


class TakesACancelForTheFailureThatItCauses(c.Coordinator):
    """Hears of a cancel when an epoch could begin, which in a recovery that fails is never."""

    def _on_cancel_requested(self):
        return []


class LeavesOutTheNewestChunks(c.Coordinator):
    """Writes a manifest without the chunk sets of the snapshot's own epoch."""

    def _on_saved(self, event):
        commands = super()._on_saved(event)
        manifest: Manifest | None = self._candidate
        if manifest is None or not any(isinstance(one, c.WriteManifest) for one in commands):
            return commands
        shards = {v: tuple(chain[:-1] for chain in chains) for v, chains in manifest.shards.items()}
        self._candidate = replace(manifest, shards=shards)
        return [c.WriteManifest(self._candidate)]


class ForgetsWhatWasPrepared(c.Coordinator):
    """Knows of artifacts only."""

    def _settle_snapshot(self, acks, now_ms, completed, snapshot_id=None):
        acks = tuple(replace(ack, prepared=False) for ack in acks)
        return super()._settle_snapshot(acks, now_ms, completed, snapshot_id)


class DoesNotWaitForWhatIsBeingSaved(c.Coordinator):
    """Takes an ack for whole as soon as it is there."""

    def _settle_snapshot(self, acks, now_ms, completed, snapshot_id=None):
        acks = tuple(replace(ack, saving=None) for ack in acks)
        return super()._settle_snapshot(acks, now_ms, completed, snapshot_id)


class GoesOnFromAFailedSnapshot(c.Coordinator):
    """Where processors commit in two phases, too: the next ones find the ids in the state."""

    def _not_decided(self, reason, now_ms):
        decides, self._decides_every_epoch = self._decides_every_epoch, False
        commands = super()._not_decided(reason, now_ms)
        self._decides_every_epoch = decides
        return commands


class DecidesNowAndThen(c.Coordinator):
    """At the interval, whoever has prepared something."""

    def _on_claimed(self, event):
        return super()._on_claimed(replace(event, decides_every_epoch=False))


class BreaksPromisesOfItsOwnEpoch(Driver):
    """Takes what another attempt has prepared for a leftover."""

    def may_break(self, own, by):
        return by <= own


class BreaksPromisesOfItsSuccessors(Driver):
    """Takes all that it does not know for a leftover of those before it."""

    def may_break(self, own, by):
        return by != own


# --- between two starts: other sinks, older snapshots, damage, ids ------------------------------


class CommitsTodaysSinks(Driver):
    """Phase 2 goes by the pipeline: a sink that has left it is nobody's."""

    def owed(self, command):
        return tuple(owed for owed in super().owed(command) if owed.fate is not SinkFate.LEFT)


class CommitsWhereTheSinkIsToday(Driver):
    """A sink that moved takes along what was decided for its old place."""

    def owed(self, command):
        today = self.deployment.destinations
        return tuple(
            replace(owed, fate=SinkFate.KEPT, destination=today.get(owed.sink, owed.destination))
            for owed in super().owed(command)
        )


class RewindsBeforeItLooks(c.Coordinator):
    """Writes the record of the rewind first, with the ids that it reserves."""

    def _on_claimed(self, event):
        rewound = event.record.rewound(self.config.initial_snapshot)
        return super()._on_claimed(replace(event, record=rewound))


class RewindsWithoutAWord(c.Coordinator):
    """Believes that the next snapshot will say it."""

    def _on_restored(self, shards):
        self.record = replace(self._rewound, snapshots=self.record.snapshots)
        self._rewound = self.record
        return super()._on_restored(shards)


class StaysOnItsLine(c.Coordinator):
    """What is left and what is written again cannot be told apart."""

    def _on_ids_reserved(self, event):
        commands = super()._on_ids_reserved(event)
        self._rewound = replace(self._rewound, line=self.record.line)
        return commands


class BeginsIdsAnewWithARewind(c.Coordinator):
    def _on_rewound(self, event):
        commands = super()._on_rewound(event)
        self._next_snapshot_id = self.record.snapshots[0].snapshot_id + 1
        return commands


class DoesNotReserveMoreIds(c.Coordinator):
    """Goes on counting where snapshots fail."""

    def _reserve_ids(self):
        return []

    @property
    def _has_ids(self):
        return True


class DiesOfDamage(Driver):
    """One older snapshot that is not whole, and no start succeeds any more."""

    lives_with_damage = False


class DeletesWithADamagedManifest(Driver):
    """Takes everything up to a damaged snapshot for its own, and deletes it with it."""

    def delete_garbage(self, execution_id, keep, damaged):
        super().delete_garbage(execution_id, keep, damaged)
        chunks = self.world.chunks
        gone = [key for key in chunks.chunk_sets if snapshot_of(key[1]) in damaged]
        chunks.delete((), gone)


class RetainsTheDamaged(c.Coordinator):
    """The record goes on naming what nobody can go back to."""

    def _on_leftovers_aborted(self, event):
        return super()._on_leftovers_aborted(replace(event, damaged=frozenset()))


class DeletesChunksOfNewerExecutions(Driver):
    """The abort pass ignores who wrote what no retained snapshot needs."""

    def is_older(self, execution_id):
        return True


class NamesWithoutAttempts(Driver):
    """Two attempts of a task write under one name, and the one that dies may come last."""

    def in_names(self, attempt):
        return ""


class JournalOfDecidedSnapshotsOnly(SourceJournals):
    """What was collected for a snapshot that fails is not in the next one."""

    def _begin_snapshot(self, command, chains):
        self._deciding = {}
        super()._begin_snapshot(command, chains)


MUTANTS = [
    *(
        Cast(coordinator=mutant)
        for mutant in (
            SkipsRecommit,
            CommitsBeforeTheRecord,
            CleansUpAfterUnknown,
            BelievesUnknown,
            ReusesSnapshotIds,
            ReservesNothing,
            AcceptsDoubledAcks,
            AcceptsMissingAcks,
            CountsRepeatedAnswers,
            IgnoresWhoAcked,
            CollectsAllButTheNewest,
            CollectsWhatTheChainNeeds,
            ForgetsOpenArtifacts,
            SnapshotsDuringPhase2,
            TakesFailedForSaved,
            DecidesUnderARunningEpoch,
            ForgetsTheArtifactsOfAFailedSnapshot,
            StopsBesideTheDecision,
            RestartsWhenAskedToStayDown,
            TakesACancelForTheFailureThatItCauses,
            LeavesOutTheNewestChunks,
            ForgetsWhatWasPrepared,
            DoesNotWaitForWhatIsBeingSaved,
            GoesOnFromAFailedSnapshot,
            DecidesNowAndThen,
            RewindsBeforeItLooks,
            RewindsWithoutAWord,
            StaysOnItsLine,
            BeginsIdsAnewWithARewind,
            DoesNotReserveMoreIds,
            RetainsTheDamaged,
        )
    ),
    *(
        Cast(driver=mutant)
        for mutant in (
            AbortsBeforeRecommit,
            RestoresUnsavedAsSaved,
            RollsBackNewerExecutions,
            HeartbeatsOvertakeDecisions,
            BreaksPromisesOfItsOwnEpoch,
            BreaksPromisesOfItsSuccessors,
            CommitsTodaysSinks,
            CommitsWhereTheSinkIsToday,
            DiesOfDamage,
            DeletesWithADamagedManifest,
            DeletesChunksOfNewerExecutions,
            NamesWithoutAttempts,
        )
    ),
    Cast(register=RegisterWithoutBallots),
    Cast(journals=JournalOfDecidedSnapshotsOnly),
]


def _name(cast: Cast) -> str:
    plain = Cast()
    changed = {cast.coordinator, cast.driver, cast.register, cast.journals}
    planted = changed - {plain.coordinator, plain.driver, plain.register, plain.journals}
    return planted.pop().__name__


@pytest.mark.parametrize("mutant", MUTANTS, ids=_name)
def test_a_planted_bug_is_seen(mutant: Cast) -> None:
    for seed in range(SEEDS):
        try:
            play(seed, mutant)
        except Violation as violation:
            verdict = str(violation).splitlines()[0]
            if "Error:" in verdict:
                continue  # The mutant tripped over itself; it is to be seen by what it does.
            print(f"seed {seed}: {verdict}")
            return
    pytest.fail(f"{_name(mutant)} survived {SEEDS} histories")
