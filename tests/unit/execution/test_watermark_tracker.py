"""Watermarks of partitioned sources: the least of the partitions, then the least of the inputs."""

import json

import pytest

from dagster_jet import Pipeline, sinks, sources, windows
from dagster_jet import aggregates as agg
from dagster_jet.execution.epoch_planner import StageTime, next_watermark
from dagster_jet.execution.watermarks import StageWatermarkHold, WatermarkTracker

NODE = "in.timestamps"


def next_ms(t: WatermarkTracker, *, final: bool) -> int | None:
    """Watermark under which the next epoch would run."""
    time = StageTime(t.reached_ms["counts"], t.floored_ms("counts"))
    return next_watermark(time, final=final)


def closes(t: WatermarkTracker) -> bool:
    """Whether the next epoch would close something, although no input has arrived."""
    return next_ms(t, final=False) != t.reached_ms["counts"]


def tracker(
    lag: str = "0 ms",
    idle: str = "10 ms",
    names: tuple[str, ...] = ("in",),
    retention_ms: int | None = None,
    lull: str = "0 ms",
):
    p = Pipeline("j")
    read = [
        p.read_from(
            sources.files("/x", format="json", schema="ts long"), name=name
        ).with_timestamps("ts", allowed_lag=lag, idle_timeout=idle, max_lull=lull)
        for name in names
    ]
    rows = read[0].merge(*read[1:]) if len(read) > 1 else read[0]
    counts = rows.window(windows.tumbling("10 ms")).aggregate(n=agg.count(), name="counts")
    counts.write_to(sinks.files("/y", format="json"), name="out")
    return WatermarkTracker(p.graph, max_retention_ms=retention_ms)


def observe(t: WatermarkTracker, now_ms: int, node: str = NODE, **tops: int) -> None:
    t.observe(node, len(tops), max(tops.values()), now_ms, tops)


def restarted(t: WatermarkTracker, now_ms: int, **config) -> WatermarkTracker:
    """Tracker of a new execution, restored from the manifest."""
    again = tracker(**config)
    again.restore(json.loads(json.dumps(t.to_json())), now_ms)
    return again


def test_the_clock_of_timers_never_goes_back_and_is_in_the_snapshot():
    p = Pipeline("j")
    rows = p.read_from(sources.files("/x", format="json", schema="k string"), name="in")
    keyed, out = rows.group_by("k"), sinks.files("/y", format="json")
    keyed.map_stateful(
        lambda state, row: None, create=int, output_schema="k string", name="silent",
        on_timer=lambda state, key, time_ms: None, timers="processing time",
    ).write_to(out, name="silent_out")  # fmt: skip
    keyed.rolling_aggregate(n=agg.count(), name="seen").write_to(out, name="seen_out")
    t = WatermarkTracker(p.graph)
    assert (t.clocks_ms(100), t.expiring_ms("silent")) == ({"silent": 100}, None)
    t.clock_ms = 100
    again = WatermarkTracker(p.graph)
    again.restore(json.loads(json.dumps(t.to_json())), 40)
    assert again.clocks_ms(40) == {"silent": 100}, "of another host, or set back"
    assert again.clocks_ms(101) == {"silent": 101}
    assert (again.expiring_ms("silent"), again.expiring_ms("seen")) == (100, None)


def test_the_bound_on_times_ahead_goes_up_in_steps_and_never_back():
    p = Pipeline("j")
    for name, ahead in (("hours", "4 hours"), ("short", "8 seconds"), ("free", None)):
        rows = p.read_from(sources.files(f"/{name}", format="json", schema="ts long"), name=name)
        timed = rows.with_timestamps("ts", max_ahead=ahead)
        timed.write_to(sinks.files("/y", format="json"), name=f"{name}_out")
    t = WatermarkTracker(p.graph)
    hour, second = 3_600_000, 1_000
    found = {at: t.latest_ms(at) for at in (0, hour - 1, hour)}
    assert found[0] == {"hours.timestamps": 5 * hour, "short.timestamps": 18 * second}
    assert found[hour - 1]["hours.timestamps"] == 5 * hour
    assert found[hour] == {"hours.timestamps": 6 * hour, "short.timestamps": hour + 18 * second}
    t.clock_ms = t.next_clock_ms(7 * hour)
    again = WatermarkTracker(p.graph)
    again.restore(json.loads(json.dumps(t.to_json())), 40)
    assert again.next_clock_ms(40) == 7 * hour, "of another host, or set back"


