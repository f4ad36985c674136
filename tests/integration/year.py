"""A job for a simulated year: the real store, record, coordinator, journals, garbage, a database;
no Spark, and a clock that runs as fast as the epochs do.

In each epoch two files come, and those of yesterday are deleted. A stage counts keys in four
shards; rows go to a table through the store, and changes to a map with a journal. Now and then the
execution dies in the middle of a step.
"""

from __future__ import annotations

import os
import random
import sqlite3
from collections import Counter, deque
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from dagster_jet import sinks, sources
from dagster_jet.connectors.files.files_source import FilesReader
from dagster_jet.connectors.reopening import destination_of
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.execution.source_polling import poll_now
from dagster_jet.execution.undecided_input import UndecidedInput
from dagster_jet.maps import JetMap, JournalConfig
from dagster_jet.observe.reading.ledger import read_ledger
from dagster_jet.observe.writing.kept_value import KeptValue
from dagster_jet.ownership.record_keeper import RecordKeeper
from dagster_jet.snapshot import protocol as p
from dagster_jet.snapshot.coordinator import Coordinator
from dagster_jet.snapshot.job_state import CoordinatorConfig
from dagster_jet.snapshot.manifest import Ack, ChunkSet, ShardState
from dagster_jet.snapshot.storage.chains import read_chain
from dagster_jet.snapshot.storage.chunks import (
    PARTITION_COLUMN,
    ChunkSetName,
    superseded,
    turn,
    write_chunk_set,
)
from dagster_jet.snapshot.storage.snapshot_store import SnapshotStore
from dagster_jet.store import Store, StoreConfig
from dagster_jet.store.quorum.acceptor_on_member import list_names

JOB, SOURCE, STAGE, SINK = "shop", "in", "counts", "out"
PARTITIONS, SHARDS, KEYS = 31, 4, 100
DAY_MS = 24 * 3_600_000
WITHIN = ("manifest written", "committed")
STEPS = (p.RunEpoch, p.Decide, p.WriteRecord, p.Complete, p.CollectGarbage)


class Died(Exception):
    """The execution, in the middle of a step."""


@dataclass(frozen=True)
class Size:
    """Sizes of the store at one moment."""

    keys: int
    """Keys in all maps of the store."""
    registers: int
    member_bytes: int
    """On the disk of the members."""
    database_bytes: int
    remembered: int
    """Files."""
    position_files: int
    manifest_bytes: int
    process_kb: int

    def shown(self) -> str:
        return ", ".join(f"{name} {value:,}" for name, value in vars(self).items())


