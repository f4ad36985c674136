"""The local runtime: real queues and barriers, crashes, restarts at another parallelism."""

import logging
from collections import Counter
from itertools import count
from threading import Event

import pytest

from dagster_jet.dag import (
    DAG,
    IDLE,
    Edge,
    Inbox,
    ItemProcessor,
    Processor,
    Watermark,
)
from dagster_jet.dag.local import LocalJob, LocalStatus, MemorySnapshots, partitioning
from dagster_jet.dag.local.snapshot_coordinator import SnapshotPhase
from dagster_jet.errors import (
    ConfigurationError,
    JobStateError,
    PipelineError,
    ProcessorError,
    SnapshotFailedError,
    SnapshotInvalidError,
)
from tests.unit.dag.local_processors import (
    Collect,
    Crash,
    Feed,
    Place,
    TwoPhaseSink,
    counting_dag,
    expected_counts,
    two_feeds,
)

GUARANTEES = ["none", "at-least-once", "exactly-once"]


def steps(job: LocalJob, *, until=lambda: False, at_most: int = 20_000) -> None:
    """Steps until something holds, or the job has ended."""
    for _ in range(at_most):
        if until() or not job.step():
            return
    raise AssertionError(f"not within {at_most} steps")


# --- running ----------------------------------------------------------------------------------


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_job_that_is_not_disturbed(guarantee, parallelism):
    place = Place()
    interval = None if guarantee == "none" else 0
    job = LocalJob(
        counting_dag(50, place),
        guarantee=guarantee,
        parallelism=parallelism,
        snapshot_interval_ms=interval,
    )
    result = job.run(60)
    assert result.status is LocalStatus.COMPLETED
    assert Counter(place.committed) == expected_counts(50)
    assert (result.snapshots_taken > 0) == (guarantee != "none")


def crashed(place: Place, snapshots: MemorySnapshots) -> None:
    """Rolls back transactions that were prepared before a kill and are in no snapshot."""
    latest = snapshots.latest()
    saved = {name for name, _ in latest.state("sink")} if latest else set()
    place.prepared = {n: items for n, items in place.prepared.items() if n in saved}


RUNS = [
    (parallelisms, first_crash)
    for parallelisms in [(1,), (2, 3, 1), (4, 1, 5)]
    for first_crash in [1, 17, 60, 111]
]


@pytest.mark.parametrize("parallelisms, first_crash", RUNS)
def test_exactly_once_over_crashes_and_changes_of_parallelism(parallelisms, first_crash):
    assert crash_and_restart("exactly-once", parallelisms, first_crash) == expected_counts(40)


def test_these_runs_would_show_a_barrier_that_is_overtaken():
    outcomes = [crash_and_restart("at-least-once", *run) for run in RUNS]
    assert any(outcome != expected_counts(40) for outcome in outcomes)


def crash_and_restart(guarantee, parallelisms, first_crash) -> Counter:
    """Five crashes, each restart from the last snapshot at another parallelism; what came out."""
    place, snapshots = Place(), MemorySnapshots()
    for run in range(6):
        place.crash_at = place.seen + first_crash + 7 * run if run < 5 else None
        job = LocalJob(
            counting_dag(40, place, Event()),
            guarantee=guarantee,
            inbox_limit=1,
            snapshot_interval_ms=0,
            parallelism=parallelisms[run % len(parallelisms)],
            restore=snapshots.latest(),
            snapshots=snapshots,
        )
        try:
            run_until_quiet(job, place)
        except ProcessorError as error:
            assert isinstance(error.__cause__, Crash) and error.vertex == "sink"
            crashed(place, snapshots)
    return Counter(place.committed)


def run_until_quiet(job: LocalJob, place: Place) -> None:
    """Steps until the sinks see nothing new, then ends with a terminal snapshot."""
    quiet, seen = 0, place.seen
    while quiet < 100:
        job.step()
        quiet, seen = (quiet + 1 if seen == place.seen else 0), place.seen
    job.request_snapshot(terminal=True)
    steps(job)


