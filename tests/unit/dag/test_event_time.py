"""Event times become watermarks: the vectors of section 2, row by row, and the rules around."""

import re

import pytest

from dagster_jet.dag import IDLE, WatermarkCoalescer
from dagster_jet.dag.event_time_mapper import EventTimeMapper, EventTimePolicy, watermark_frame_ms

# (lag, frame, idle timeout, partitions), steps. "p0:10" is an event, "∅" nothing.
VECTORS = {
    "M1": (
        (3, 1, 5, 2),
        "t1 poll→∅; t5 poll→IDLE; t5 poll→∅; t5 p0:100→wm97,100; p0:90→90; p0:101→wm98,101",
    ),
    "M2": (
        (3, 1, 0, 2),
        "p0:10→10; p0:11→11; p1:10→wm7,10; p1:11→wm8,11; p1:12→12; p0:13→wm9,13",
    ),
    "M3": ((3, 1, 0, 0), "poll→IDLE; poll→∅; add p0→∅; poll→∅; p0:10→wm7,10"),
    "M4": (
        (3, 1, 10, 1),
        "t0 p0:10→wm7,10; t10 poll→IDLE; t10 p0:10→10; t10 poll→∅; t20 poll→IDLE",
    ),
    "M5": ((3, 1, 10, 2), "t0 p0:10→10; t10 poll→wm7,IDLE"),
    "M6": ((0, 0, 0, 1), "p0:-10→-10; p0:10→10"),
    "M7": ((0, 1, 0, 1), "restore p0:10→∅; p0:9→9; p0:10→10; p0:11→wm11,11"),
    "M8": ((0, 1, 0, 2), "p0:10→10; remove p1→wm10"),
    "M9": (
        (0, 1, 5, 3),
        "t0 p0:10→10; t1 p1:11→11; t1 p2:12→wm10,12; t5 remove p1→wm12",
    ),
    "M13": ((3, 2, 0, 1), "p0:10→wm6,10; p0:11→wm8,11; p0:12→12; p0:13→wm10,13"),
    "M14": ((3, 10, 0, 1), "p0:14→wm10,14; p0:15→15; p0:24→wm20,24"),
    "M15": ((3, 2, 0, 1), "p0:11→wm8,11; p0:15→wm12,15"),
}


def shown(items):
    return ",".join("IDLE" if i is IDLE else f"wm{i.timestamp_ms}" for i in items)


def step(mapper, text, now):
    if text == "poll":
        return shown(mapper.poll(now_ms=now)) or "∅"
    action, _, partition = text.rpartition(" ")
    if action == "add":
        mapper.add_partition(partition, now_ms=now)
        return "∅"
    if action == "remove":
        return shown(mapper.remove_partition(partition, now_ms=now)) or "∅"
    name, _, value = partition.partition(":")
    if action == "restore":
        mapper.restore(name, int(value), now_ms=now)
        return "∅"
    before = shown(mapper.event(name, int(value), now_ms=now))
    return f"{before},{value}" if before else value


@pytest.mark.parametrize("name", VECTORS)
def test_event_time_vector(name):
    (lag, frame, timeout, count), story = VECTORS[name]
    partitions = [f"p{number}" for number in range(count)]
    mapper = EventTimeMapper(EventTimePolicy(lag, frame, timeout), partitions)
    now = 0
    for line in story.split(";"):
        action, _, expected = line.strip().partition("→")
        if timed := re.match(r"t(\d+) (.*)", action):
            now, action = int(timed[1]), timed[2]
        result = step(mapper, action, now)
        assert result == expected, f"{name}: {action} at {now} gave {result}, expected {expected}"


@pytest.mark.parametrize(
    "slides, frame",
    [
        ([], 1000),
        ([300, 200], 100),
        ([60_000], 1000),
        ([1500], 500),
        ([2500, 1000], 500),
        ([7001], 1),
    ],
)
def test_the_frame_is_the_common_divisor_of_all_slides(slides, frame):
    assert watermark_frame_ms(slides) == frame


def mapper_of(*partitions, **policy):
    return EventTimeMapper(EventTimePolicy(frame_ms=1, **policy), partitions)


def test_in_a_lull_the_watermark_advances_with_the_wall_clock():
    mapper = mapper_of("p0", lag_ms=3, max_lull_ms=100)
    assert shown(mapper.event("p0", 1000, now_ms=0)) == "wm997"
    assert shown(mapper.poll(now_ms=100)) == ""
    assert shown(mapper.poll(now_ms=101)) == "wm998"
    assert shown(mapper.poll(now_ms=150)) == "wm1047"
    assert shown(mapper.event("p0", 1040, now_ms=151)) == "", "late, and nothing goes back"
    assert shown(mapper.poll(now_ms=250)) == "", "the lull begins anew"
    assert shown(mapper.poll(now_ms=261)) == "wm1057"


def test_a_lull_before_the_first_event_brings_nothing():
    mapper = mapper_of("p0", max_lull_ms=10)
    assert mapper.poll(now_ms=10**9) == ()


