"""The vectors of coalescing, row by row, and event time per source."""

import pytest

from dagster_jet.dag import IDLE
from dagster_jet.dag.watermark import EventTimeState, WatermarkCoalescer, WatermarkError

# w<input> <value> -> result; I idle, e event, d done, h check; "-" is nothing.
VECTORS = {
    "W1": (2, "w0 1→-; w1 2→1; w0 3→2; w1 4→3"),
    "W2": (2, "I0→-; w1 11→11; e0→-; w1 12→-; w0 13→12; h→-"),
    "W3": (2, "w0 100→-; I1→100"),
    "W4": (2, "I0→-; w1 100→100"),
    "W5": (2, "e0→-; I1→-; h→-"),
    "W6": (2, "I0→-; I1→IDLE; I0→-"),
    "W7": (2, "w0 10→-; w1 11→10; I1→-; I0→11; h→IDLE; h→-"),
    "W8": (2, "w0 10→-; w1 11→10; I1→-; d0→11; h→IDLE"),
    "W7, told by the end of an input": (
        2,
        "w0 10→-; w1 11→10; I1→-; I0→11; d0→IDLE; h→-; d1→-; h→-",
    ),
    "W8, ended before it is told": (2, "w0 10→-; w1 11→10; I1→-; d0→11; d1→-; h→-"),
    "W9": (2, "I0→-; d1→IDLE; w0 10→10"),
    "W10": (2, "d0→-; I1→IDLE; w1 10→10"),
    "W11": (2, "d0→-; d1→-"),
    "W13": (1, "I0→IDLE; w0 10→10; w0 11→11; I0→IDLE; w0 12→12; d0→-"),
}
ERRORS = ["w0 10; w0 9", "w0 10; w0 10", "d0; w0 11", "d0; I0", "d0; d0"]


def step(coalescer: WatermarkCoalescer, text: str):
    kind, _, value = text.strip().partition(" ")
    if kind == "h":
        return coalescer.check()
    number = int(kind[1:])
    match kind[0]:
        case "w":
            return coalescer.observe_watermark(number, int(value))
        case "I":
            return coalescer.observe_idle(number)
        case "e":
            return coalescer.observe_event(number)
        case _:
            return coalescer.observe_done(number)


@pytest.mark.parametrize("name", VECTORS)
def test_coalescing_vector(name):
    inputs, story = VECTORS[name]
    coalescer = WatermarkCoalescer(inputs)
    for line in story.split(";"):
        action, _, expected = line.strip().partition("→")
        result = step(coalescer, action)
        shown = "-" if result is None else "IDLE" if result == IDLE else str(result)
        assert shown == expected, f"{name}: {action} gave {shown}, expected {expected}"


@pytest.mark.parametrize("story", ERRORS)
def test_an_input_that_breaks_the_rules_is_an_error(story):
    coalescer = WatermarkCoalescer(2)
    *fine, wrong = story.split(";")
    for action in fine:
        step(coalescer, action)
    with pytest.raises(WatermarkError, match="input 0"):
        step(coalescer, wrong)


def test_an_input_back_from_idle_may_be_behind_and_holds_the_output_back():
    coalescer = WatermarkCoalescer(2)
    assert coalescer.observe_idle(0) is None
    assert coalescer.observe_watermark(1, 100) == 100
    assert coalescer.observe_watermark(0, 50) is None
    assert coalescer.observe_watermark(1, 200) is None
    assert coalescer.observe_watermark(0, 150) == 150


def test_event_time_never_moves_the_watermark_back():
    state = EventTimeState().observe(100, lag_ms=10, now_ms=0).observe(50, lag_ms=10, now_ms=1)
    assert (state.watermark_ms, state.top_event_ms) == (90, 100)


def test_a_source_is_idle_after_the_time_out_and_keeps_its_watermark():
    state = EventTimeState().observe(100, lag_ms=10, now_ms=0)
    assert not state.check_idle(5, now_ms=4).idle
    idle = state.check_idle(5, now_ms=5)
    assert idle.idle and idle.watermark_ms == 90
    back = idle.observe(95, lag_ms=10, now_ms=9)
    assert not back.idle and back.watermark_ms == 90


def test_a_time_out_of_zero_means_never_idle():
    assert not EventTimeState().observe(1, 0, 0).check_idle(0, now_ms=10**12).idle


def test_a_source_that_never_had_an_event_gets_a_full_time_out_from_the_first_look():
    first = EventTimeState().check_idle(5, now_ms=1000)
    assert not first.idle
    assert first.check_idle(5, now_ms=1005).idle