def test_rows_of_a_slow_partition_are_not_late():
    t = tracker(lag="3 ms")
    t.expect(NODE, {"a": 5, "b": 5}, 0)
    observe(t, 0, a=100, b=20)
    assert t.watermark_ms("counts") == 17
    observe(t, 1, a=200)
    assert t.watermark_ms("counts") == 17
    observe(t, 2, a=300, b=150)
    assert t.watermark_ms("counts") == 147


def test_a_partition_that_never_had_a_row_holds_back_until_it_is_idle():
    t = tracker()
    t.expect(NODE, {"a": 0, "b": 0}, 0)
    observe(t, 0, a=100)
    assert t.watermark_ms("counts") is None
    assert t.held_back_by("counts") == StageWatermarkHold("in", 0, "b"), "since it appeared"
    observe(t, 9, a=110)
    t.check_time(9)
    assert t.watermark_ms("counts") is None
    t.check_time(10)
    assert t.watermark_ms("counts") == 110
    assert t.held_back_by("counts") == StageWatermarkHold("in", 9, "a")


def test_without_a_timeout_it_holds_back_for_ever():
    t = tracker(idle="0 ms")
    t.expect(NODE, {"a": 0, "b": 0}, 0)
    observe(t, 0, a=100)
    t.check_time(1_000_000)
    assert t.watermark_ms("counts") is None


def test_an_idle_partition_comes_back_with_its_watermark_and_nothing_goes_back():
    t = tracker()
    t.expect(NODE, {"a": 0, "b": 0}, 0)
    observe(t, 0, a=100, b=20)
    observe(t, 10, a=105)
    t.check_time(10)
    assert next_ms(t, final=False) == 100, "105, floored to the window"
    t.reached_ms["counts"] = 100
    observe(t, 11, b=30)
    assert t.watermark_ms("counts") == 30
    assert t.held_back_by("counts") == StageWatermarkHold("in", 11, "b")
    assert next_ms(t, final=False) == 100 and not closes(t)


def test_a_partition_with_rows_waiting_is_not_idle_however_slowly_it_is_read():
    t = tracker()
    t.expect(NODE, {"a": 0, "b": 7}, 0)
    observe(t, 0, a=100, b=20)
    for now_ms in range(5, 100, 5):
        t.expect(NODE, {"a": 0, "b": 7}, now_ms)
        observe(t, now_ms, a=100 + now_ms)
        t.check_time(now_ms)
    assert t.watermark_ms("counts") == 20
    t.expect(NODE, {"a": 0, "b": 0}, 95)
    observe(t, 104, a=300)
    t.check_time(104)
    assert t.watermark_ms("counts") == 20, "a full time-out from then on"
    t.check_time(105)
    assert t.watermark_ms("counts") == 300
    t.expect(NODE, {"a": 0, "b": 1}, 106)
    assert t.held_back_by("counts") == StageWatermarkHold("in", 106, "b"), "since its return"


def test_a_source_with_rows_waiting_is_not_idle_however_long_the_driver_slept():
    t = tracker(names=("in", "other"))
    for node, top_ms in ((NODE, 100), ("other.timestamps", 500)):
        t.observe(node, 1, top_ms, 0)
    t.check_time(1_000, ["in", "other"])
    assert t.watermark_ms("counts") == 100, "the rows that wait are not late"
    t.observe("other.timestamps", 1, 600, 1_000)
    t.check_time(1_009)
    assert t.watermark_ms("counts") == 100, "a full time-out from then on"
    t.check_time(1_010, ["other"])
    assert t.watermark_ms("counts") == 600


def test_a_source_whose_rows_are_all_dropped_becomes_idle_however_many_wait():
    t = tracker(names=("in", "other"))
    for node, top_ms in ((NODE, 100), ("other.timestamps", 500)):
        t.observe(node, 1, top_ms, 0)
    for now_ms in range(5, 16, 5):
        t.check_time(now_ms, ["in"])
        t.observe(NODE, 0, None, now_ms)
        t.observe("other.timestamps", 1, 500 + now_ms, now_ms)
    assert t.watermark_ms("counts") == 515
    t.observe(NODE, 1, 200, 20)
    t.check_time(100, ["in"])
    assert t.watermark_ms("counts") == 200, "it is no such source any more"