def test_an_idle_partition_keeps_its_watermark_in_the_snapshot():
    mapper = mapper_of("p0", "p1", idle_timeout_ms=10)
    mapper.event("p0", 50, now_ms=0)
    mapper.event("p1", 70, now_ms=9)
    assert shown(mapper.poll(now_ms=10)) == "wm70", "p0 is idle"
    assert mapper.save() == {"p0": 50, "p1": 70}
    restored = mapper_of(idle_timeout_ms=10)
    for partition, watermark in mapper.save().items():
        restored.restore(partition, watermark)
    assert shown(restored.event("p0", 60)) == "wm60", "held back by p0, above what was emitted: 50"
    assert shown(restored.event("p0", 80)) == "wm70"


def test_a_partition_that_returns_holds_back_but_never_moves_back():
    mapper = mapper_of("p0", "p1", idle_timeout_ms=10)
    assert shown(mapper.event("p1", 70, now_ms=0)) == ""
    assert shown(mapper.event("p1", 75, now_ms=10)) == "wm75"
    assert mapper.event("p0", 20, now_ms=11) == ()
    assert mapper.event("p1", 90, now_ms=12) == ()
    assert shown(mapper.event("p0", 80, now_ms=13)) == "wm80"


def test_who_holds_the_watermark_back_and_since_when():
    mapper = mapper_of("p0", "p1", idle_timeout_ms=100)
    mapper.event("p0", 50, now_ms=5)
    (holder,) = mapper.held_back_by(now_ms=30)
    assert (holder.input, holder.watermark, holder.since_ms, holder.for_ms) == ("p1", None, 0, 30)
    mapper.event("p1", 40, now_ms=31)
    (holder,) = mapper.held_back_by(now_ms=40)
    assert (holder.input, holder.watermark, holder.since_ms, holder.for_ms) == ("p1", 40, 31, 9)
    mapper.event("p1", 50, now_ms=41)
    assert mapper.held_back_by(now_ms=42) == ()


def test_behind_a_batch_goes_the_watermark_of_its_newest_event():
    mapper = mapper_of("p0", lag_ms=3)
    assert shown(mapper.batch("p0", 100)) == "wm97"
    assert mapper.batch("p0", 99) == ()


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="lag_ms is -1"):
        EventTimePolicy(lag_ms=-1)
    with pytest.raises(ValueError, match="'p0' is there already"):
        mapper_of("p0").add_partition("p0")


# --- maximum retention, in the coalescer ------------------------------------------------------


def test_with_retention_the_highest_watermark_goes_on_although_an_input_lags():
    coalescer = WatermarkCoalescer(2, max_retention_ms=20)
    assert coalescer.observe_watermark(0, 100, now_ms=0) is None
    coalescer.observe_event(1, now_ms=0)
    assert coalescer.check(19) is None
    assert coalescer.check(20) == 100
    assert coalescer.observe_watermark(1, 50, now_ms=21) is None, "the laggard's events are late"
    assert coalescer.check(60) is None


def test_retention_continues_w2():
    coalescer = WatermarkCoalescer(2, max_retention_ms=20)
    coalescer.observe_idle(0)
    assert coalescer.observe_watermark(1, 11) == 11
    coalescer.observe_event(0)
    assert coalescer.observe_watermark(1, 12) is None
    assert coalescer.observe_watermark(0, 13) == 12
    assert coalescer.check(19) is None
    assert coalescer.check(20) == 13


def test_retention_forwards_each_watermark_when_it_is_old_enough():
    coalescer = WatermarkCoalescer(2, max_retention_ms=20)
    emitted = []
    for now in range(0, 50, 5):
        if now % 10 == 0:
            assert coalescer.observe_watermark(0, 1000 + now, now_ms=now) is None
        emitted.append(coalescer.check(now))
    assert emitted == [None] * 4 + [1000, None, 1010, None, 1020, None]


def test_retention_is_off_unless_asked_for_and_for_a_single_input():
    off = WatermarkCoalescer(2)
    off.observe_watermark(0, 100)
    assert off.check(10**12) is None
    single = WatermarkCoalescer(1, max_retention_ms=5)
    assert single.observe_watermark(0, 1) == 1 and single.check(10**6) is None
    with pytest.raises(ValueError, match="max_retention_ms is -1"):
        WatermarkCoalescer(2, max_retention_ms=-1)


def test_idle_inputs_alone_never_emit_by_retention():
    coalescer = WatermarkCoalescer(2, max_retention_ms=20)
    coalescer.observe_idle(0, now_ms=0)
    assert coalescer.check(100) is None


def test_a_coalescer_says_who_holds_it_back_and_since_when():
    coalescer = WatermarkCoalescer(3)
    coalescer.observe_watermark(0, 100, now_ms=10)
    coalescer.observe_watermark(1, 40, now_ms=20)
    (holder,) = coalescer.held_back_by(50)
    assert (holder.input, holder.watermark, holder.since_ms, holder.for_ms) == (2, None, 0, 50)
    coalescer.observe_idle(2, now_ms=60)
    (holder,) = coalescer.held_back_by(70)
    assert (holder.input, holder.watermark, holder.since_ms, holder.for_ms) == (1, 40, 20, 50)
    coalescer.observe_event(2, now_ms=80)
    assert [h.input for h in coalescer.held_back_by(90)] == [2]
    assert coalescer.held_back_by(90)[0].since_ms == 80
    coalescer.observe_done(2, now_ms=95)
    coalescer.observe_watermark(1, 100, now_ms=99)
    assert coalescer.held_back_by(100) == ()
