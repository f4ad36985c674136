"""Iceberg tables in catalogs that are servers: PostgreSQL, and Iceberg's own REST catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog import load_catalog, rest
from pyiceberg.exceptions import NoSuchTableError

from dagster_jet import sinks
from dagster_jet.connectors.iceberg import IcebergSink
from dagster_jet.connectors.iceberg import catalog as module
from dagster_jet.core.secret import Secret
from dagster_jet.errors import ConfigurationError, SinkUnavailableError
from dagster_jet.testing import Beside, check_sink
from dagster_jet.testing.sink_rows import SCHEMA
from tests.long import long
from tests.servers import iceberg_catalog, postgres, wait_until
from tests.servers.proxy import Proxy
from tests.unit.connectors.delta_table import SCHEMA as SCHEMA_OF_ROWS
from tests.unit.connectors.delta_table import by, rows, stage
from tests.unit.connectors.iceberg_table import commit
from tests.unit.connectors.test_delta_sink import STEPS

from .kafka_world import away

NAME, BESIDE = "space.rows", "space.beside"
Options = Mapping[str, Any]


@pytest.fixture(params=["sql", "rest"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Options, Options, Proxy]]:
    """Options of the sink, those of a reader, and the way of the sink to the catalog."""
    warehouse = {"warehouse": f"file://{tmp_path}/warehouse"}
    if request.param == "sql":
        base = postgres.postgres()
        with closing(Proxy(base.port)) as proxy:
            url = base.through(proxy.port).replace("postgresql:", "postgresql+psycopg:")
            monkeypatch.setenv("LAKE_URI", url)
            theirs = {"uri": base.url.replace("postgresql:", "postgresql+psycopg:"), "type": "sql"}
            ours = {**theirs, "uri": Secret(env="LAKE_URI")}
            yield ours | warehouse, theirs | warehouse, proxy
        return
    server = iceberg_catalog.rest_catalog()
    with closing(Proxy(server.port, is_http=True)) as proxy:
        monkeypatch.setenv("LAKE_TOKEN", iceberg_catalog.TOKEN)
        uri = f"http://127.0.0.1:{proxy.port}"
        ours = {"type": "rest", "uri": uri, "token": Secret(env="LAKE_TOKEN")}
        with closing(load_catalog("lake", **server.options)) as catalog:
            for name in (NAME, BESIDE):
                with suppress(NoSuchTableError):
                    catalog.drop_table(name)
        yield ours, server.options, proxy


def read(options: Options, name: str = NAME) -> list[dict[str, Any]]:
    with closing(load_catalog("lake", **options)) as catalog:
        found: list[dict[str, Any]] = catalog.load_table(name).scan().to_arrow().to_pylist()
        return found


@contextmanager
def lost_answers(proxy: Proxy) -> Iterator[None]:
    """Cuts the answers to requests that change several tables."""
    proxy.cut_answer_to(lambda sent: b"/transactions/commit" in sent)
    try:
        yield
    finally:
        proxy.restore()


@long
def test_a_catalog_that_is_a_server_keeps_the_contract(
    place: tuple[Options, Options, Proxy],
) -> None:
    ours, theirs, proxy = place
    with closing(load_catalog("lake", **theirs)) as catalog:
        catalog.create_namespace_if_not_exists("space")
        for name in (NAME, BESIDE):
            catalog.create_table(name, SCHEMA)
    beside = Beside(
        partial(sinks.iceberg, "lake", BESIDE, catalog_options=dict(ours)),
        partial(read, theirs, BESIDE),
        steps=("lake.together.before", "lake.together.after"),
        lost_answers=partial(lost_answers, proxy),
        in_one_step=ours["type"] == "rest",
    )
    check_sink(
        partial(sinks.iceberg, "lake", NAME, catalog_options=dict(ours)),
        partial(read, theirs),
        log_of=None,
        steps=STEPS,
        outages={"a catalog that is away": partial(away, proxy)},
        secrets=[iceberg_catalog.TOKEN, postgres.PASSWORD],
        beside=beside,
    )


def test_a_rest_catalog_gets_a_request_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start creates the table. A commit that was not answered arrives after its repetition."""
    server, name = iceberg_catalog.rest_catalog(), "made.by_a_start"
    monkeypatch.setenv("LAKE_TOKEN", iceberg_catalog.TOKEN)
    with closing(Proxy(server.port, is_http=True)) as proxy:
        uri, token = f"http://127.0.0.1:{proxy.port}", Secret(env="LAKE_TOKEN")
        options: Any = {"type": "rest", "uri": uri, "token": token}
        made = sinks.iceberg("lake", name, partition_by="day(day)", catalog_options=options)
        made.check("j", "out", is_new_job=True)
        made._of_rows.append(rows(1).schema)
        made.claim_place("j", "out")
        sink = made.at_start("j", "out", on_one_host=True)
        staged = stage(sink, rows(1, 2))
        held = proxy.hold_next(lambda sent: sent.startswith(b"POST") and b"/by_a_start" in sent)
        commit(sink, staged, by())
        assert held.is_caught and b" 409 " in held.release()
        commit(sink, staged, by(2))
        with closing(load_catalog("lake", **server.options)) as catalog:
            assert sorted(catalog.load_table(name).scan().to_arrow()["id"].to_pylist()) == [1, 2]
        monkeypatch.setenv("LAKE_TOKEN", "another")
        with pytest.raises(ConfigurationError, match="no valid token"):
            made.at_start("j", "out", on_one_host=True)