def test_a_quiet_source_that_returns_holds_back_the_epoch_that_reads_its_rows():
    t = tracker(names=("in", "other"))
    for node, top_ms in ((NODE, 100), ("other.timestamps", 500)):
        t.observe(node, 1, top_ms, 0)
    t.check_time(10, ["other"])
    assert next_ms(t, final=False) == 500
    t.reached_ms["counts"] = 500
    t.observe("other.timestamps", 1, 900, 10)
    t.check_time(11, ["in"])
    assert next_ms(t, final=False) == 500, "its rows may be of 600"
    assert t.held_back_by("counts") == StageWatermarkHold("in", 11, None), "since its return"
    t.observe(NODE, 1, 600, 11)
    t.check_time(12)
    assert next_ms(t, final=False) == 600


def test_files_without_events_hold_nothing_back_for_longer_than_their_epoch():
    t = tracker(names=("in", "other"))
    for node, top_ms in ((NODE, 100), ("other.timestamps", 500)):
        t.observe(node, 1, top_ms, 0)
    t.check_time(10, ["other"])
    for now_ms in range(12, 50, 4):  # less than the time-out from one to the next
        t.check_time(now_ms, ["in", "other"])
        assert t.watermark_ms("counts") == 100
        t.observe(NODE, 0, None, now_ms)
        t.check_time(now_ms + 2, ["other"])
        assert t.watermark_ms("counts") == 500


def test_a_source_whose_partitions_are_all_read_is_as_far_as_its_newest_event():
    """A map's journal names only partitions where events wait."""
    t = tracker(names=("in", "other"), idle="10 ms")
    t.expect(NODE, {"a": 3}, 0)
    observe(t, 0, a=50)
    t.observe("other.timestamps", 1, 1_000, 0)
    assert t.watermark_ms("counts") == 50
    t.expect(NODE, {}, 1)
    t.observe(NODE, 4, 80, 1)
    assert t.watermark_ms("counts") == 80, "it goes on holding other inputs back"
    assert t.held_back_by("counts") == StageWatermarkHold("in", 1, None)
    t.check_time(10)
    assert t.source_watermark_ms("other.timestamps")[1] and t.watermark_ms("counts") == 80
    t.check_time(11)
    assert t.watermark_ms("counts") == 1_000, "all are idle: the highest"


def test_the_minimum_is_taken_over_partitions_then_over_inputs():
    t = tracker(names=("in", "other"))
    t.expect(NODE, {"a": 1, "b": 1}, 0)
    t.expect("other.timestamps", {"a": 1}, 0)
    observe(t, 0, a=100, b=40)
    observe(t, 0, "other.timestamps", a=30)
    assert t.watermark_ms("counts") == 30
    assert t.held_back_by("counts") == StageWatermarkHold("other", 0, "a")
    observe(t, 5, "other.timestamps", a=60)
    assert t.watermark_ms("counts") == 40
    assert t.held_back_by("counts") == StageWatermarkHold("in", 0, "b")


def test_all_partitions_are_restored_idle_ones_too():
    t = tracker()
    t.expect(NODE, {"a": 0, "b": 0, "never": 0}, 0)
    observe(t, 0, a=100, b=20)
    observe(t, 10, a=105)
    t.check_time(10)
    t.reached_ms["counts"] = 100
    again = restarted(t, 1_000)
    again.expect(NODE, {"a": 0, "b": 0, "never": 0}, 1_000)
    assert again.partitions[NODE]["b"].watermark_ms == 20
    assert again.held_back_by("counts") == StageWatermarkHold("in", 0, "never")
    again.check_time(1_009)
    assert again.watermark_ms("counts") is None, "everybody has a full time-out again"
    again.check_time(1_010)
    assert next_ms(again, final=False) == 100