def test_the_same_on_threads():
    place, snapshots, gate = Place(crash_at=100), MemorySnapshots(), Event()
    with pytest.raises(ProcessorError):
        LocalJob(
            counting_dag(100, place, gate),
            snapshot_interval_ms=0,
            parallelism=2,
            snapshots=snapshots,
        ).run(60)
    crashed(place, snapshots)
    gate.set()
    LocalJob(counting_dag(100, place, gate), parallelism=3, restore=snapshots.latest()).run(60)
    assert Counter(place.committed) == expected_counts(100)


def test_at_least_once_loses_nothing():
    place, snapshots, runs = Place(), MemorySnapshots(), 0

    while True:
        place.crash_at = place.seen + 50 if runs < 3 else None
        runs += 1
        try:
            job = LocalJob(
                counting_dag(40, place),
                guarantee="at-least-once",
                snapshot_interval_ms=0,
                restore=snapshots.latest(),
                snapshots=snapshots,
                parallelism=2,
            )
            steps(job)
            break
        except ProcessorError:
            continue
    items = {partition for partition, _ in place.committed}
    assert items == set(range(6))
    for partition in items:
        assert max(n for p, n in place.committed if p == partition) >= 40


# --- snapshots on request ---------------------------------------------------------------------


def test_a_snapshot_on_request_while_the_job_goes_on():
    gate, place = Event(), Place()
    job = LocalJob(counting_dag(20, place, gate), parallelism=2).start()
    try:
        snapshot = job.snapshot()
        assert snapshot.snapshot_id == 0
        assert set(snapshot.entries) == {"numbers", "counts", "sink"}
        assert sum(at for _, at in snapshot.state("numbers")) == sum(
            count for _, count in snapshot.state("counts")
        ), "one cut: what the sources have emitted is what was counted"
        assert job.snapshot().snapshot_id == 1
    finally:
        gate.set()
    assert job.result(60).status is LocalStatus.COMPLETED
    assert Counter(place.committed) == expected_counts(20)


def test_cancel_and_snapshot_and_go_on_at_another_parallelism():
    gate, place = Event(), Place()
    job = LocalJob(counting_dag(500, place, gate), parallelism=3).start()
    snapshot = job.cancel_and_snapshot()
    assert job.status is LocalStatus.CANCELLED
    assert not place.prepared, "phase 2 came before the end"
    gate.set()
    LocalJob(counting_dag(500, place, gate), parallelism=2, restore=snapshot).run(60)
    assert Counter(place.committed) == expected_counts(500)


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_nothing_is_processed_behind_a_terminal_barrier(guarantee):
    feed, out = [[1, 2, 3], [4]], []
    dag = DAG("terminal")
    gate = Event()
    for number, items in enumerate(feed):
        dag.new_vertex(f"source{number}", lambda items=items: Feed(items, gate))
    dag.new_vertex("sink", lambda: Collect(out))
    dag.edge(Edge.between("source0", "sink"))
    dag.edge(Edge.between("source1", "sink").to_vertex("sink", 1))
    job = LocalJob(dag, guarantee=guarantee)
    steps(job, until=lambda: len(out) == 4)
    result = job.request_snapshot(terminal=True)
    steps(job, until=lambda: job._coordinator.phase is SnapshotPhase.SAVING)
    feed[0] += [5, 6]  # emitted by nobody: the sources are asked before they are called
    steps(job)
    assert result.result(0).state("source0") == [("next", 3)]
    assert sorted(out) == [1, 2, 3, 4]
    assert job.result(0).status is LocalStatus.CANCELLED


def test_an_export_is_not_the_latest_and_commits_nothing():
    gate, place = Event(), Place()
    job = LocalJob(counting_dag(5, place, gate)).start()
    exported = job.export_snapshot()
    assert set(exported.entries) == {"numbers", "counts", "sink"}
    assert exported.entries["sink"] == () and job.snapshots.latest() is None
    gate.set()
    job.result(60)


def test_a_snapshot_that_cannot_be_kept_is_discarded_and_the_job_goes_on():
    class Full(MemorySnapshots):
        refusals = 2

        def put(self, snapshot):
            if self.refusals:
                self.refusals -= 1
                raise OSError("no space left")
            super().put(snapshot)

    gate, place, snapshots = Event(), Place(), Full()
    job = LocalJob(counting_dag(10, place, gate), snapshots=snapshots).start()
    for _ in range(2):
        with pytest.raises(SnapshotFailedError, match="no space left"):
            job.snapshot()
    assert place.committed == [], "phase 2 said success=False"
    snapshot = job.snapshot()
    assert snapshot.snapshot_id == 2 and not place.prepared
    gate.set()
    assert job.result(60).snapshots_failed == 2
    assert Counter(place.committed) == expected_counts(10)


