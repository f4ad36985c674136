"""Any interleaving of arrivals: what exactly-once saves is exactly what preceded the barriers."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dagster_jet.dag import DONE, SnapshotBarrier
from tests.unit.dag.rig import Rig

BARRIERS = 3


@st.composite
def histories(draw):
    """Edges of queues; per queue items, barriers in order, and an end; an order of arrival."""
    shape = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    queues = []
    for number in range(sum(shape)):
        counts = draw(st.lists(st.integers(0, 3), min_size=BARRIERS + 1, max_size=BARRIERS + 1))
        queue, next_item = [], 0
        for snapshot_id, count in enumerate(counts):
            queue += [(number, next_item + i) for i in range(count)]
            next_item += count
            queue.append(SnapshotBarrier(snapshot_id) if snapshot_id < BARRIERS else DONE)
        queues.append(queue)
    arrivals = [number for number, queue in enumerate(queues) for _ in queue]
    return tuple(shape), queues, draw(st.permutations(arrivals)), draw(st.sampled_from([1, 2, 99]))


def run(history, *, exactly_once):
    """Feeds the history; returns the output, and per snapshot what was saved before it."""
    shape, queues, arrivals, inbox_limit = history
    rig = Rig(shape=shape, exactly_once=exactly_once, inbox_limit=inbox_limit)
    left, arrivals = [list(queue) for queue in queues], list(arrivals)
    while arrivals:
        ready = (n for n in arrivals if may_come(left[n][0], rig.snapshots.next_id))
        number = next(ready, None)
        if number is None:
            rig.run()
            assert rig.tasklet.has_saved(rig.snapshots.next_id)
        else:
            arrivals.remove(number)
            rig.put(number, left[number].pop(0))
            rig.tasklet.call()
        if rig.tasklet.has_saved(rig.snapshots.next_id):
            decide(rig)
    for _ in range(BARRIERS + 1):
        rig.run()
        decide(rig)
    rig.run()
    return rig.out, rig.saved


def may_come(item, snapshot_id) -> bool:
    """No snapshot begins before the last one is decided."""
    return not isinstance(item, SnapshotBarrier) or item.snapshot_id <= snapshot_id


def decide(rig) -> None:
    from dagster_jet.dag import Phase2

    rig.snapshots.phase2 = Phase2(rig.snapshots.next_id, True)
    rig.snapshots.next_id += 1


def saved_before(saved, snapshot_id) -> Counter:
    """The echo saves what is new since the last snapshot, so everything up to its barrier."""
    at = saved.index(SnapshotBarrier(snapshot_id))
    return Counter(item for item in saved[:at] if not isinstance(item, SnapshotBarrier))


def before_barrier(queues, snapshot_id) -> Counter:
    return Counter(
        item
        for queue in queues
        for item in queue[: queue.index(SnapshotBarrier(snapshot_id))]
        if isinstance(item, tuple)
    )


def assert_whole(queues, out) -> None:
    """Asserts that nothing is lost or doubled, every queue is in its order, and each barrier
    arrives once, in order."""
    for number, queue in enumerate(queues):
        mine = [item for item in out if isinstance(item, tuple) and item[0] == number]
        assert mine == [item for item in queue if isinstance(item, tuple)]
    barriers = [item for item in out if isinstance(item, SnapshotBarrier)]
    assert barriers == [SnapshotBarrier(number) for number in range(BARRIERS)]
    assert out[-1] is DONE


@given(histories())
def test_exactly_once_saves_exactly_what_preceded_the_barriers(history):
    out, saved = run(history, exactly_once=True)
    assert_whole(history[1], out)
    for snapshot_id in range(BARRIERS):
        expected = before_barrier(history[1], snapshot_id)
        assert saved_before(saved, snapshot_id) == expected
        at = out.index(SnapshotBarrier(snapshot_id))
        assert Counter(i for i in out[:at] if isinstance(i, tuple)) == expected


@given(histories())
def test_at_least_once_saves_at_least_what_preceded_the_barriers(history):
    out, saved = run(history, exactly_once=False)
    assert_whole(history[1], out)
    for snapshot_id in range(BARRIERS):
        assert saved_before(saved, snapshot_id) >= before_barrier(history[1], snapshot_id)
