"""One request commits two Iceberg tables of a REST catalog: late, unanswered, beside other writers,
and where the catalog has no such request."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from dagster_jet import sinks
from dagster_jet.connectors.iceberg import IcebergSink, iceberg_committer
from dagster_jet.connectors.iceberg.iceberg_committer import IcebergCommitter
from dagster_jet.connectors.iceberg.iceberg_probe import probe
from dagster_jet.connectors.iceberg.table_request import NoRouteError, send_together
from dagster_jet.contract import CommitContext, CommitPart
from dagster_jet.core.answers import Verdict
from dagster_jet.core.secret import Secret
from dagster_jet.errors import FencedError, SinkError, SinkUnavailableError
from tests.servers import iceberg_catalog
from tests.servers.proxy import HeldRequest, Proxy
from tests.unit.connectors.delta_table import APPLICATION, SCHEMA, by, rows, stage
from tests.unit.connectors.iceberg_table import commit

Parts = Sequence[tuple[IcebergSink, Any]]


@dataclass
class Two:
    """Two tables, and a sink for each: one appends, one merges."""

    kind: str
    proxy: Proxy
    space: str = field(default_factory=lambda: f"s{uuid.uuid4().hex}")

    def __post_init__(self) -> None:
        self.plain, self.keyed = f"{self.space}.plain", f"{self.space}.keyed"
        with self.catalog() as catalog:
            catalog.create_namespace(self.space)
            for name in (self.plain, self.keyed):
                catalog.create_table(name, SCHEMA)
        self.appends, self.merges = self.sink(self.plain), self.sink(self.keyed, "upsert")

    @contextmanager
    def catalog(self) -> Iterator[Any]:
        with closing(load_catalog("lake", **iceberg_catalog.rest_catalog().options)) as catalog:
            yield catalog

    @property
    def options(self) -> dict[str, Any]:
        uri, token = f"http://127.0.0.1:{self.proxy.port}", Secret(env="LAKE_TOKEN")
        return {"type": "rest", "uri": uri, "token": token, "warehouse": self.kind}

    def sink(self, table: str, mode: Any = "append") -> IcebergSink:
        key = "id" if mode == "upsert" else ()
        made = sinks.iceberg("lake", table, mode=mode, key=key, catalog_options=self.options)
        return made.at_start("j", "out", on_one_host=True)

    def staged(self, *ids: int, **how: Any) -> Parts:
        text = how.pop("text", "old")
        made = rows(*ids, text=text)
        return [(sink, stage(sink, made, **how)) for sink in (self.appends, self.merges)]

    def found(self) -> tuple[list[int], dict[int, str]]:
        """Ids of the appended rows, and texts by id of the merged ones."""
        with self.catalog() as catalog:
            plain, keyed = (
                catalog.load_table(name).scan().to_arrow().to_pylist()
                for name in (self.plain, self.keyed)
            )
        assert len({row["id"] for row in keyed}) == len(keyed)
        return sorted(row["id"] for row in plain), {row["id"]: row["text"] for row in keyed}

    def snapshots(self) -> list[int]:
        with self.catalog() as catalog:
            return [len(catalog.load_table(n).snapshots()) for n in (self.plain, self.keyed)]

    def append(self, name: str, *ids: int) -> None:
        """Appends rows as another writer does."""
        with self.catalog() as catalog:
            catalog.load_table(name).append(pa.Table.from_batches([rows(*ids)]))

    def requests(self) -> list[bytes]:
        """Returns a list, to which each joint request is added as it comes."""
        seen: list[bytes] = []

        def see(sent: bytes) -> bool:
            if is_joint(sent):
                seen.append(sent)
            return False

        self.proxy.hold_next(see)
        return seen


def is_joint(sent: bytes) -> bool:
    return sent.startswith(b"POST") and b"/transactions/commit" in sent


def together(parts: Parts, context: CommitContext | None = None) -> bool:
    """Commits with new committers, as an execution does."""
    context = context or by()
    opened = [(sink.open_committer("j", "out"), staged) for sink, staged in parts]
    places = {committer.together_with() for committer, _ in opened}
    assert len(places) == 1 and None not in places
    try:
        given = [CommitPart(committer, staged, context) for committer, staged in opened]
        is_done = opened[0][0].commit_together(given)
        assert is_done == all(one.together_with() is not None for one, _ in opened)
        return is_done
    finally:
        for committer, _ in opened:
            committer.close()


@pytest.fixture
def two(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Two]:
    monkeypatch.setenv("LAKE_TOKEN", iceberg_catalog.TOKEN)
    with closing(Proxy(iceberg_catalog.rest_catalog().port, is_http=True)) as proxy:
        yield Two(getattr(request, "param", "joint"), proxy)


def test_a_request_arrives_after_its_successor(two: Two) -> None:
    """The request is from a dead driver, and its successor has committed the same epoch: none of it
    is applied."""
    held = two.proxy.hold_next(is_joint)
    staged = two.staged(1, 2)
    assert together(staged)
    assert together(two.staged(2, epoch=2, text="new"), by(2))
    assert held.is_caught and b" 409 " in held.release()
    assert two.found() == ([1, 2, 2], {1: "old", 2: "new"}) and two.snapshots() == [2, 2]
    assert together(staged, by(3)) and two.snapshots() == [2, 2], "both have the marker"


def held_of_a_dead_driver(two: Two, staged: Parts) -> HeldRequest:
    """Returns the joint request that a driver has died with."""

    def dies(catalog: Any, requests: Any) -> None:
        with suppress(OSError):
            send_together(catalog, requests)
        raise KeyboardInterrupt

    held = two.proxy.hold_next(is_joint)
    with pytest.MonkeyPatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(iceberg_committer, "send_together", dies)
        together(staged)
    return held


def test_a_late_request_is_refused_whole(two: Two) -> None:
    """Its driver is dead. A successor that commits table by table has committed one of them."""
    (appends, appended), _ = staged = two.staged(1, 2)
    held = held_of_a_dead_driver(two, staged)
    commit(appends, appended, by(2))
    assert held.is_caught and b" 409 " in held.release()
    assert two.found() == ([1, 2], {}) and two.snapshots() == [1, 0]
    assert together(staged, by(3))
    assert two.found() == ([1, 2], {1: "old", 2: "old"}) and two.snapshots() == [1, 1]


def test_read_skew_is_no_tear(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request of a dead driver lands between two looks of its successor: one table seems to be
    behind, and is not. A request for it alone is refused, and a second look finds nothing to do."""
    staged = two.staged(1, 2)
    held, seen = held_of_a_dead_driver(two, staged), two.requests()
    has_looked, look = threading.Event(), IcebergCommitter.lacking

    def one_after_the_other(self: IcebergCommitter, *given: Any) -> Any:
        if self.table == two.keyed:
            assert has_looked.wait(60)
        change = look(self, *given)
        if self.table == two.plain and not has_looked.is_set():
            answer = held.release()
            has_looked.set()
            assert change is not None and b" 204 " in answer
        return change

    monkeypatch.setattr(IcebergCommitter, "lacking", one_after_the_other)
    assert together(staged, by(2))
    assert len(seen) == 1 and b'"plain"' in seen[0] and b'"keyed"' not in seen[0]
    assert two.found() == ([1, 2], {1: "old", 2: "old"}) and two.snapshots() == [1, 1]