def test_snapshots_wait_for_a_prioritised_edge():
    table_gate, gate = Event(), Event()
    table, rows, out = ["t1"], ["r1"], []
    dag = DAG("hash_join")
    dag.new_vertex("table", lambda: Feed(table, table_gate))
    dag.new_vertex("rows", lambda: Feed(rows, gate))
    dag.new_vertex("join", lambda: Collect(out))
    dag.edge(Edge.between("rows", "join"))
    dag.edge(Edge.between("table", "join").to_vertex("join", 1).with_priority(-1))
    job = LocalJob(dag)
    steps(job, until=lambda: out == ["t1"])
    future = job.request_snapshot()
    for _ in range(100):
        job.step()
    assert job._coordinator.phase is SnapshotPhase.POSTPONED and not future.done()
    table_gate.set()
    steps(job, until=future.done)
    assert future.result().ended["table"].all
    assert out == ["t1", "r1"]
    gate.set()
    steps(job)


def test_a_terminal_request_at_any_time_is_the_end_or_comes_too_late():
    outcomes = Counter()
    for request_after in count(1):
        place = Place()
        job = LocalJob(counting_dag(3, place))
        if not all(job.step() for _ in range(request_after)):
            break
        future = job.request_snapshot(terminal=True)
        steps(job)
        outcomes[job.status] += 1
        if job.status is LocalStatus.CANCELLED:
            steps(LocalJob(counting_dag(3, place), restore=future.result(0)))
        else:
            with pytest.raises(SnapshotFailedError, match="the job ended before"):
                future.result(0)
        assert Counter(place.committed) == expected_counts(3)
    assert outcomes.keys() == {LocalStatus.CANCELLED, LocalStatus.COMPLETED}


def test_a_request_that_is_cancelled_is_skipped():
    gate, place = Event(), Place()
    job = LocalJob(counting_dag(3, place, gate))
    job.step()
    first, second = job.request_snapshot(), job.request_snapshot()
    assert first.cancel()
    steps(job, until=second.done)
    assert second.result(0).snapshot_id == 0, "the first was none"
    third, fourth = job.request_snapshot(), job.request_snapshot()
    steps(job, until=lambda: job._coordinator.phase is SnapshotPhase.SAVING)
    assert not third.cancel(), "it has begun"
    assert fourth.cancel()
    job.cancel()
    with pytest.raises(SnapshotFailedError, match="the job ended before"):
        third.result(0)
    assert fourth.cancelled() and job.result(0).status is LocalStatus.CANCELLED


# --- restoring --------------------------------------------------------------------------------


def two_sources(gate: Event, out: list) -> DAG:
    dag = DAG("two")
    dag.new_vertex("short", lambda: Feed(["a"]))
    dag.new_vertex("long", lambda: Feed(["b", "c"], gate))
    dag.new_vertex("sink", lambda: Collect(out))
    dag.edge(Edge.between("short", "sink"))
    dag.edge(Edge.between("long", "sink").to_vertex("sink", 1))
    return dag


def test_a_source_that_had_ended_at_the_snapshot_is_not_read_again():
    gate, out = Event(), []
    job = LocalJob(two_sources(gate, out))
    steps(job, until=lambda: len(out) == 3)
    job.step()
    future = job.request_snapshot(terminal=True)
    steps(job)
    again: list = []
    gate.set()
    LocalJob(two_sources(gate, again), restore=future.result()).run(60)
    assert sorted(out + again) == ["a", "b", "c"]


