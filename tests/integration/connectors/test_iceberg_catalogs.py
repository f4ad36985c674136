"""Iceberg tables in catalogs that are servers: PostgreSQL, and Iceberg's own REST catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError

from dagster_jet import sinks
from dagster_jet.core.secret import Secret
from dagster_jet.errors import ConfigurationError
from dagster_jet.testing.check_sink import check_sink
from dagster_jet.testing.sink_rows import SCHEMA
from tests.long import long
from tests.servers import iceberg_catalog, postgres
from tests.servers.proxy import Proxy
from tests.unit.connectors.delta_table import by, rows, stage
from tests.unit.connectors.iceberg_table import commit
from tests.unit.connectors.test_delta_sink import STEPS

from .kafka_world import away

NAME = "space.rows"
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
    with closing(Proxy(server.port)) as proxy:
        monkeypatch.setenv("LAKE_TOKEN", iceberg_catalog.TOKEN)
        uri = f"http://127.0.0.1:{proxy.port}"
        ours = {"type": "rest", "uri": uri, "token": Secret(env="LAKE_TOKEN")}
        with closing(load_catalog("lake", **server.options)) as catalog, suppress(NoSuchTableError):
            catalog.drop_table(NAME)
        yield ours, server.options, proxy


def read(options: Options) -> list[dict[str, Any]]:
    with closing(load_catalog("lake", **options)) as catalog:
        found: list[dict[str, Any]] = catalog.load_table(NAME).scan().to_arrow().to_pylist()
        return found


@long
def test_a_catalog_that_is_a_server_keeps_the_contract(
    place: tuple[Options, Options, Proxy],
) -> None:
    ours, theirs, proxy = place
    with closing(load_catalog("lake", **theirs)) as catalog:
        catalog.create_namespace_if_not_exists("space")
        catalog.create_table(NAME, SCHEMA)
    check_sink(
        partial(sinks.iceberg, "lake", NAME, catalog_options=dict(ours)),
        partial(read, theirs),
        log_of=None,
        steps=STEPS,
        outages={"a catalog that is away": partial(away, proxy)},
        secrets=[iceberg_catalog.TOKEN, postgres.PASSWORD],
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
