"""Verdicts and times of the Kafka race, computed without servers."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kafka_race import answer, report
from benchmarks.kafka_race.answer import Verdict
from benchmarks.kafka_race.backlog import Slot, span
from benchmarks.kafka_race.messages import (
    CLOSING_KEY,
    DISORDER_MS,
    LAG_MS,
    T0_MS,
    WINDOW_MS,
    Messages,
)
from benchmarks.kafka_race.order import Order, Told
from benchmarks.kafka_race.paced import window_waits
from benchmarks.kafka_race.run import fastest, half_of_slower
from benchmarks.oracle import WrongOutputError

MESSAGES = Messages(12_000, 4_000)


def shown(start_ms: int) -> str:
    seconds = (start_ms - T0_MS) // 1000
    assert T0_MS == 1_700_000_000_000 and seconds < 40  # 22:13:20
    return f"2023-11-14T22:13:{20 + seconds:02d}.000Z"


def counted() -> list[bytes]:
    """Counts by a loop, in place of DuckDB."""
    sums: dict[tuple[str, int], list[int]] = {}
    for text in MESSAGES.texts():
        row = json.loads(text)
        one = sums.setdefault((row["k"], row["ts"] - row["ts"] % WINDOW_MS), [0, 0])
        one[0] += 1
        one[1] += row["v"]
    return [
        json.dumps({"k": k, "window_start": shown(start), "n": n, "total": total}).encode()
        for (k, start), (n, total) in sums.items()
        if start >= T0_MS
    ]


@pytest.fixture(scope="module")
def right() -> list[bytes]:
    found = counted()
    before = {"k": "key-0001", "window_start": "2023-11-14T22:13:19.000Z", "n": 1, "total": 1}
    closing = {**before, "k": CLOSING_KEY}
    return [*found, json.dumps(closing).encode()]


def before_t0() -> int:
    """Windows that disorder puts before the first second."""
    rows = [json.loads(text) for text in MESSAGES.texts()]
    return len({(row["k"]) for row in rows if row["ts"] < T0_MS})


def test_the_messages_are_the_same_each_time_and_out_of_order_within_bounds() -> None:
    once, again = list(MESSAGES.texts()), list(MESSAGES.texts())
    assert once == again and len(once) == MESSAGES.count
    rows = [json.loads(text) for text in once]
    assert [row["n"] for row in rows] == list(range(MESSAGES.count))
    late = [T0_MS + row["n"] * 1000 // MESSAGES.per_second - row["ts"] for row in rows]
    assert min(late) == 0 and max(late) == DISORDER_MS
    assert json.loads(MESSAGES.closing)["ts"] > max(row["ts"] for row in rows) + 3_600_000


def test_the_answer_of_a_topic_is_a_multiset(right: list[bytes]) -> None:
    expected = len(right) - 1 + before_t0()
    missing = before_t0()  # `right` leaves those out
    assert answer.of_topic(MESSAGES, right) == Verdict(expected, missing, 0)
    assert answer.of_topic(MESSAGES, right[1:]) == Verdict(expected, missing + 1, 0)
    assert answer.of_topic(MESSAGES, [right[0], *right]) == Verdict(expected, missing, 1)
    other = json.dumps({**json.loads(right[0]), "total": -1}).encode()
    assert answer.of_topic(MESSAGES, [other, *right[1:]]) == Verdict(expected, missing + 1, 1)


def test_a_wrong_row_ends_the_race() -> None:
    answer.demand(Verdict(5, 0, 0), "ours")
    for verdict in (Verdict(5, 1, 0), Verdict(5, 0, 1)):
        with pytest.raises(WrongOutputError, match="ours"):
            answer.demand(verdict, "ours")


def test_a_window_waits_from_its_end_and_the_lag() -> None:
    start = T0_MS + 3 * WINDOW_MS
    found = [
        (110.5, json.dumps({"k": "a", "window_start": shown(start)}).encode()),
        (999.0, json.dumps({"k": CLOSING_KEY, "window_start": shown(start)}).encode()),
    ]
    [(at, due)] = window_waits(found, started_at=100.0)
    assert at == 110.5
    assert due == pytest.approx(100 + (3 * WINDOW_MS + WINDOW_MS + LAG_MS) / 1000)


def test_rates_are_between_commits_behind_the_warm_up() -> None:
    commits = [(1.0, 10), (2.0, 30), (5.0, 80), (7.0, 104), (9.0, 104)]
    assert span(commits, 100) == ((2.0, 30), (7.0, 104))


def slot(engine: str, rate: float, trigger: int | None = None, whole: float = 10.0) -> Slot:
    return Slot(engine, "window", trigger, rate, 2.0, whole, 3.0, 5, 100, 50.0, 1.0)


def test_the_faster_trigger_goes_on() -> None:
    tried = [slot("ours", 9.0), slot("peer", 5.0, 100), slot("peer", 7.0, 200)]
    assert fastest(tried) == 200
    assert fastest([slot("peer", math.nan, 100), slot("peer", 7.0, 200)]) == 200


def test_the_pace_is_half_of_the_slower_one() -> None:
    slots = [asdict(slot("ours", 90_000.0)), asdict(slot("peer", math.nan, 1, 40_060.0))]
    assert half_of_slower([{"case": "window", "slots": slots}], "window") == 20_000


def test_orders_and_what_is_told_come_back(tmp_path: Path) -> None:
    order = Order("peer", "table", "h:1", "in", "out", "db", str(tmp_path), None, 7, ("a.jar",))
    path = tmp_path / "order.json"
    path.write_text(json.dumps(asdict(order)))
    assert Order.read(path) == order
    Told([(1.0, 5)], 2.0).write(str(tmp_path))
    assert Told.read(tmp_path) == Told([[1.0, 5]], 2.0)


def result(**more: Any) -> dict[str, Any]:
    slots = [asdict(slot("ours", 30.0)), asdict(slot("peer", 20.0, 100))]
    return {
        "versions": {"pyspark": "4", "connector": "4", "kafka": "4", "confluent-kafka": "2"},
        "messages": 100,
        "cores": 2,
        "load": 1.0,
        "load_after": 2.0,
        "loop_ms": 50.0,
        "quick": False,
        "slots": [{"case": "window", "slots": slots}],
        "tried": slots,
        **more,
    }


def test_the_page_has_ratios_and_says_what_is_missing() -> None:
    page = report.page(result())
    [line] = [text for text in page.splitlines() if "window" in text and "| rows/s |" in text]
    assert "30.00 | 20.00 | 1.50" in line
    assert "nan" not in page  # nor of the case without a slot
    assert Counter(page)["#"] == 3
    assert "It was not finished:** it broke" in report.page(result(failed="it broke"))