def test_instances_that_had_ended_cannot_be_divided_anew():
    class Uneven(Feed):
        """Instance 0 ends at once, the others at the gate."""

        def complete(self):
            return self.context.index == 0 or self.gate.is_set()

        def save_to_snapshot(self):
            return self.outbox.offer_to_snapshot(self.context.index, 0)

        def restore_from_snapshot(self, inbox):
            inbox.drain()
            return True

    gate = Event()
    dag = DAG("uneven")
    dag.new_vertex("source", lambda: Uneven([], gate))
    job = LocalJob(dag, parallelism=2)
    for _ in range(5):
        job.step()
    future = job.request_snapshot()
    steps(job, until=future.done)
    snapshot = future.result()
    assert snapshot.ended["source"].indices == {0}
    with pytest.raises(SnapshotInvalidError, match="local_parallelism=2"):
        LocalJob(dag, parallelism=3, restore=snapshot)
    gate.set()
    assert LocalJob(dag, parallelism=2, restore=snapshot).run(60)


def test_state_of_a_vertex_that_is_gone_is_refused():
    gate = Event()
    job = LocalJob(counting_dag(3, Place(), gate)).start()
    snapshot = job.cancel_and_snapshot()
    other = DAG("other")
    other.new_vertex("renamed", Processor)
    with pytest.raises(SnapshotInvalidError, match="counts, numbers"):
        LocalJob(other, restore=snapshot)


def test_another_number_of_partitions_is_refused():
    gate, place = Event(), Place()
    job = LocalJob(counting_dag(3, place, gate), parallelism=3, partitioning=partitioning(100))
    snapshot = job.start().cancel_and_snapshot()
    assert snapshot.partition_count == 100
    with pytest.raises(SnapshotInvalidError, match=r"100 partitions.*271.*partitioning\(100\)"):
        LocalJob(counting_dag(3, place, gate), parallelism=3, restore=snapshot)


def test_the_latest_snapshot_is_of_the_timeline_that_was_restored_last():
    gate, snapshots = Event(), MemorySnapshots(retained=3)
    first = LocalJob(counting_dag(3, Place(), gate), snapshots=snapshots).start()
    oldest, *_ = [first.snapshot() for _ in range(3)]
    first.cancel()
    again = LocalJob(counting_dag(3, Place(), gate), restore=oldest, snapshots=snapshots).start()
    taken = again.snapshot()
    assert taken.snapshot_id == 1 and snapshots.latest() is taken
    for _ in range(3):
        taken = again.snapshot()
        assert snapshots.latest() is taken and len(snapshots) == 3
    again.cancel()


def test_snapshot_ids_go_on_after_a_restart():
    gate = Event()
    snapshot = LocalJob(counting_dag(3, Place(), gate)).start().cancel_and_snapshot()
    again = LocalJob(counting_dag(3, Place(), gate), restore=snapshot).start()
    assert again.snapshot().snapshot_id == snapshot.snapshot_id + 1
    gate.set()
    again.result(60)


# --- watermarks -------------------------------------------------------------------------------


def test_watermarks_are_coalesced_over_queues_and_edges_and_idle_passes_through():
    gate, out = Event(), []
    left, right = [Watermark(10), "l"], [Watermark(7), "r"]
    dag = two_feeds(left, right, gate, out)
    job = LocalJob(dag)
    steps(job, until=lambda: len(out) >= 3)
    assert sorted(map(str, out)) == sorted(["l", "r", str(Watermark(7))])
    (held,) = job.held_back_by()
    assert (held.vertex, held.upstream, held.queue, held.watermark) == ("sink", "right", None, 7)
    right.append(IDLE)
    steps(job, until=lambda: out[-1] == Watermark(10))
    assert job.held_back_by() == []
    gate.set()
    steps(job)


def test_retention_frees_the_watermark_by_wall_clock():
    now, gate, out = [1_000_000], Event(), []
    left, right = [Watermark(100)], ["event"]
    dag = two_feeds(left, right, gate, out)
    job = LocalJob(dag, max_retention_ms=20, now_ms=lambda: now[0])
    steps(job, until=lambda: out == ["event"])
    for now[0] in (1_000_010, 1_000_019):
        for _ in range(5):
            job.step()
    assert out == ["event"]
    now[0] = 1_000_020
    for _ in range(5):
        job.step()
    assert out == ["event", Watermark(100)]
    gate.set()
    steps(job)


def test_a_clock_that_a_test_hands_in_times_the_snapshots():
    now, gate = [0], Event()
    job = LocalJob(counting_dag(1, Place(), gate), snapshot_interval_ms=100, now_ms=lambda: now[0])
    for now[0], expected in ((99, None), (100, 0), (199, 0), (200, 1)):
        for _ in range(20):
            job.step()
        latest = job.snapshots.latest()
        assert (latest and latest.snapshot_id) == expected
    job.cancel()