def test_a_rest_catalog_that_is_frozen_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is reset: the library itself would wait for an answer without an end."""
    module._limit_rest_requests.cache_clear()
    monkeypatch.setattr(rest, "Session", requests.Session)
    monkeypatch.setattr(module, "ANSWER_S", 0.5)
    monkeypatch.setenv("LAKE_TOKEN", iceberg_catalog.TOKEN)
    with closing(Proxy(iceberg_catalog.rest_catalog().port)) as proxy:
        options = {"uri": f"http://127.0.0.1:{proxy.port}", "token": Secret(env="LAKE_TOKEN")}
        place = module.CatalogPlace("lake", tuple({"type": "rest", **options}.items()))
        opened = place.open(())
        for ask in (partial(opened.load_table, NAME), partial(place.open, ())):
            with (
                proxy.silent(),
                pytest.raises(SinkUnavailableError, match="timed out"),
                module.errors_named(NAME, "j", "out"),
            ):
                ask()
        place.open(()).close()
    module._limit_rest_requests.cache_clear()


def test_a_merge_arrives_late(place: tuple[Options, Options, Proxy]) -> None:
    """The request of a driver that is gone arrives after its repetition, and after a rollback to
    the snapshot that it was planned on. It would bring old values back."""
    ours, theirs, proxy = place
    with closing(load_catalog("lake", **theirs)) as catalog:
        catalog.create_namespace_if_not_exists("space")
        catalog.create_table(NAME, SCHEMA_OF_ROWS)
    made = sinks.iceberg("lake", NAME, mode="upsert", key="id", catalog_options=dict(ours))
    sink = made.at_start("j", "out", on_one_host=True)
    commit(sink, stage(sink, rows(1, 2)), by())
    if ours["type"] == "sql":
        with_a_commit_held(sink, stage(sink, rows(2, 3, text="new"), epoch=2), proxy)
        assert texts(theirs) == {1: "row 1", 2: "new", 3: "new"}
        return
    held = proxy.hold_next(is_commit)
    commit(sink, stage(sink, rows(2, 3, text="new"), epoch=2), by())
    commit(sink, stage(sink, rows(2, text="newer"), epoch=3), by())
    assert held.is_caught and b" 409 " in held.release()
    assert texts(theirs) == {1: "row 1", 2: "newer", 3: "new"}
    with closing(load_catalog("lake", **theirs)) as catalog:
        table = catalog.load_table(NAME)
        before = table.metadata.current_snapshot_id
        held = proxy.hold_next(is_commit)
        commit(sink, stage(sink, rows(1, text="newest"), epoch=4), by(2))
        assert before is not None
        table.refresh().manage_snapshots().rollback_to_snapshot(before).commit()
    assert held.is_caught and b" 200 " not in held.release(), "its snapshot's number is used up"
    assert texts(theirs) == {1: "row 1", 2: "newer", 3: "new"}


def texts(options: Options) -> dict[int, str]:
    found = read(options)
    assert len(found) == len({row["id"] for row in found})
    return {row["id"]: row["text"] for row in found}


def is_commit(sent: bytes) -> bool:
    return sent.startswith(b"POST") and b"/tables/rows" in sent


def with_a_commit_held(sink: IcebergSink, staged: Any, proxy: Proxy) -> None:
    """PostgreSQL has the change and not the COMMIT: the repetition waits for that, and loses."""
    seen: list[bytes] = []

    def is_it(sent: bytes) -> bool:
        seen.append(sent)
        return b"COMMIT" in sent and any(b"UPDATE iceberg_tables" in one for one in seen)

    held = proxy.hold_next(is_it)
    watching, waiting = (
        postgres.postgres(),
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
        "AND starts_with(query, 'UPDATE iceberg_tables')",
    )
    with ThreadPoolExecutor(1) as pool:
        repeated = pool.submit(commit, sink, staged, by())
        try:
            held.wait()
            wait_until(lambda: bool(watching.run(waiting)), within=30)
        finally:
            answer = held.release()
        repeated.result(timeout=60)
    assert b"COMMIT" in answer
    commit(sink, staged, by(2))
