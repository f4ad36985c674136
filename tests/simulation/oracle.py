"""The judge: compares rows, at the end of a history and wherever a record claims something.

Shares no line with the coordinator. It knows the input, sees every value that the record ever had
and every commit, and may look into the store and the sinks at any time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dagster_jet.snapshot.coordinator import Guarantee
from dagster_jet.snapshot.manifest import Artifact, Manifest, validate_manifest
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef

from .chunks import ChunkMap, Delta, MissingFromStore, merge
from .register import Register
from .scenario import (
    COUNT,
    JOB,
    PROMISES,
    ROW_SINK,
    SINKS,
    SOURCE,
    WINDOW,
    WINDOW_SINK,
    Scenario,
)
from .sinks import Sink

if TYPE_CHECKING:
    from .promises import Promises


class Violation(AssertionError):
    """The history is wrong: a row lost or doubled, or something that must lead to it."""


class Oracle:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.exactly_once = scenario.guarantee is Guarantee.EXACTLY_ONCE
        self.input = {row for rows in scenario.rows for row in rows}
        self.named: set[str] = set()
        """Tokens of all artifacts that a record ever named."""
        self.promised: set[int] = set()
        """Ids of all transactions that the state of a decided snapshot ever named."""
        self._manifests: dict[str, Manifest] = {}
        self._attempts: dict[int, tuple[int, int]] = {}
        self._record: ExecutionRecord | None = None
        self._highest_claim = 0

    def watch(self, chunks: ChunkMap, sinks: Mapping[str, Sink], promises: Promises) -> None:
        self.chunks, self.sinks, self.promises = chunks, sinks, promises

    # --- during the history ---------------------------------------------------------------------

    def on_claim(self, execution_id: int) -> None:
        if execution_id <= self._highest_claim:
            raise Violation(f"execution id {execution_id} was given out before")
        self._highest_claim = execution_id

    def on_attempt(self, snapshot_id: int, execution_id: int, epoch_id: int) -> None:
        who = self._attempts.setdefault(snapshot_id, (execution_id, epoch_id))
        if who != (execution_id, epoch_id):
            raise Violation(
                f"snapshot id {snapshot_id} used by execution {execution_id}, epoch {epoch_id}, "
                f"and before by execution {who[0]}, epoch {who[1]}"
            )

    def on_record(self, record: ExecutionRecord) -> None:
        """The register has a new value."""
        before, self._record = self._record, record
        if before is not None and record.execution_id < before.execution_id:
            raise Violation(f"the record fell back to execution {record.execution_id}")
        if before is not None and before.snapshot is not None:
            newest = record.snapshot
            if newest is None or newest.snapshot_id < before.snapshot.snapshot_id:
                raise Violation(f"the record lost snapshot {before.snapshot.snapshot_id}")
        for ref in record.snapshots:
            if ref.manifest_name not in self._manifests:
                self._on_decided(ref)
        newest = record.snapshot
        if newest is not None and newest.committed:
            self._check_committed(self._manifests[newest.manifest_name])
        if record.status is JobStatus.COMPLETED:
            self._check_last(newest)

    def _check_last(self, newest: SnapshotRef | None) -> None:
        if self.scenario.guarantee is Guarantee.NONE:
            return
        if newest is None or not self._manifests[newest.manifest_name].completed:
            raise Violation("COMPLETED, but the newest snapshot is not the last of the input")

    def _on_decided(self, ref: SnapshotRef) -> None:
        found = self.chunks.manifests.get(ref.manifest_name)
        manifest = validate_manifest(
            None if found is None else found[1],
            job=JOB,
            name=ref.manifest_name,
            expected_checksum=ref.manifest_checksum,
        )
        self._manifests[ref.manifest_name] = manifest
        self.named.update(artifact.token for artifact in manifest.artifacts)
        self.promised.update(self.state_in_store(manifest, PROMISES).came)

    def _check_committed(self, manifest: Manifest) -> None:
        """Phase 2 is said to be over: both sinks show the rows up to this barrier, no others."""
        if self.scenario.in_two_phases:
            difference = _difference(self.promises.rows, self.rows_before(manifest))
            if difference:
                raise Violation(f"kept as of snapshot {manifest.snapshot_id}: {difference}")
        if not self.exactly_once:
            return
        for artifact in manifest.artifacts:
            if artifact.target not in self.sinks[artifact.sink].committed:
                raise Violation(f"noted as committed, but {artifact.target} is not")
        expected = self.rows_before(manifest)
        difference = _difference(self.sinks[ROW_SINK].rows, expected)
        if difference:
            raise Violation(f"{ROW_SINK} after snapshot {manifest.snapshot_id}: {difference}")
        held = self.state_in_store(manifest, WINDOW).came
        difference = _difference(self.sinks[WINDOW_SINK].rows + Counter(held), expected)
        if difference:
            raise Violation(
                f"{WINDOW_SINK} and what the window holds at snapshot {manifest.snapshot_id}: "
                f"{difference}"
            )

    def on_commit(self, artifact: Artifact, rows: tuple[int, ...]) -> None:
        """A sink has made an artifact visible."""
        if not self.exactly_once:
            return
        if artifact.token not in self.named:
            raise Violation(f"{artifact.token} was committed, no record ever named it")
        doubled = [row for row in rows if self.sinks[artifact.sink].rows[row] != 1]
        if doubled:
            raise Violation(f"{artifact.sink} shows rows {doubled} twice")

    def on_kept(self, number: int, rows: tuple[int, ...]) -> None:
        """A processor has committed; under every guarantee only what was decided."""
        if number not in self.promised:
            raise Violation(f"transaction {number} was committed, no snapshot ever named it")
        doubled = [row for row in rows if self.promises.rows[row] != 1]
        if doubled:
            raise Violation(f"rows {doubled} were committed twice")

    def on_restored(self, manifest: Manifest, states: Mapping[str, Delta]) -> None:
        """Local state as the tasks will see it, before the first epoch of an execution."""
        self._check_count(manifest, states[COUNT])
        expected = self.state_in_store(manifest, WINDOW)
        if Counter(states[WINDOW].came) != Counter(expected.came):
            raise Violation(f"restored {states[WINDOW]}, the snapshot says {expected}")

    def _check_count(self, manifest: Manifest, state: Delta) -> None:
        difference = _difference(Counter(state.came), self.rows_before(manifest))
        if difference or state.went:
            raise Violation(f"state of {COUNT!r} in {manifest.name}: {difference or state}")

    def rows_before(self, manifest: Manifest) -> set[int]:
        positions = manifest.sources[SOURCE]
        return {
            row
            for partition, rows in enumerate(self.scenario.rows)
            for row in rows[: positions[partition]]
        }

    def state_in_store(self, manifest: Manifest, vertex: str) -> Delta:
        if vertex not in manifest.shards:
            return merge(())
        try:
            return self.chunks.read_state(manifest, vertex)
        except MissingFromStore as missing:
            raise Violation(f"{manifest.name} needs {missing}, which was deleted") from missing

    # --- at its end -----------------------------------------------------------------------------

    def judge(self, register: Register) -> None:
        """After an undisturbed execution: the job is complete and every row is where it belongs."""
        record = register.read()
        if record is None or record.status is not JobStatus.COMPLETED:
            raise Violation(f"the history ended with {record and record.status}")
        if self.scenario.in_two_phases:
            difference = _difference(self.promises.rows, self.input)
            if difference:
                raise Violation(f"at the end {PROMISES}: {difference}")
        for name in SINKS:
            rows = self.sinks[name].rows
            difference = _difference(rows if self.exactly_once else Counter(set(rows)), self.input)
            if difference:
                raise Violation(f"at the end {name}: {difference}")
        if self.scenario.guarantee is Guarantee.NONE:
            return
        for ref in record.snapshots:
            self._check_retained(ref)
        newest = record.snapshots[0]
        manifest = self._manifests[newest.manifest_name]
        if self.rows_before(manifest) != self.input or not newest.committed:
            raise Violation("the last snapshot does not cover the whole input")
        if self.state_in_store(manifest, WINDOW).came:
            raise Violation("the last snapshot still holds rows back")
        if manifest.counters[COUNT].rows_in != len(self.input):
            raise Violation(
                f"{manifest.counters[COUNT].rows_in} rows counted, {len(self.input)} read"
            )
        self._check_nothing_left(record)

    def _check_retained(self, ref: SnapshotRef) -> None:
        """Every retained snapshot must be good to restart from, not only the newest."""
        if ref.manifest_name not in self.chunks.manifests:
            raise Violation(f"{ref.manifest_name} is retained by the record, but was deleted")
        manifest = self._manifests[ref.manifest_name]
        self._check_count(manifest, self.state_in_store(manifest, COUNT))
        self.state_in_store(manifest, WINDOW)

    def _check_nothing_left(self, record: ExecutionRecord) -> None:
        staged = [token for sink in self.sinks.values() for token in sink.staged]
        if staged:
            raise Violation(f"still open after the abort pass: {staged}")
        names = {ref.manifest_name for ref in record.snapshots}
        needed = {
            (vertex, name)
            for manifest_name in names
            for vertex, sets in self._manifests[manifest_name].chunk_sets().items()
            for name in sets
        }
        left = [*(self.chunks.manifests.keys() - names), *(self.chunks.chunk_sets.keys() - needed)]
        if left:
            raise Violation(f"garbage that nobody collects: {left}")


def _difference(found: Counter[int], expected: set[int]) -> str:
    """Empty if `found` is `expected`, each exactly once."""
    lost = sorted(expected - found.keys())
    doubled = sorted(row for row, n in found.items() if n > 1)
    foreign = sorted(row for row in found.keys() - expected)
    parts = (("lost", lost), ("doubled", doubled), ("not due yet", foreign))
    return ", ".join(f"{word} {rows}" for word, rows in parts if rows)