def test_a_start_that_takes_longer_than_the_timeout_makes_no_partition_idle():
    """The source has not yet reported in which partitions rows wait. If all counted as idle, the
    fastest would set the watermark."""
    t = tracker(idle="10 ms")
    t.expect(NODE, {"a": 5, "b": 5}, 0)
    observe(t, 0, a=100, b=20)
    t.reached_ms["counts"] = 20
    again = restarted(t, 1_000, idle="10 ms")
    for now_ms in (1_020, 1_040):
        again.expect(NODE, {"a": 0, "b": 0}, now_ms)
        again.check_time(now_ms, silent=["in"])
        assert again.watermark_ms("counts") == 20 and not closes(again)
        again.observe(NODE, 0, None, now_ms)  # an epoch of another input
    again.expect(NODE, {"a": 0, "b": 3}, 1_045)
    again.check_time(1_045, ["in"])
    assert again.watermark_ms("counts") == 20, "the rows that wait are not late"
    again.expect(NODE, {"a": 0, "b": 0}, 1_055)
    again.check_time(1_054)
    assert again.watermark_ms("counts") == 20, "a full time-out since it was heard of"
    again.check_time(1_055)
    assert again.watermark_ms("counts") == 100


def test_no_partition_is_idle_while_the_source_cannot_be_read():
    t = tracker(idle="10 ms", lull="5 ms")
    t.expect(NODE, {"a": 0, "b": 0}, 0)
    observe(t, 0, a=100, b=20)
    for now_ms in range(4, 5_000, 400):
        t.check_time(now_ms, silent=["in"])
        assert t.watermark_ms("counts") == 20


@pytest.mark.parametrize("change", ["added", "removed"])
def test_partitions_that_change_never_move_the_watermark_back(change):
    t = tracker()
    t.expect(NODE, {"a": 0, "b": 0}, 0)
    observe(t, 0, a=100, b=60)
    t.reached_ms["counts"] = next_ms(t, final=False)
    again = restarted(t, 0)
    if change == "removed":
        again.expect(NODE, {"a": 0}, 0)
        assert next_ms(again, final=False) == 100
        return
    again.expect(NODE, {"a": 0, "b": 0, "c": 0}, 0)
    assert again.watermark_ms("counts") is None
    assert next_ms(again, final=False) == 60
    observe(again, 1, c=10)
    assert next_ms(again, final=False) == 60
    observe(again, 2, a=200, b=200, c=90)
    assert next_ms(again, final=False) == 90


def test_what_has_died_stays_dead_whatever_the_stage_says_later():
    t = tracker()
    t.expire("counts", None)
    assert t.to_json()["dead_until_ms"] == {}
    for until in (70, 40, None):
        t.expire("counts", until)
    restored = tracker()
    restored.restore({**json.loads(json.dumps(t.to_json())), "reached_ms": {"counts": 100}}, 0)
    restored.expire("counts", 60)
    assert restored.expired_until_ms == {"counts": 70}


def test_a_source_without_partitions_is_as_before():
    t = tracker()
    t.observe(NODE, 3, 40, 0)
    assert t.watermark_ms("counts") == 40
    assert t.held_back_by("counts") == StageWatermarkHold("in", 0, None)
    assert t.to_json()["partitions"] == {}
    t.check_time(10)
    assert t.held_back_by("counts") is None and t.watermark_ms("counts") == 40


# --- maximum retention ----------------------------------------------------------------------------


def test_a_partition_that_lags_is_passed_after_the_maximum_retention():
    t = tracker(idle="0 ms", retention_ms=20)
    t.expect(NODE, {"a": 5, "b": 5}, 0)
    observe(t, 0, a=100, b=20)
    seen = []
    for now_ms in (0, 19, 20):
        t.check_time(now_ms)
        seen.append(t.watermark_ms("counts"))
    assert seen == [20, 20, 100]
    assert t.held_back_by("counts") == StageWatermarkHold("in", 0, "b"), "it still lags"
    observe(t, 21, b=50)
    assert next_ms(t, final=False) == 100, "its rows are late now"
    observe(t, 22, b=130)
    assert t.watermark_ms("counts") == 100, "a is behind"


def test_a_partition_that_never_had_a_row_is_passed_as_well():
    t = tracker(idle="0 ms", retention_ms=20)
    t.expect(NODE, {"a": 5, "b": 0}, 0)
    observe(t, 0, a=100)
    t.check_time(0)
    assert t.watermark_ms("counts") is None and not closes(t)
    t.check_time(20)
    assert t.watermark_ms("counts") == 100 and closes(t)