def test_the_answer_is_lost(two: Two) -> None:
    staged = two.staged(1, 2)
    two.proxy.cut_answer_to(is_joint)
    with pytest.raises(SinkUnavailableError, match="is unavailable"):
        together(staged)
    assert two.found() == ([1, 2], {1: "old", 2: "old"})
    two.proxy.restore()
    seen = two.requests()
    assert together(staged) and not seen and two.snapshots() == [1, 1]


def test_only_tables_that_are_behind_are_in_the_request(two: Two) -> None:
    (_, _), (merges, merged) = staged = two.staged(1)
    commit(merges, merged, by())
    seen = two.requests()
    assert together(staged, by(2))
    assert len(seen) == 1 and b'"plain"' in seen[0] and b'"keyed"' not in seen[0]
    assert two.found() == ([1], {1: "old"}) and two.snapshots() == [1, 1]


def test_another_writer_comes_first(two: Two, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both tables are tried again. What was written for the one that nobody has changed is used."""
    tries: list[int] = []

    def after_another(catalog: Any, requests: Any) -> None:
        tries.append(len(requests))
        if len(tries) < 3:
            two.append(two.plain, 10 + len(tries))
        send_together(catalog, requests)

    monkeypatch.setattr(iceberg_committer, "send_together", after_another)
    assert together(two.staged(1))
    assert tries == [2, 2, 2]
    assert two.found() == ([1, 11, 12], {1: "old"}) and two.snapshots() == [3, 1]
    assert two.merges.found is not None
    folder = Path(two.merges.found.data.removeprefix("file://"))
    assert len(list(folder.rglob("merged-*"))) == 1


def test_a_merge_is_planned_again_if_its_table_has_changed(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def after_another(catalog: Any, requests: Any) -> None:
        tries.append(len(requests))
        if len(tries) == 1:
            two.append(two.keyed, 1)
        send_together(catalog, requests)

    monkeypatch.setattr(iceberg_committer, "send_together", after_another)
    assert together(two.staged(1, text="new"))
    assert tries == [2, 2] and two.found() == ([1], {1: "new"})


def test_a_table_that_cannot_be_committed_holds_the_others_back(two: Two) -> None:
    staged = two.staged(1)
    with two.catalog() as catalog:
        with catalog.load_table(two.keyed).transaction() as change:
            change.set_properties({APPLICATION: str(2 << 40)})
        with pytest.raises(FencedError, match="keyed"):
            together(staged)
        catalog.drop_table(two.keyed)
        with pytest.raises(SinkError, match=r"keyed' is gone"):
            together(staged)
        assert len(catalog.load_table(two.plain).snapshots()) == 0


def test_a_table_is_dropped_right_before_the_request(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server says that it does not find it: it does not lack the request."""
    staged = two.staged(1)

    def after_a_drop(catalog: Any, requests: Any) -> None:
        with suppress(NoSuchTableError):
            catalog.drop_table(two.keyed)
        send_together(catalog, requests)

    monkeypatch.setattr(iceberg_committer, "send_together", after_a_drop)
    with pytest.raises(SinkError, match=r"keyed' is gone"):
        together(staged)
    with two.catalog() as catalog:
        assert not catalog.load_table(two.plain).snapshots()


@pytest.mark.parametrize(
    ("two", "why"),
    [("single", "does not name transactions/commit"), ("lost", "does not know the request")],
    indirect=["two"],
)
def test_a_catalog_without_the_request(
    two: Two, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    staged = two.staged(1)
    assert not together(staged)
    assert two.snapshots() == [0, 0]
    [said] = [one for one in caplog.messages if "in one step" in one]
    assert why in said and two.plain in said and two.keyed in said
    for sink, artifacts in staged:
        commit(sink, artifacts, by())
    assert two.found() == ([1], {1: "old"})


def test_one_answer_does_not_say_that_the_request_is_lacking(
    two: Two, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway without its catalog answers 404, and some servers 501 to a token that is over."""
    answers = iter([NoRouteError("HTTP 501: "), None])

    def behind_a_gateway(catalog: Any, requests: Any) -> None:
        if error := next(answers):
            raise error
        send_together(catalog, requests)

    monkeypatch.setattr(iceberg_committer, "send_together", behind_a_gateway)
    assert together(two.staged(1))
    assert two.found() == ([1], {1: "old"}) and two.snapshots() == [1, 1]
    assert not [one for one in caplog.messages if "in one step" in one]


@pytest.mark.parametrize(
    ("two", "verdict"), [("single", Verdict.NO), ("joint", Verdict.YES)], indirect=["two"]
)
def test_a_probe_says_so(two: Two, verdict: Verdict) -> None:
    options = {n: str(v) for n, v in two.options.items() if n != "token"}
    *_, last = probe(f"iceberg://lake/{two.plain}", {**options, "token": "env:LAKE_TOKEN"}, {})
    assert "several tables" in last.question and last.verdict is verdict


def test_two_sinks_of_one_table(two: Two) -> None:
    """One request cannot have two conditions on one branch: each is committed by itself."""
    other = two.sink(two.plain)
    assert not together(
        [(two.appends, stage(two.appends, rows(1))), (other, stage(other, rows(2)))]
    )
    assert two.snapshots() == [0, 0]
