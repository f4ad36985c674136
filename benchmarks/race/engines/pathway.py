"""Pathway: two threads, input saved every second, one file of JSON lines.

To save the state of operators, so that a restart need not compute all again, takes a licence key.

Its output is a stream of changes: rows with `diff` -1 take back a row with `diff` 1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.race.order import Order, read_order

FIELDS = {
    "number": "int",
    "event_type": "int",
    "date_time": "str",
    "person/id": "int",
    "person/name": "str",
    "auction/seller": "int",
    "bid/auction": "int",
    "bid/bidder": "int",
    "bid/price": "int",
    "bid/channel": "str",
    "bid/url": "str",
    "bid/extra": "str",
}
NEEDED = {
    "q1": ("bid/auction", "bid/bidder", "bid/price", "bid/extra"),
    "q5": ("bid/auction",),
    "q7": ("bid/auction", "bid/bidder", "bid/price", "bid/extra"),
    "q8": ("person/id", "person/name", "auction/seller"),
    "q11": ("bid/bidder",),
    "q18": (
        "number", "bid/auction", "bid/bidder", "bid/price", "bid/channel", "bid/url", "bid/extra",
    ),
}  # fmt: skip


def q1(pw: Any, events: Any, lag_ms: int) -> Any:
    bids = events.filter(events.event_type == 2)
    return bids.select(
        pw.this.auction,
        pw.this.bidder,
        price=pw.unwrap(pw.this.price) * 908 / 1000,
        date_time=pw.this.ms,
        extra=pw.this.extra,
    )


def q5(pw: Any, events: Any, lag_ms: int) -> Any:
    bids = events.filter(events.event_type == 2)
    counts = bids.windowby(
        bids.ms,
        window=pw.temporal.sliding(hop=2_000, duration=10_000),
        behavior=pw.temporal.exactly_once_behavior(shift=lag_ms),
        instance=bids.auction,
    ).reduce(
        auction=pw.this._pw_instance,
        num=pw.reducers.count(),
        window_start=pw.this._pw_window_start,
        window_end=pw.this._pw_window_end,
    )
    most = counts.groupby(pw.this.window_end).reduce(
        pw.this.window_end, most=pw.reducers.max(pw.this.num)
    )
    pairs = counts.join(most, counts.window_end == most.window_end, counts.num == most.most)
    return pairs.select(counts.auction, counts.num, counts.window_start, counts.window_end)


def q7(pw: Any, events: Any, lag_ms: int) -> Any:
    bids = events.filter(events.event_type == 2)
    bids = bids.with_columns(window_start=pw.this.ms - pw.this.ms % 10_000)
    most = bids.windowby(
        bids.ms,
        window=pw.temporal.tumbling(duration=10_000),
        behavior=pw.temporal.exactly_once_behavior(shift=lag_ms),
    ).reduce(start=pw.this._pw_window_start, most=pw.reducers.max(pw.this.price))
    reached = bids.join(most, bids.window_start == most.start, bids.price == most.most)
    return reached.select(
        bids.auction, bids.price, bids.bidder, date_time=bids.ms, extra=bids.extra
    )


def q8(pw: Any, events: Any, lag_ms: int) -> Any:
    def windows(rows: Any, key: Any, **columns: Any) -> Any:
        return rows.windowby(
            rows.ms,
            window=pw.temporal.tumbling(duration=10_000),
            behavior=pw.temporal.exactly_once_behavior(shift=lag_ms),
            instance=key,
        ).reduce(person_id=pw.this._pw_instance, start=pw.this._pw_window_start, **columns)

    persons = events.filter(events.event_type == 0)
    opened = events.filter(events.event_type == 1)
    new = windows(persons, persons.person_id, name=pw.reducers.any(pw.this.name))
    selling = windows(opened, opened.seller)
    both = new.join(selling, new.person_id == selling.person_id, new.start == selling.start)
    return both.select(
        new.person_id, new.name, window_start=new.start, window_end=new.start + 10_000
    )


def q11(pw: Any, events: Any, lag_ms: int) -> Any:
    bids = events.filter(events.event_type == 2)
    return bids.windowby(
        bids.ms,
        # A pause of the gap itself would still be within the session.
        window=pw.temporal.session(max_gap=9_999),
        behavior=pw.temporal.exactly_once_behavior(shift=lag_ms),
        instance=bids.bidder,
    ).reduce(
        bidder=pw.this._pw_instance,
        bid_count=pw.reducers.count(),
        window_start=pw.this._pw_window_start,
        window_end=pw.this._pw_window_end + 10_000,
    )


def q18(pw: Any, events: Any, lag_ms: int) -> Any:
    bids = events.filter(events.event_type == 2)
    bids = bids.with_columns(at=pw.make_tuple(pw.this.ms, pw.this.number))
    last = bids.groupby(bids.bidder, bids.auction).reduce(row=pw.reducers.argmax(pw.this.at))
    row = bids.ix(last.row)
    return last.select(
        row.auction,
        row.bidder,
        row.price,
        row.channel,
        row.url,
        date_time=row.ms,
        number=row.number,
        extra=row.extra,
    )


QUERIES: dict[str, Callable[[Any, Any, int], Any]] = {
    query.__name__: query for query in (q1, q5, q7, q8, q11, q18)
}


def _name(path: str) -> str:
    """Name of a column, which may not be `id`."""
    name = path.split("/")[-1]
    return "person_id" if name == "id" else name


def run(order: Order) -> None:
    os.environ["PATHWAY_THREADS"] = "2"
    import pathway as pw

    fields = ("event_type", "date_time", *NEEDED[order.query])
    schema = pw.schema_builder(
        {
            _name(path): pw.column_definition(
                dtype={"int": int, "str": str}[FIELDS[path]]
                if "/" not in path
                else {"int": int | None, "str": str | None}[FIELDS[path]],
                **({"default_value": None} if "/" in path else {}),
            )
            for path in fields
        }
    )
    events = pw.io.jsonlines.read(
        order.source,
        schema=schema,
        mode="streaming",
        json_field_paths={_name(path): f"/{path}" for path in fields if "/" in path},
        autocommit_duration_ms=100,
        name="events",
    )
    events = events.with_columns(
        ms=pw.this.date_time.dt.strptime("%Y-%m-%dT%H:%M:%S.%fZ")
        .dt.timestamp(unit="ms")
        .num.round()
    )
    events = events.with_columns(ms=pw.cast(int, pw.this.ms))
    answer = QUERIES[order.query](pw, events, order.lag_ms)
    pw.io.jsonlines.write(answer, f"{order.output}/answer.json", name="answer")
    state = Path(order.state) / "state"
    pw.run(
        monitoring_level=pw.MonitoringLevel.NONE,
        persistence_config=pw.persistence.Config(
            pw.persistence.Backend.filesystem(state),
            snapshot_interval_ms=1000,
        ),
    )


if __name__ == "__main__":
    run(read_order())
