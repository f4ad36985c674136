"""Processors for tests of the local runtime: a source with positions, counts, a two-phase sink."""

from collections import Counter
from dataclasses import dataclass, field
from threading import Event

from dagster_jet.dag import (
    DAG,
    Edge,
    ItemProcessor,
    Processor,
    snapshot_emitter,
)

PARTITIONS = 6


class Crash(Exception):
    """Error that a test injects."""


class Numbers(Processor):
    """Emits (partition, 0..count-1) of the partitions it owns; saves a position for each.

    Args:
        gate: it does not end before this is set.
        per_call: items per call of complete, so that snapshots come in between.
    """

    def __init__(self, count: int, gate: Event | None = None, per_call: int = 3) -> None:
        self.count, self.gate, self.per_call = count, gate, per_call
        self.positions: dict[int, int] | None = None

    def init(self, outbox, context):
        super().init(outbox, context)
        self.entries = snapshot_emitter(outbox.offer_to_snapshot)

    def complete(self):
        if self.positions is None:
            mine = range(self.context.index, PARTITIONS, self.context.total_parallelism)
            self.positions = dict.fromkeys(mine, 0)
        for _ in range(self.per_call):
            left = [(at, p) for p, at in self.positions.items() if at < self.count]
            if not left:
                return self.gate is None or self.gate.is_set()
            at, partition = min(left)
            if not self.outbox.offer((partition, at)):
                return False
            self.positions[partition] = at + 1
        return False

    def save_to_snapshot(self):
        return self.entries.emit(lambda: list((self.positions or {}).items()))

    def restore_from_snapshot(self, inbox):
        self.positions = self.positions or {}
        self.positions.update(inbox.drain())
        return True

    def finish_snapshot_restore(self):
        self.positions = self.positions or {}
        return True


class Counts(ItemProcessor):
    """Emits (partition, how many so far) for each item."""

    def __init__(self) -> None:
        self.counts: Counter = Counter()

    def init(self, outbox, context):
        super().init(outbox, context)
        self.entries = snapshot_emitter(outbox.offer_to_snapshot)

    def process_item(self, ordinal, item):
        partition, _ = item
        if not self.outbox.offer((partition, self.counts[partition] + 1)):
            return False
        self.counts[partition] += 1
        return True

    def save_to_snapshot(self):
        return self.entries.emit(lambda: list(self.counts.items()))

    def restore_from_snapshot(self, inbox):
        for key, count in inbox.drain():
            assert key not in self.counts
            self.counts[key] = count
        return True


@dataclass
class Place:
    """Place that the sinks of one job write to; it outlives their crashes."""

    prepared: dict[str, list] = field(default_factory=dict)
    committed: list = field(default_factory=list)
    seen: int = 0
    crash_at: int | None = None
    named: int = 0

    def commit(self, name: str) -> None:
        self.committed += self.prepared.pop(name, [])

    def notice(self, item) -> None:
        self.seen += 1
        if self.seen == self.crash_at:
            raise Crash(f"at item {item}")


class TwoPhaseSink(ItemProcessor):
    """Collects; promises at prepare; commits at finish, at restore, and at the end of the input."""

    def __init__(self, place: Place) -> None:
        self.place, self.active, self.promised = place, [], []
        self.left: list[str] | None = None
        self.is_undecided = False

    def process_item(self, ordinal, item):
        self.place.notice(item)
        self.active.append(item)
        return True

    def snapshot_commit_prepare(self):
        if self.left is None:
            if self.active:
                self.place.named += 1
                name = f"t{self.place.named}"
                self.place.prepared[name], self.active = self.active, []
                self.promised.append(name)
            self.left = list(self.promised)
        while self.left:
            if not self.outbox.offer_to_snapshot(self.left[0], None):
                return False
            self.left.pop(0)
        self.left, self.is_undecided = None, True
        return True

    def snapshot_commit_finish(self, *, success):
        self.is_undecided = False
        if success:
            for name in self.promised:
                self.place.commit(name)
            self.promised = []
        return True

    def complete(self):
        if self.is_undecided:
            return False
        for name in self.promised:
            self.place.commit(name)
        self.place.committed += self.active
        self.active, self.promised = [], []
        return True

    def restore_from_snapshot(self, inbox):
        for name, _ in inbox.drain():
            self.place.commit(name)
        return True


class Collect(ItemProcessor):
    """Appends every item and watermark to a list at once: at-least-once at best."""

    def __init__(self, items: list) -> None:
        self.items = items

    def process_item(self, ordinal, item):
        self.items.append(item)
        return True

    def try_process_watermark(self, watermark):
        self.items.append(watermark)
        return True


class Feed(Processor):
    """Emits what a test puts into a list, until the gate is set; saves how far it is."""

    def __init__(self, items: list, gate: Event | None = None) -> None:
        self.items, self.gate, self.next = items, gate, 0

    def complete(self):
        while self.next < len(self.items):
            if not self.outbox.offer(self.items[self.next]):
                return False
            self.next += 1
        return self.gate is None or self.gate.is_set()

    def save_to_snapshot(self):
        return self.outbox.offer_to_snapshot("next", self.next)

    def restore_from_snapshot(self, inbox):
        self.next = inbox.poll().value
        return True


def two_feeds(left: list, right: list, gate: Event, out: list) -> DAG:
    """Two sources, one sink: items and watermarks as they arrive."""
    dag = DAG("feeds")
    dag.new_vertex("left", lambda: Feed(left, gate))
    dag.new_vertex("right", lambda: Feed(right, gate))
    dag.new_vertex("sink", lambda: Collect(out))
    dag.edge(Edge.between("left", "sink"))
    dag.edge(Edge.between("right", "sink").to_vertex("sink", 1))
    return dag


def counting_dag(count: int, place: Place, gate: Event | None = None) -> DAG:
    dag = DAG("counting")
    dag.new_vertex("numbers", lambda: Numbers(count, gate))
    dag.new_vertex("counts", Counts)
    dag.new_vertex("sink", lambda: TwoPhaseSink(place))
    # Short queues: barriers arrive at different times, as on a busy cluster.
    by_partition = Edge.between("numbers", "counts").partitioned(lambda item: item[0])
    dag.edge(by_partition.with_queue_size(2))
    dag.edge(Edge.between("counts", "sink").with_queue_size(2))
    return dag


def expected_counts(count: int) -> Counter:
    """Expected rows of the counting job, computed without the engine."""
    return Counter((partition, n + 1) for partition in range(PARTITIONS) for n in range(count))
