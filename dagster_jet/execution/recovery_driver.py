"""Carries out a start: checks, restore, and clean-up after older executions."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from dagster_jet.contract import Acknowledges, SourceReader
from dagster_jet.core.first_of import first_of
from dagster_jet.errors import (
    ConfigurationError,
    InputLostError,
    OutputLostError,
    PipelineError,
    SnapshotInvalidError,
    StoreCorruptedError,
)
from dagster_jet.execution.compatibility import check_compatible
from dagster_jet.execution.context import ExecutionContext
from dagster_jet.execution.events import (
    GuaranteeLowered,
    InputLost,
    PipelineAnalysed,
    SnapshotDropped,
)
from dagster_jet.execution.polled_sources import PolledSources
from dagster_jet.execution.progress import Progress
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.execution.start_connectors import effective_guarantee, effective_guarantees
from dagster_jet.exports.copying import copy_snapshot
from dagster_jet.exports.export_list import export_data, finished_export
from dagster_jet.job_config import longest_pause
from dagster_jet.snapshot import protocol
from dagster_jet.snapshot.adaptation import Adaptation
from dagster_jet.snapshot.manifest import (
    MANIFEST_FORMAT,
    ChunkSet,
    Manifest,
    ShardState,
)
from dagster_jet.snapshot.newest_output import output_after, output_to_be_there, output_up_to
from dagster_jet.snapshot.protocol import Guarantee
from dagster_jet.snapshot.record import ExecutionRecord, SnapshotRef
from dagster_jet.snapshot.storage.chunks import ChunkSetName
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore, vertex_of
from dagster_jet.spark.cluster.session import activate
from dagster_jet.spark.planning.stage_columns import stage_columns
from dagster_jet.spark.restore import restore_shards
from dagster_jet.state.runs import sweep_dead_executions
from dagster_jet.system.failpoint import fail_point
from dagster_jet.system.scratch import OWN_LEVELS, make_private

_logger = logging.getLogger(__name__)

STARTING_S = 30
"""Seconds that a transaction must allow for starting Spark and reading a snapshot in a restart."""


@dataclass
class RecoveryDriver:
    """Recovers one execution, on the epochs' thread. Every method may raise `JetError`."""

    context: ExecutionContext
    claimed: ExecutionRecord
    snapshots: SnapshotStore
    sources: PolledSources
    journals: SourceJournals
    committer: SinkCommitter
    progress: Progress
    input_ends: bool
    """Whether the run reads only the input available at the start."""
    committed: Callable[[Manifest], None] = lambda manifest: None
    """Told of the newest snapshot if all sinks have it already. Returns at once."""
    _are_claimed: bool = False
    """Destinations of the sinks."""
    _imported_up_to: tuple[int, int] | None = None
    """`output_up_to` of the exported snapshot that is restored."""

    def claim(self) -> protocol.Claimed:
        """Prepares this process and analyses the pipeline. The execution already owns the record.

        Raises:
            PipelineError: the pipeline has a mistake; names the stage.
            SinkError: a sink cannot work as asked.
        """
        context, guarantee = self.context, self.context.config.guarantee
        make_private(context.work_dir.parent, OWN_LEVELS - 1)  # before anything in it is removed
        shutil.rmtree(context.work_dir, ignore_errors=True)
        make_private(context.work_dir)
        sweep_dead_executions(context.work_dir)
        self._report_lowered_guarantees()
        interval = longest_pause(context.config)
        for read in context.graph.sources:
            read.source.check_snapshot_interval(interval, context.job, read.name)
        for node in context.graph.sinks:
            given = effective_guarantee(guarantee, node.sink)
            node.sink.check(context.job, node.name, is_new_job=self.claimed.is_new_for(given))
            held = node.sink.held()
            if held is not None and held.for_ms is not None:
                self._check_held_for(node.name, held.for_ms)
        activate(context.runtime.session)
        tables = context.runtime.tables
        tables.are_noted = guarantee is not Guarantee.NONE
        plan = context.plan  # the analysis: raises what is wrong with the pipeline
        columns = partial(stage_columns, plan)
        context.emit(PipelineAnalysed(context.job, self.claimed.execution_id, columns))
        processors = plan.processors
        in_two_phases = [name for name, p in processors.items() if p.commits_in_two_phases]
        held_writers = {
            node.name: held.writers
            for node in context.graph.sinks
            if (held := node.sink.held()) is not None
        }
        if in_two_phases and guarantee is Guarantee.NONE:
            raise PipelineError(
                'the processor commits with snapshots, but the job\'s guarantee is "none", '
                "which takes no snapshots.",
                job=context.job,
                stage=", ".join(in_two_phases),
                cure="Choose another JobConfig(guarantee=...), or a processor that does not "
                "commit in two phases.",
            )
        return protocol.Claimed(
            self.claimed,
            bool(in_two_phases or held_writers),
            plan.stage_plans(),
            self.committer.destinations,
            tables.noted(is_last=False),
            held_writers,
        )

    def _check_held_for(self, stage: str, held_for_ms: int) -> None:
        """Checks that a transaction lasts from its first row to the commit, with a crash in
        between."""
        config = self.context.config
        restart_s = self.context.store.config.lease_ttl_ms / 1000 + STARTING_S
        interval_s = longest_pause(config).total_seconds()
        if held_for_ms / 1000 <= interval_s + restart_s:
            raise ConfigurationError(
                f"transactions are held for {held_for_ms / 1000:g} seconds, which is not longer "
                f"than the snapshot interval ({interval_s:g} seconds) and a restart "
                f"({restart_s:g} seconds) take together.",
                job=self.context.job,
                stage=stage,
                cure="Raise the transaction time-out (Kafka: transaction.timeout.ms in "
                'options=), take snapshots more often, or use transactions="roll-forward".',
            )

    def _report_lowered_guarantees(self) -> None:
        """Reports weaker guarantees by a log warning and an event, at every start."""
        context, wanted = self.context, self.context.config.guarantee
        for stage, effective in effective_guarantees(context.graph, wanted).items():
            if effective is not wanted:
                _logger.warning(
                    "job %r asks for %s, its stage %r gives %s",
                    context.job,
                    wanted.value,
                    stage,
                    effective.value,
                )
                execution_id = self.claimed.execution_id
                context.emit(GuaranteeLowered(context.job, execution_id, stage, wanted, effective))

    def load(self, ref: SnapshotRef) -> protocol.ManifestLoaded:
        context = self.context
        manifest = self.snapshots.load(ref)
        if context.config.guarantee is Guarantee.NONE:
            self._check_can_be_committed(manifest)
            self._claim_places()
        else:
            partition_count = context.store.partition_count
            manifest = self._adapted(manifest)
            check_compatible(context.job, manifest, context.plan.stage_plans(), partition_count)
        return protocol.ManifestLoaded(manifest)

    def _adapted(self, manifest: Manifest) -> Manifest:
        """The snapshot with the state that is renamed or dropped by word."""
        context, options = self.context, self.context.options
        renamed = context.graph.renamed_states(options.renamed)
        words = Adaptation(renamed, frozenset(options.dropped_state))
        wanted = context.plan.stage_plans()
        for said in words.without_effect(manifest.plan, wanted):
            _logger.warning("job %r: %s. An earlier start may have done it.", context.job, said)
        return words.manifest(manifest, wanted)

    def _check_can_be_committed(self, manifest: Manifest) -> None:
        """Checks that the snapshot's output can be committed without its state."""
        if manifest.prepared:
            raise ConfigurationError(
                'the guarantee is now "none", but processors have prepared transactions that are '
                "decided and not committed. Only the processors' state names them, and this "
                "guarantee does not restore state.",
                job=self.context.job,
                stage=", ".join(manifest.prepared),
                cure="Start once with the former guarantee: that start commits them.",
            )

    def bring_in(self, command: protocol.ImportSnapshot) -> protocol.SnapshotImported:
        """Copies an exported snapshot into the job's own map, under ids of this execution.

        State, positions and counters continue. Staged output is not taken over: the exporting job
        has committed it. Messages are taken over as acknowledged and unconfirmed: those of a lost
        connection come again.

        Raises:
            JobStateError: there is no such export.
            JetError: the pipeline does not fit it.
            SnapshotInvalidError: a part of it is missing or damaged.
        """
        context, execution_id = self.context, self.claimed.execution_id
        export = finished_export(context.store, command.export, context.job)
        data = export_data(context.store, export)
        assert export.ref is not None
        manifest = self._adapted(data.load(export.ref))
        self._imported_up_to = output_up_to(manifest, self.claimed)
        partition_count = context.store.partition_count
        check_compatible(context.job, manifest, context.plan.stage_plans(), partition_count)
        self._report_forgetful(command.export)
        snapshot_id, number = command.snapshot_id, count()

        def imported_name(one: ChunkSet, shard: int) -> str:
            # Under the former name of a renamed source, so that its journal is written anew.
            part = f"imported.{next(number)}"
            return str(ChunkSetName(vertex_of(one.name), snapshot_id, execution_id, shard, part))

        imported, manifest_checksum = copy_snapshot(
            data,
            self.snapshots,
            manifest,
            lambda copied: replace(
                copied,
                job=context.job,
                snapshot_id=snapshot_id,
                execution_id=execution_id,
                timeline=command.timeline,
                artifacts=(),
                prepared=(),
                sinks={n: dict(where) for n, where in self.committer.destinations.items()},
                newest_output={},
                format=MANIFEST_FORMAT,
            ),
            imported_name,
        )
        ref = replace(
            export.ref,
            snapshot_id=snapshot_id,
            execution_id=execution_id,
            manifest_name=imported.name,
            manifest_checksum=manifest_checksum,
            committed=True,
            unconfirmed=True,
        )
        return protocol.SnapshotImported(ref, imported)

    def _report_forgetful(self, export: str) -> None:
        """Reports sources that do not replay: messages acknowledged after the export are lost to
        this job."""
        readers = self.sources.readers.items()
        queues = [name for name, reader in readers if reader.acknowledges.forgets]
        if queues:
            _logger.warning(
                "job %r starts from the exported snapshot %r: messages of %s that were "
                "acknowledged after it cannot be read again",
                self.context.job,
                export,
                ", ".join(queues),
            )

    # --- restore --------------------------------------------------------------------------------

    def restore(self, manifest: Manifest) -> protocol.Restored:
        context, watermarks = self.context, self.sources.watermarks
        fail_point("restore.begin")
        watermarks.restore(manifest.watermarks, context.clock.now_ms())
        ref = self.claimed.snapshot
        self._check_not_repeated(manifest)
        context.runtime.tables.restore(manifest.tables)
        is_committed = ref is None or ref.snapshot_id != manifest.snapshot_id or ref.committed
        lost_output = self._check_output(manifest, is_committed=is_committed)
        if ref is not None and ref.snapshot_id == manifest.snapshot_id and ref.committed:
            self.committed(manifest)
        own = {one.snapshot_id: one for one in self.claimed.snapshots}.get(manifest.snapshot_id)
        is_confirmed = own is not None and own.committed and not own.unconfirmed
        shards: dict[str, tuple[ShardState, ...]] = {}
        for name, reader in self.sources.readers.items():
            chains = manifest.shards.get(name, ((),))
            journal = self.snapshots.read_journal(name, chains[0])
            if name in manifest.sources:
                reader.restore(manifest.sources[name], journal)
            if reader.acknowledges is not Acknowledges.NOTHING and not is_confirmed:
                reader.restore_unacknowledged(manifest.unacknowledged.get(name, {}))
            self._check_undecided(name, reader, manifest)
            shards[name] = (ShardState(chain=self._chain_of(name, reader, chains[0])),)
        stages = {stage.name: manifest.shards.get(stage.name, ()) for stage in context.graph.stages}
        for name in stages:
            if name not in watermarks.expired_until_ms:
                # An older snapshot does not say what had died: what is dead by today's code.
                now_ms = watermarks.expiring_ms(name)
                watermarks.expire(name, context.plan.operator(name).expired_until(now_ms))
        barrier = context.barrier(self.claimed, manifest.epoch_id, with_store=True)
        shards.update(
            restore_shards(
                context.runtime, context.plan, barrier, stages, watermarks.expired_until_ms
            )
        )
        fail_point("restore.done")
        return protocol.Restored(shards, lost_output)

    def _chain_of(
        self, source: str, reader: SourceReader, chain: tuple[ChunkSet, ...]
    ) -> tuple[ChunkSet, ...]:
        """The chain of a source's journal. A source that was renamed writes its journal anew: the
        places of its parts depend on the name."""
        if not chain or vertex_of(chain[0].name) == source:
            return chain
        self.journals.write_anew(source, reader)
        return ()

    def _check_not_repeated(self, manifest: Manifest) -> None:
        """Refuses to go back, unless it is asked for by word, if the job would write rows again
        that its sinks' places have."""
        wanted = self.context.options.initial_snapshot
        if wanted in (None, self.claimed.rewound_to) or self.context.options.repeat_output:
            return
        refs, imported = self.claimed.snapshots, self._imported_up_to
        since = imported or output_up_to(manifest, self.claimed)
        # Epochs of another job or timeline have numbers of their own.
        is_other = imported is not None and imported[0] < self.claimed.timeline
        newer = refs if is_other else [ref for ref in refs if ref.epoch_id > since[1]]
        if not newer:
            return
        newest = next(self._undamaged(newer), None)
        if newest is None:
            later = sorted(self.committer.destinations)
        else:
            later = self.committer.sinks_with_output(newest, since)
        if later:
            why = (
                f"the snapshot has the rows up to epoch {manifest.epoch_id}, and these sinks have "
                f"output of later epochs, up to {newer[0].epoch_id}: its rows would be written "
                "again."
            )
            if is_other:
                why = (
                    "the exported snapshot is of another job, of this job before it was deleted "
                    "or reset, or of an earlier timeline. These sinks have output since then, up "
                    f"to epoch {newer[0].epoch_id}: its rows may be written again."
                )
            raise ConfigurationError(
                why,
                job=self.context.job,
                stage=", ".join(later),
                cure="Let the sinks write to new places. To write these rows again beside those "
                "that are there, use the start option repeat_output=True.",
            )

    def _undamaged(self, refs: Sequence[SnapshotRef]) -> Iterator[Manifest]:
        for ref in refs:
            with suppress(SnapshotInvalidError, StoreCorruptedError):
                yield self.snapshots.load(ref)

    def _check_output(self, manifest: Manifest, *, is_committed: bool) -> frozenset[str]:
        """Checks that every sink's place has its committed output. Returns the sinks that have lost
        it, if the loss is accepted."""
        context = self.context
        expected = output_to_be_there(manifest, is_committed=is_committed)
        missing = self.committer.missing_output(expected, manifest.sinks)
        for sink, newest in missing.items():
            if not context.options.accept_loss:
                raise OutputLostError(
                    f"epoch {newest.artifact.epoch_id} was committed to the sink, but the sink's "
                    "location no longer has it: the location is empty, was restored from an "
                    "older copy, or is another one. Output committed since then would be missing.",
                    job=context.job,
                    stage=sink,
                    position=str(newest.artifact.target),
                    cure="If the location is not mounted, or is a replica that is behind, bring "
                    "the right one back. If it was restored from a copy, start from a "
                    "snapshot whose output it has: initial_snapshot=...; "
                    "Job.ledger lists them. To continue without the missing output, use "
                    "the start option accept_loss=True.",
                )
            self.committer.report_missing(sink, newest)
        self._claim_places()
        return frozenset(missing)

    def _claim_places(self) -> None:
        """Claims the sinks' places, after the check of their committed output."""
        if not self._are_claimed:
            for node in self.context.graph.sinks:
                node.sink.claim_place(self.context.job, node.name)
        self._are_claimed = True

    def _check_undecided(self, name: str, reader: SourceReader, manifest: Manifest) -> None:
        """Checks that all input read after the snapshot still exists and can be read again."""
        context, execution_id = self.context, self.claimed.execution_id
        undecided = self.journals.undecided
        if undecided is None or not reader.rereads_input:
            return
        for former, present in context.options.renamed.items():
            if present == name:
                undecided.rename(former, present)
        if name not in manifest.sources:
            # It was away from the pipeline, or its state is dropped: it begins anew.
            undecided.forget(name, before=manifest.execution_id + 1)
        lost = undecided.check(name, reader, manifest.epoch_id)
        if lost:
            epoch_ids = tuple(dict.fromkeys(one.epoch_id for one in lost))
            shown = tuple(one.shown for one in lost)
            if not context.options.accept_loss:
                raise InputLostError(
                    f"input that epochs {', '.join(map(str, epoch_ids))} had read is gone, and "
                    f"no decided snapshot has its rows: {first_of(shown, 3)}. The job "
                    "would have to read it again; without it the rows are missing.",
                    job=context.job,
                    stage=name,
                    position=shown[0],
                    cure="Put the input back unchanged (cp -p), or continue without its rows "
                    "with the start option accept_loss=True. Delete input only after a snapshot "
                    "that has its rows is committed: Job.consumed_files() lists such files.",
                )
            _logger.warning(
                "job %r, stage %r: this input is lost, and accept_loss allows it: %s",
                context.job,
                name,
                shown,
            )
            context.emit(InputLost(context.job, execution_id, name, epoch_ids, shown))
        undecided.take_over(name, execution_id)

    # --- orphans --------------------------------------------------------------------------------

    def abort_orphans(
        self, execution_id: int, keep: tuple[SnapshotRef, ...]
    ) -> protocol.OrphansAborted:
        context = self.context
        fail_point("abort.before")
        self._claim_places()
        retained = self.snapshots.load_retained(keep)
        manifests = retained.manifests
        if context.config.guarantee is Guarantee.NONE and keep:
            self._check_from_scratch(manifests.get(keep[0].snapshot_id))
        tokens = [a.token for m in manifests.values() for a in m.artifacts]
        self.committer.abort_orphans(tokens, [m.sinks for m in manifests.values()])
        self.snapshots.delete_unreferenced(execution_id, retained)
        self._report_damaged(retained.damaged)
        fail_point("abort.after")
        # A new job needs the starting positions of all sources; a run that drains reads the input
        # available now.
        if self.input_ends:
            self.sources.poll_last()
        else:
            self.sources.poll(all_of_them=not keep)
        self.progress.publish()
        return protocol.OrphansAborted(
            retained={
                snapshot_id: {v: frozenset(n) for v, n in m.chunk_sets().items()}
                for snapshot_id, m in manifests.items()
            },
            sources={name: reader.position() for name, reader in self.sources.readers.items()},
            watermarks=self.sources.watermarks.to_json(),
            now_ms=context.clock.now_ms(),
            damaged=frozenset(retained.damaged),
        )

    def _check_from_scratch(self, newest: Manifest | None) -> None:
        """Refuses a start from scratch that would write rows again into a place with epochs of
        snapshots."""
        sinks = self.committer.destinations
        if newest is None:
            return
        renamed = self.context.options.renamed
        written = output_after(newest, is_committed=True, lost=(), sinks=sinks, renamed=renamed)
        if written:
            raise ConfigurationError(
                'the guarantee is now "none", which reads all input again, but these sinks '
                f"already have output up to epoch {newest.epoch_id}: its rows would be written "
                "twice.",
                job=self.context.job,
                stage=", ".join(sorted(written)),
                cure="Keep the former guarantee: the job then continues. Or give the job another "
                "name and these sinks other locations.",
            )

    def _report_damaged(self, damaged: Mapping[int, str]) -> None:
        job = self.context.job
        for snapshot_id, reason in damaged.items():
            _logger.warning(
                "%s: snapshot %d cannot be restored any more: %s", job, snapshot_id, reason
            )
            dropped = SnapshotDropped(job, self.claimed.execution_id, snapshot_id, reason)
            self.context.emit(dropped)