def test_an_input_that_lags_is_passed_by_each_watermark_when_it_is_old_enough():
    t = tracker(idle="0 ms", names=("left", "right"), retention_ms=20)
    t.observe("right.timestamps", 1, 5, 0)
    seen = []
    for now_ms in range(0, 50, 5):
        if now_ms % 10 == 0:
            t.observe("left.timestamps", 1, 1000 + now_ms, now_ms)
        t.check_time(now_ms)
        seen.append(t.watermark_ms("counts"))
    assert seen == [5, 5, 5, 5, 1000, 1000, 1010, 1010, 1020, 1020]


def test_retention_begins_anew_with_an_execution():
    t = tracker(idle="0 ms", retention_ms=20)
    t.expect(NODE, {"a": 5, "b": 5}, 0)
    observe(t, 0, a=100, b=20)
    t.check_time(0)
    again = restarted(t, 1000, idle="0 ms", retention_ms=20)
    again.expect(NODE, {"a": 5, "b": 5}, 1000)
    again.check_time(1000)
    assert again.watermark_ms("counts") == 20
    again.check_time(1020)
    assert again.watermark_ms("counts") == 100


def test_alone_a_source_has_nothing_to_pass():
    t = tracker(lag="3 ms", retention_ms=0)
    t.observe(NODE, 1, 100, 0)
    t.check_time(0)
    assert t.watermark_ms("counts") == 97


# --- lulls ----------------------------------------------------------------------------------------


def test_in_a_lull_the_watermark_goes_on_with_the_clock_a_second_at_a_time():
    t = tracker(lag="3 ms", idle="0 ms", lull="5 seconds")
    observe(t, 1_000, a=100)
    seen = {}
    for now_ms in range(1_000, 9_000, 100):
        t.check_time(now_ms)
        seen.setdefault(t.watermark_ms("counts"), now_ms)
    assert seen == {97: 1_000, 1_097: 7_000, 2_097: 8_000}
    assert closes(t)
    observe(t, 9_000, a=5_000)
    assert t.watermark_ms("counts") == 4_997
    t.check_time(14_999)
    assert t.watermark_ms("counts") == 4_997, "a new lull"


def test_a_late_row_ends_a_lull_and_takes_nothing_back():
    t = tracker(idle="0 ms", lull="1 second")
    observe(t, 0, a=100)
    t.check_time(5_000)
    assert t.watermark_ms("counts") == 4_100
    observe(t, 5_000, a=200)
    t.check_time(5_900)
    assert t.watermark_ms("counts") == 4_100
    t.check_time(7_000)
    assert t.watermark_ms("counts") == 5_100


def test_while_rows_wait_there_is_no_lull():
    """The driver slept, say: what has come meanwhile is not late."""
    t = tracker(idle="0 ms", lull="1 second")
    observe(t, 0, a=100)
    t.check_time(60_000, ["in"])
    assert t.watermark_ms("counts") == 100
    t.check_time(60_999, [])
    assert t.watermark_ms("counts") == 100


def test_only_the_quiet_source_goes_on_by_the_clock():
    t = tracker(idle="0 ms", lull="1 second", names=("left", "right"))
    observe(t, 0, "left.timestamps", a=100)
    observe(t, 0, "right.timestamps", a=50)
    t.check_time(3_000, ["left"])
    assert t.watermark_ms("counts") == 100
    assert t.held_back_by("counts").source == "left"


def test_a_restart_begins_a_new_lull():
    t = tracker(idle="0 ms", lull="1 second")
    observe(t, 0, a=100)
    t.check_time(3_000)
    again = restarted(t, 90_000, idle="0 ms", lull="1 second")
    again.check_time(91_500)
    assert again.watermark_ms("counts") == 2_100
    again.check_time(92_000)
    assert again.watermark_ms("counts") == 3_100


def test_a_quiet_partition_goes_on_by_the_clock_but_not_while_rows_wait_in_it():
    t = tracker(idle="0 ms", lull="1 second")
    t.expect(NODE, {"a": 0, "b": 0}, 0)
    observe(t, 0, a=100, b=20)
    for now_ms in range(0, 5_001, 500):
        observe(t, now_ms, a=100 + now_ms)
        t.expect(NODE, {"a": 0, "b": 5}, now_ms)
        t.check_time(now_ms)
    assert t.watermark_ms("counts") == 20
    t.expect(NODE, {"a": 0, "b": 0}, 5_000)
    t.check_time(8_000)
    assert t.watermark_ms("counts") == 2_020