# --- threads ----------------------------------------------------------------------------------


class Blocking(ItemProcessor):
    """Takes its time, so it has a thread of its own."""

    is_cooperative = False

    def __init__(self, release: Event, out: list) -> None:
        self.release, self.out = release, out

    def process_item(self, ordinal, item):
        if not self.release.wait(0.01):
            return False
        self.out.append(item)
        return True


def test_a_blocking_processor_does_not_hold_up_the_others():
    release, through, quick, slow = Event(), Event(), [], []

    class Tells(Collect):
        def complete(self):
            through.set()
            return True

    dag = DAG("threads")
    dag.new_vertex("source", lambda: Feed([1, 2, 3]))
    dag.new_vertex("quick", lambda: Tells(quick))
    dag.new_vertex("slow", lambda: Blocking(release, slow))
    dag.edge(Edge.from_vertex("source", 0).to_vertex("quick"))
    dag.edge(Edge.from_vertex("source", 1).to_vertex("slow"))
    job = LocalJob(dag).start()
    assert through.wait(30)
    assert (quick, slow) == ([1, 2, 3], [])
    release.set()
    assert job.result(60).status is LocalStatus.COMPLETED and slow == [1, 2, 3]


def test_an_error_on_a_thread_of_its_own_ends_the_job_and_closes_everybody():
    closed = []

    class Fails(Processor):
        is_cooperative = False

        def complete(self):
            raise Crash("no disk")

    class Endless(Processor):
        def complete(self):
            return False

        def close(self):
            closed.append("endless")

    dag = DAG("fails")
    dag.new_vertex("fails", Fails)
    dag.new_vertex("endless", Endless)
    job = LocalJob(dag)
    with pytest.raises(ProcessorError, match=r"'fails'.*complete\(\).*no disk"):
        job.run(60)
    assert job.status is LocalStatus.FAILED and closed == ["endless"]
    with pytest.raises(JobStateError, match="failed, not running"):
        job.snapshot()


def test_cancelling_closes_everybody_and_tells_those_who_wait():
    gate = Event()
    table_gate = Event()
    dag = DAG("waits")
    dag.new_vertex("table", lambda: Feed([], table_gate))
    dag.new_vertex("rows", lambda: Feed([], gate))
    dag.new_vertex("join", lambda: Collect([]))
    dag.edge(Edge.between("rows", "join"))
    dag.edge(Edge.between("table", "join").to_vertex("join", 1).with_priority(-1))
    job = LocalJob(dag).start()
    future = job.request_snapshot()
    job.cancel()
    assert job.result(60).status is LocalStatus.CANCELLED
    with pytest.raises(SnapshotFailedError, match="the job ended before"):
        future.result(0)


class Stuck(Processor):
    """Does not return until the test lets it."""

    is_cooperative = False

    def __init__(self, called: Event, release: Event) -> None:
        self.called, self.release = called, release

    def complete(self):
        self.called.set()
        return self.release.wait(60)


def test_whoever_does_not_return_is_named_and_left_behind(caplog):
    called, release = Event(), Event()
    dag = DAG("stuck")
    dag.new_vertex("source", lambda: Stuck(called, release))
    job = LocalJob(dag).start()
    assert called.wait(30)
    job.cancel(timeout_s=0.05)
    assert job.result(30).status is LocalStatus.CANCELLED
    assert "source#0 does not return from its callback; its thread is abandoned" in caplog.text
    release.set()


def test_a_run_that_is_over_time_says_so_whatever_blocks():
    class Impatient(LocalJob):
        def cancel(self, timeout_s=0.05):
            super().cancel(timeout_s)

    release = Event()
    dag = DAG("stuck")
    dag.new_vertex("source", lambda: Stuck(Event(), release))
    with pytest.raises(TimeoutError, match=r"'stuck' has not ended within 0\.05 s"):
        Impatient(dag).run(timeout_s=0.05)
    release.set()


