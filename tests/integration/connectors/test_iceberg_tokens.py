"""A REST catalog gives tokens for client credentials, and a token expires at any request."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from dagster_jet import sinks
from dagster_jet.connectors.iceberg import IcebergSink
from dagster_jet.contract import CommitPart
from dagster_jet.core.secret import Secret
from dagster_jet.errors import ConfigurationError, JetError, SinkUnavailableError
from tests.long import long
from tests.servers import iceberg_catalog
from tests.servers.proxy import Proxy
from tests.unit.connectors.delta_table import by, rows, stage

from .test_joint_requests import Two, is_joint

USES = (3, 6, 9)
"""Requests that a token is good for; `make soak` has all from 3 to 9. The tables are looked at in
parallel, so that one more than there are tables is needed for progress."""


class Client(Two):
    """Two tables, and sinks that get tokens for `uses` requests each."""

    tokens_port = 0

    @property
    def options(self) -> dict[str, Any]:
        uri = f"http://127.0.0.1:{self.proxy.port}"
        credential = Secret(env="LAKE_CREDENTIAL")
        server = f"http://127.0.0.1:{self.tokens_port}/v1/oauth/tokens"
        return {
            "type": "rest",
            "uri": uri,
            "credential": credential,
            "oauth2-server-uri": server,
            "warehouse": self.kind,
        }


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with closing(Proxy(iceberg_catalog.rest_catalog().port, is_http=True)) as proxy:
        yield proxy


def client(
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
    uses: int,
    kind: str = "joint",
    tokens: Proxy | None = None,
) -> Client:
    """`tokens`: the way to the server of tokens."""
    monkeypatch.setenv("LAKE_CREDENTIAL", f"uses-{uses}:{iceberg_catalog.TOKEN}")
    monkeypatch.setattr(Client, "tokens_port", (tokens or proxy).port)
    return Client(kind, proxy)


@pytest.mark.parametrize(
    ("kind", "all_uses"),
    [
        pytest.param("joint", USES, id="joint"),
        pytest.param("joint", range(3, 10), marks=long, id="joint, any"),
        pytest.param("single", range(3, 10), marks=long, id="single, any"),
    ],
)
def test_a_token_expires_at_any_request_of_a_commit(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, kind: str, all_uses: Sequence[int]
) -> None:
    """Each epoch is committed once by its first call; nothing is left to a restart."""
    seen = dict.fromkeys(("joint", "tokens"), 0)

    def see(sent: bytes) -> bool:
        seen["joint"] += is_joint(sent)
        seen["tokens"] += b"/oauth/tokens" in sent
        return False

    proxy.hold_next(see)
    for uses in all_uses:
        two = client(proxy, monkeypatch, uses, kind)
        opened = [sink.open_committer("j", "out") for sink in (two.appends, two.merges)]
        try:
            seen["tokens"] = 0
            for epoch in range(1, 3):
                staged = two.staged(epoch, epoch=epoch)
                parts = [
                    CommitPart(one, artifacts, by())
                    for one, (_, artifacts) in zip(opened, staged, strict=True)
                ]
                if not opened[0].commit_together(parts):
                    for part in parts:
                        part.committer.commit(part.artifacts, part.context)
            assert seen["tokens"] > 1, f"no token of {uses} requests has expired"
        finally:
            for one in opened:
                one.close()
        assert two.found() == ([1, 2], {1: "old", 2: "old"})
        assert two.snapshots() == [2, 2]
    assert bool(seen["joint"]) == (kind == "joint")


def test_credentials_that_are_refused(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A start is refused; a running job goes on once they are good again. Nothing shows them."""
    two = client(proxy, monkeypatch, 1000)
    name = f"{two.space}.{uuid.uuid4().hex}"
    sink: IcebergSink = two.appends
    staged = stage(sink, rows(1))
    monkeypatch.setenv("LAKE_CREDENTIAL", "uses-9:hunter2")
    made = sinks.iceberg("lake", name, catalog_options=two.options)
    with pytest.raises(ConfigurationError, match="unknown client") as refused:
        made.at_start("j", "out", on_one_host=True)
    with closing(sink.open_committer("j", "out")) as committer:
        with pytest.raises(JetError, match="unknown client") as failed:
            committer.commit(staged, by())
        monkeypatch.setenv("LAKE_CREDENTIAL", f"uses-9:{iceberg_catalog.TOKEN}")
        committer.commit(staged, by())
    assert two.found()[0] == [1]
    shown = [str(refused.value), str(failed.value), repr(sink), str(sink.describe()), caplog.text]
    assert not any("hunter2" in one or iceberg_catalog.TOKEN in one for one in shown)


def test_the_server_of_tokens_is_away(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalog answers, and the token has expired: the commit is repeated."""
    with closing(Proxy(iceberg_catalog.rest_catalog().port, is_http=True)) as tokens:
        two = client(proxy, monkeypatch, 4, tokens=tokens)
        staged = stage(two.appends, rows(1))
        with closing(two.appends.open_committer("j", "out")) as committer:
            committer.commit(staged, by())
            later = stage(two.appends, rows(2), epoch=2)
            with tokens.cut(), pytest.raises(SinkUnavailableError):
                for _ in range(4):
                    committer.commit(later, by())
            committer.commit(later, by())
        assert two.found()[0] == [1, 2]