@dataclass
class Year:
    """The job, from its first execution on."""

    folder: Path
    epochs_per_day: int
    seed: int = 1
    remember: str = "7 days"
    dies_every: int = 80
    """Epochs, about."""
    now_ms: int = 1_700_000_000_000
    read: Counter[str] = field(default_factory=Counter)
    """Files, of all decided epochs."""
    deaths: Counter[str] = field(default_factory=Counter)
    _written: deque[tuple[int, Path]] = field(default_factory=deque)
    _keeper: RecordKeeper | None = None

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        (self.folder / "in").mkdir()
        urls = tuple(f"file://{self.folder}/member-{m}" for m in "ab")
        self.store = Store.open(StoreConfig(urls, partition_count=PARTITIONS))
        self.map = JetMap.open(self.store, "newest", journal=JournalConfig(capacity=5))
        database = f"sqlite:///{self.folder}/shop.db"
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            connection.execute("create table results (k integer primary key, n integer)")
        sink = sinks.sql(database, table="results", mode="upsert", key="k", order_by="n")
        self.sink = sink.with_store(self.store)
        self.start()

    # --- executions -----------------------------------------------------------------------------

    def start(self) -> None:
        """A new execution, from the record."""
        self._keeper = RecordKeeper(self.store, JOB, 60_000, None, self._keeper)
        self.snapshots = SnapshotStore(self.store, JOB)
        source = sources.files(
            f"{self.folder}/in", format="json", schema="k long", remember=self.remember
        )
        reader = source.open(JOB, SOURCE, None)
        assert isinstance(reader, FilesReader)
        reader.now_ms = lambda: self.now_ms
        self.reader = reader
        self.undecided = UndecidedInput(self.store, JOB)
        self.journals = SourceJournals({SOURCE: reader}, self.snapshots, self.undecided)
        self.counts: dict[int, int] = {}
        self.changed: set[int] = set()
        self.reading: list[str] = []
        """Files read since the last decision."""
        config = CoordinatorConfig(
            JOB,
            p.Guarantee.EXACTLY_ONCE,
            0,
            3,
            {SOURCE: 1, STAGE: SHARDS, SINK: 1},
            PARTITIONS,
            "v1",
        )
        self.coordinator = Coordinator(config)
        self._drive(self.coordinator.begin())

    def die(self, where: str) -> None:
        """Ends the driver without releasing anything."""
        assert self._keeper is not None
        self.deaths[where] += 1
        self.journals.close()
        self._keeper.abandon()

    def epoch(self) -> None:
        """Files come and go, and are read; perhaps the execution dies."""
        self.now_ms += DAY_MS // self.epochs_per_day
        for number in range(2):
            path = self.folder / f"in/{self.now_ms}-{number}.json"
            path.write_text(f'{{"k": {self.rng.randrange(KEYS)}}}\n')
            os.utime(path, ns=(self.now_ms * 10**6, self.now_ms * 10**6))
            self._written.append((self.now_ms, path))
        self.doomed = (
            self.rng.choice(STEPS + WITHIN) if self.rng.random() < 1 / self.dies_every else None
        )
        self.dies_first = self.rng.random() < 0.5
        try:
            self._drive(self.coordinator.handle(p.Tick(self.now_ms, wants_epoch=True)))
        except Died as death:
            self.die(str(death))
            self.doomed = None
            self.start()
        while self._written and self._written[0][0] < self.now_ms - DAY_MS:
            _, path = self._written.popleft()
            if self.read[path.name]:
                path.unlink()
            else:  # of an epoch that was not decided
                self._written.append((self.now_ms, path))

    def _drive(self, commands: list[p.Command]) -> None:
        waiting = deque(commands)
        while waiting:
            command = waiting.popleft()
            is_last = type(command) is getattr(self, "doomed", None)
            if is_last and self.dies_first:
                raise Died(f"before {type(command).__name__}")
            answer = self._carry_out(command)
            if is_last:
                raise Died(f"after {type(command).__name__}")
            if answer is not None:
                waiting.extend(self.coordinator.handle(answer))

    def _carry_out(self, command: p.Command) -> p.Event | None:
        assert self._keeper is not None
        match command:
            case p.Claim():
                record = self._keeper.claim(change=None)
                return p.Claimed(record, sinks={SINK: destination_of(self.sink)})
            case p.LoadManifest(ref):
                return p.ManifestLoaded(self.snapshots.load(ref))
            case p.Restore():
                return self._restore(command)
            case p.Complete(manifest, record):
                self._committer().commit(manifest.artifacts, self._context())
                self._passes("committed")
                noted = self._keeper.write(record.with_note(self.now_ms), p.Purpose.COMMITTED)
                return p.Completed(record.execution_id, manifest.snapshot_id, noted, self.now_ms)
            case p.AbortOrphans():
                return self._abort(command)
            case p.RunEpoch():
                return self._run(command)
            case p.Decide():
                return self._decide(command)
            case p.WriteRecord(purpose, record):
                outcome = self._keeper.write(record, purpose)
                return p.RecordAnswer(purpose, outcome, self.now_ms)
            case p.CollectGarbage(manifests, chunk_sets):
                self.snapshots.delete(manifests, chunk_sets)
                return None
        raise AssertionError(f"nobody has asked for {command}")

    def _decide(self, command: p.Decide) -> p.Decided:
        assert self._keeper is not None
        manifest = command.manifest.with_saved(command.acks)
        ref = manifest.ref(self.snapshots.write(manifest), self.now_ms)
        self._passes("manifest written")
        record = command.record.with_snapshot(ref, command.retained_snapshots)
        outcome = self._keeper.write(record, p.Purpose.SNAPSHOT)
        assert outcome is p.WriteOutcome.WRITTEN
        self.journals.decided()
        self.read.update(self.reading)
        self.reading = []
        return p.Decided(manifest, command.acks, record, outcome, self.now_ms)

    def _passes(self, step: str) -> None:
        """Dies in the middle of a command, if it is to die at this step."""
        if getattr(self, "doomed", None) == step:
            raise Died(f"after: {step}")

    # --- what Spark would do --------------------------------------------------------------------

    def _run(self, command: p.RunEpoch) -> p.Event:
        view = self.coordinator.view()
        poll_now(self.reader)
        split = self.reader.plan(10**6) or ()
        self.journals.begin_epoch(command, {SOURCE: view.shards[SOURCE][0].chain})
        self.journals.begun()
        names = [Path(part.path).name for part in split]
        self.reading += names
        for part in split:
            key = int(Path(part.path).read_text().split(":")[1].strip(" }\n"))
            self.counts[key] = self.counts.get(key, 0) + 1
            self.changed.add(key)
        self.reader.verify(split, len(names))
        written, failure = self.journals.written(SOURCE)
        assert failure is None
        chain = view.shards[SOURCE][0].chain
        dropped = superseded(chain, written.sequence) if written else 0
        acks = [Ack(SOURCE, 0, "d", len(names), chunk_set=written, chain_dropped=dropped)]
        acks += [self._stage_ack(s, command, view.shards[STAGE][s].chain) for s in range(SHARDS)]
        acks.append(self._sink_ack(command))
        self.map.put_all({key: self.counts[key] for key in sorted(self.changed)})
        KeptValue(self.store, JOB, "progress", command.execution_id).write(b"x" * 500)
        self.changed = set()
        return p.EpochAcked(
            command.execution_id,
            command.epoch_id,
            tuple(acks),
            {SOURCE: self.reader.position()},
            {},
            self.now_ms,
        )

    def _stage_ack(self, shard: int, command: p.RunEpoch, chain: tuple[ChunkSet, ...]) -> Ack:
        assert command.snapshot_id is not None
        sequence = chain[-1].sequence + 1 if chain else 0
        mine = [partition for partition in range(PARTITIONS) if partition % SHARDS == shard]
        full = {part for part in mine if not chain or turn(part, sequence)}
        keys = [
            key
            for key in sorted(self.counts)
            if key % PARTITIONS in full
            or (key in self.changed and key % PARTITIONS % SHARDS == shard)
        ]
        table = pa.table(
            {
                "k": pa.array(keys, pa.int64()),
                "n": pa.array([self.counts[key] for key in keys], pa.int64()),
                PARTITION_COLUMN: pa.array([key % PARTITIONS for key in keys], pa.int32()),
            }
        )
        chunk_set = write_chunk_set(
            self.store.map(self.snapshots.map_name),
            ChunkSetName(STAGE, command.snapshot_id, command.execution_id, shard, "a"),
            table,
            full,
            sequence=sequence,
            is_base=not chain,
            partition_count=PARTITIONS,
        )
        dropped = superseded(chain, sequence)
        return Ack(STAGE, shard, "a", chunk_set=chunk_set, chain_dropped=dropped)

    def _sink_ack(self, command: p.RunEpoch) -> Ack:
        transaction = TransactionId(
            JOB, SINK, 1, command.execution_id, command.epoch_id, 0, f"a{self.rng.random()}"
        )
        keys = sorted(self.changed)
        writer = self.sink.open_writer(transaction)
        if keys:
            rows = {"k": keys, "n": [self.counts[key] for key in keys]}
            for batch in pa.table(rows).to_batches():
                writer.write(batch)
        artifacts = writer.prepare()
        writer.close()
        return Ack(SINK, 0, "a", artifacts=artifacts)

    # --- starts ---------------------------------------------------------------------------------

    def _restore(self, command: p.Restore) -> p.Event:
        manifest = command.manifest
        chain = manifest.shards[SOURCE][0]
        journal = self.snapshots.read_journal(SOURCE, chain)
        self.reader.restore(manifest.sources[SOURCE], journal)
        assert self.undecided.check(SOURCE, self.reader) == (), "nothing is missed"
        for shard_chain in manifest.shards[STAGE]:
            state = read_chain(
                self.store.map(self.snapshots.map_name),
                shard_chain,
                vertex=STAGE,
                partition_count=PARTITIONS,
            )
            for row in state.to_pylist() if state is not None else ():
                self.counts.setdefault(row["k"], row["n"])  # the newest rows come first
        stages = tuple(ShardState(chain=c) for c in manifest.shards[STAGE])
        return p.Restored({SOURCE: (ShardState(chain=chain),), STAGE: stages})

    def _abort(self, command: p.AbortOrphans) -> p.Event:
        retained = self.snapshots.load_retained(command.keep)
        self.undecided.take_over(SOURCE, command.execution_id)
        tokens = {a.token for m in retained.manifests.values() for a in m.artifacts}
        self._committer().abort_orphans(self._context(), tokens)
        self.snapshots.delete_unreferenced(command.execution_id, retained)
        names = {
            i: {v: frozenset(n) for v, n in m.chunk_sets().items()}
            for i, m in retained.manifests.items()
        }
        positions = {SOURCE: self.reader.position()}
        if not self.coordinator.job.shards:
            self.coordinator.job.shards = {SOURCE: [ShardState()], STAGE: [ShardState()] * SHARDS}
        return p.OrphansAborted(names, positions, {}, self.now_ms)

    def _committer(self) -> Any:
        return self.sink.open_committer(JOB, SINK)

    def _context(self) -> CommitContext:
        by = self.coordinator.record.execution_id
        return CommitContext(JOB, SINK, 1, by, recovering=False)

    # --- looking --------------------------------------------------------------------------------

    def size(self) -> Size:
        """Everything that could grow."""
        maps = [self.store.map(name) for name in self.store.map_names("")]
        manifest = self.snapshots.load(self.coordinator.record.snapshots[0])
        with open("/proc/self/status") as status:
            resident = next(line for line in status if line.startswith("VmRSS"))
        members = [self.folder / f"member-{m}" for m in "ab"]
        database = self.folder / "shop.db"
        return Size(
            keys=sum(len(map.keys("")) for map in maps),
            registers=len(_registers(self.store)),
            member_bytes=sum(_bytes(folder) for folder in members),
            database_bytes=database.stat().st_size,
            remembered=len(self.reader._read),
            position_files=manifest.sources[SOURCE]["files"],
            manifest_bytes=len(manifest.to_bytes()),
            process_kb=int(resident.split()[1]),
        )

    def check(self) -> None:
        """Every file of a decided epoch was read once, and the table has the counts."""
        doubled = [name for name, times in self.read.items() if times != 1]
        assert not doubled, doubled[:5]
        ledger = read_ledger(self.store, self.coordinator.record)
        assert list(ledger.entries) == [SINK]
        with closing(sqlite3.connect(self.folder / "shop.db")) as connection:
            table = dict(connection.execute("select k, n from results").fetchall())
        assert table == self.counts and sum(table.values()) == len(self.read)
        assert dict(self.map.items()) == self.counts

    def close(self) -> None:
        self.die("at the end")
        with suppress(FileNotFoundError):
            self.store.close()


def _registers(store: Store) -> set[str]:
    return set().union(*map(list_names, store._view.members.values()))


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