def test_a_hog_is_named_once(caplog):
    now = iter(range(10**6))

    class Hog(Processor):
        calls = 0

        def complete(self):
            self.calls += 1
            next(now)
            return self.calls > 5

    dag = DAG("hog")
    dag.new_vertex("hog", Hog)
    with caplog.at_level(logging.WARNING):
        LocalJob(dag, slow_call_s=0).run(60)
    warnings = [r.getMessage() for r in caplog.records if "complete()" in r.getMessage()]
    assert len(warnings) == 1 and "hog#0.complete() blocked the cooperative thread" in warnings[0]


# --- what is refused --------------------------------------------------------------------------


def test_settings_that_contradict_each_other():
    dag = DAG("none")
    dag.new_vertex("v", Processor)
    with pytest.raises(ConfigurationError, match="has no snapshots"):
        LocalJob(dag, guarantee="none", snapshot_interval_ms=0)
    with pytest.raises(ConfigurationError, match="expected one of 'none'"):
        LocalJob(dag, guarantee="exactly once")
    with pytest.raises(ConfigurationError, match="snapshot_interval_ms is -1"):
        LocalJob(dag, snapshot_interval_ms=-1)
    with pytest.raises(ConfigurationError, match="1 or more"):
        LocalJob(dag, parallelism=0)
    with pytest.raises(JobStateError, match="has no snapshots"):
        LocalJob(dag, guarantee="none").snapshot()
    job = LocalJob(dag)
    job.run(60)
    with pytest.raises(JobStateError, match="already been started"):
        job.start()


def test_an_isolated_edge_into_more_instances_is_refused():
    dag = DAG("isolated")
    dag.new_vertex("a", Processor, local_parallelism=1)
    dag.new_vertex("b", Processor, local_parallelism=2)
    dag.edge(Edge.between("a", "b").isolated())
    with pytest.raises(PipelineError, match="1 instances feed 2"):
        LocalJob(dag)


@pytest.mark.parametrize(
    "supplier, message",
    [(lambda: "text", "not a Processor"), (lambda: 1 / 0, "ZeroDivisionError")],
)
def test_suppliers_that_supply_nothing(supplier, message):
    dag = DAG("supplier")
    dag.new_vertex("v", supplier)
    with pytest.raises(ProcessorError, match=message):
        LocalJob(dag)


@pytest.mark.parametrize("parallelisms", [(2,), (1, 1)], ids=["one vertex", "two vertices"])
def test_one_instance_supplied_twice(parallelisms):
    shared = Processor()
    dag = DAG("shared")
    for number, parallelism in enumerate(parallelisms):
        dag.new_vertex(f"v{number}", lambda: shared, local_parallelism=parallelism)
    with pytest.raises(ProcessorError, match="had been returned before") as caught:
        LocalJob(dag)
    assert caught.value.callback == "supplier()" and "a new Processor" in caught.value.cure


def test_what_cannot_be_serialised_is_found_when_it_is_saved():
    class Saves(Processor):
        def complete(self):
            return False

        def save_to_snapshot(self):
            return self.outbox.offer_to_snapshot("key", lambda: None)

        def restore_from_snapshot(self, inbox: Inbox):
            inbox.drain()
            return True

    dag = DAG("pickle")
    dag.new_vertex("v", Saves)
    job = LocalJob(dag, snapshot_interval_ms=0)
    with pytest.raises(ProcessorError, match="cannot be serialised"):
        job.run(60)


def test_isolated_keeps_the_instances_apart():
    seen: dict[int, list] = {0: [], 1: []}

    class Mark(ItemProcessor):
        def process_item(self, ordinal, item):
            seen[self.context.index].append(item)
            return True

    class Tell(Processor):
        told = False

        def complete(self):
            if not self.told and not self.outbox.offer(self.context.index):
                return False
            self.told = True
            return True

    dag = DAG("isolated")
    dag.new_vertex("a", Tell)
    dag.new_vertex("b", Mark)
    dag.edge(Edge.between("a", "b").isolated())
    LocalJob(dag, parallelism=2).run(60)
    assert seen == {0: [0], 1: [1]}


def test_the_sink_of_these_tests_keeps_the_contract():
    from dagster_jet.testing import verify_processor

    verify_processor(lambda: TwoPhaseSink(Place()), input=[1, 2, 3], expect=[], key=lambda i: i)
