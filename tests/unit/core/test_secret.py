"""Texts that hold passwords: their values are in no pickle, repr or description."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

import dagster as dg
import pytest

from dagster_jet.core.secret import Secret, Url, named, shown, text_of
from dagster_jet.errors import ConfigurationError

PASSWORD = "hunter2"
URL = f"postgresql://jet:{PASSWORD}@db:5432/orders"


@dataclass(frozen=True)
class Connector:
    """Source with a URL, handled as in every connector that has one."""

    url: Url

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", named(self.url))

    def describe(self) -> dict[str, str]:
        return {"kind": "table", "url": shown(self.url)}


@pytest.mark.parametrize("given", [Secret(env="DB_URL"), dg.EnvVar("DB_URL"), "env:DB_URL"])
def test_a_secret_is_resolved_where_it_is_used_and_nowhere_else(
    given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DB_URL", URL)
    connector = Connector(given)
    sent = pickle.dumps(connector)
    for told in (sent, repr(connector).encode(), str(connector.describe()).encode()):
        assert PASSWORD.encode() not in told
    assert connector.describe()["url"] == "env:DB_URL"
    assert text_of(pickle.loads(sent).url) == URL
    monkeypatch.delenv("DB_URL")
    with pytest.raises(ConfigurationError, match="DB_URL is not set"):
        text_of(connector.url)


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        (URL, "postgresql://jet@db:5432/orders"),
        ("amqp://:secret@host/vhost", "amqp://host/vhost"),
        ("sqlite:///a.db", "sqlite:///a.db"),
        ("host:9092", "host:9092"),
        ("host:9092,other:9092", "host:9092,other:9092"),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("jet:secret@db/orders", "db/orders"),
        ("postgresql://jet:se/cr@et@db/orders", "db/orders"),
    ],
)
def test_a_url_is_described_without_its_password(url: str, seen: str) -> None:
    assert shown(url) == seen
