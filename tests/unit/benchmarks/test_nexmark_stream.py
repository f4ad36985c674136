"""The NEXMark stream is what the suite's model says, and the same wherever it is made."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.nexmark.generator import write_files
from benchmarks.nexmark.oracle import check
from dagster_jet.connectors.generated.nexmark.event import arrivals, event
from dagster_jet.connectors.generated.nexmark.model import (
    AUCTION,
    BID,
    FIRST_ID,
    LEAD,
    PERSON,
    Model,
    kind_of,
    newest_auction,
    newest_person,
)
from dagster_jet.errors import ConfigurationError

MODEL = Model(events=5000, events_per_second=100, group=130)


def test_any_part_of_the_stream_can_be_made_anywhere() -> None:
    whole = list(arrivals(MODEL))
    assert list(arrivals(MODEL, 1234, 1300)) == whole[1234:1300]
    assert whole[0] != next(arrivals(Model(5000, 100, 130, seed=1)))


def test_of_fifty_events_one_is_a_person_and_three_are_auctions() -> None:
    kinds = Counter(kind_of(number) for number in range(MODEL.events))
    assert kinds == {PERSON: 100, AUCTION: 300, BID: 4600}


def test_ids_go_up_by_one() -> None:
    rows = [event(MODEL, number) for number in range(500)]
    persons = [row["person"]["id"] for row in rows if row["person"]]
    auctions = [row["auction"]["id"] for row in rows if row["auction"]]
    assert persons == [FIRST_ID + n for n in range(10)]
    assert auctions == [FIRST_ID + n for n in range(30)]


def test_what_an_event_names_exists_or_soon_will() -> None:
    """Bidders too: they get the offset of first ids once."""
    for row in (event(MODEL, number) for number in range(MODEL.events)):
        number, auction, bid = row["number"], row["auction"], row["bid"]
        people = range(FIRST_ID, FIRST_ID + newest_person(number) + 1 + LEAD)
        if auction:
            assert auction["seller"] in people
            assert 0 < auction["expires"] - row["date_time"] <= MODEL.auction_life_ms
        if bid:
            assert bid["bidder"] in people
            assert FIRST_ID <= bid["auction"] <= FIRST_ID + newest_auction(number) + LEAD


@pytest.mark.parametrize("group", [1, 13, 130, 1000])
def test_events_arrive_out_of_order_within_a_group(group: int) -> None:
    model = Model(events=3000, events_per_second=100, group=group)
    numbers = [model.number(place) for place in range(3 * group)]
    assert sorted(numbers) == list(range(3 * group))
    assert (numbers == sorted(numbers)) == (group == 1)
    newest = 0
    for row in arrivals(model, 0, 3 * group):
        newest = max(newest, row["date_time"])
        assert newest - row["date_time"] <= model.disorder_ms


def test_a_group_that_would_not_be_shuffled_whole_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="group"):
        Model(events=1, group=2 * 953)


def test_average_sizes_are_kept() -> None:
    for kind, wanted in (("person", 200), ("auction", 500), ("bid", 100)):
        rows = [row[kind] for row in arrivals(MODEL) if row[kind]]
        sizes = [sum(len(v) if isinstance(v, str) else 8 for v in row.values()) for row in rows]
        assert 0.95 * wanted < sum(sizes) / len(sizes) < 1.1 * wanted, kind


def test_a_missing_file_of_output_and_one_read_twice_are_found(tmp_path: Path) -> None:
    """The oracle over files that no engine wrote."""
    write_files(MODEL, tmp_path / "in", 1000)
    (tmp_path / "out/_epochs").mkdir(parents=True)
    number, time = pa.int64(), pa.timestamp("ms", "UTC")
    schema = pa.schema([("auction", number), ("price", number), ("date_time", time)])
    files = []
    for place in range(5):
        rows = [
            {**row["bid"], "date_time": row["date_time"]}
            for row in arrivals(MODEL, 1000 * place, 1000 * (place + 1))
            if row["bid"] and row["bid"]["auction"] % 123 == 0
        ]
        name = f"part-{place:010d}-0000-1.parquet"
        pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "out" / name)
        files.append((name, len(rows)))

    def verdict_over(names: list[str]) -> tuple[int, int]:
        content = json.dumps({"files": [{"name": name} for name in names]})
        (tmp_path / "out/_epochs/1.json").write_text(content)
        verdict = check("q2", MODEL, tmp_path / "in", tmp_path / "out")
        return verdict.missing, verdict.extra

    names = [name for name, _ in files]
    largest, count = max(files, key=lambda file: file[1])
    assert verdict_over(names) == (0, 0)
    assert verdict_over([name for name in names if name != largest]) == (count, 0)
    assert verdict_over([*names, largest]) == (0, count)
    assert verdict_over([]) == (sum(rows for _, rows in files), 0)


def test_an_update_that_comes_again_after_a_crash_is_found(tmp_path: Path) -> None:
    """The last rows are right all the same: only the trace tells."""
    write_files(MODEL, tmp_path / "in", 5000)
    number, text, time = pa.int64(), pa.string(), pa.timestamp("ms", "UTC")
    types = dict.fromkeys(("number", "auction", "bidder", "price"), number)
    types |= {"date_time": time} | dict.fromkeys(("channel", "url", "extra"), text)
    rows = [
        {**row["bid"], "date_time": row["date_time"], "number": row["number"]}
        for row in arrivals(MODEL)
        if row["bid"]
    ]
    table = pa.Table.from_pylist(rows, pa.schema(list(types.items())))
    (tmp_path / "out/_epochs").mkdir(parents=True)
    names = [f"part-{epoch:010d}-0000-1.parquet" for epoch in (1, 2)]
    for epochs in (names[:1], names):
        pq.write_table(table, tmp_path / "out" / epochs[-1])
        content = json.dumps({"files": [{"name": name} for name in epochs]})
        (tmp_path / "out/_epochs/1.json").write_text(content)
        verdict = check("q18", MODEL, tmp_path / "in", tmp_path / "out")
        assert (verdict.missing, verdict.extra) == (0, 0)
        assert (verdict.traces > 0) == (len(epochs) > 1)
