"""Every member in the box passes the suite that users run on their own."""

import uuid
from functools import partial
from pathlib import Path

import pytest

from dagster_jet.store import MemoryMember, open_member
from dagster_jet.testing.check_member import check_member
from tests.long import long
from tests.servers.members import AwsServer, RedisServer


def test_a_folder_is_a_member(tmp_path: Path) -> None:
    check_member(partial(open_member, f"file://{tmp_path}/new"))


def test_memory_is_a_member() -> None:
    check_member(partial(MemoryMember, uuid.uuid4().hex), several_processes=False)


@pytest.mark.parametrize("durable", [pytest.param(False, marks=long), True])
def test_a_redis_server_is_a_member(durable: bool) -> None:
    with RedisServer(appendonly=durable) as server:
        check_member(partial(open_member, server.url))


def test_a_redis_server_behind_tls_and_a_password_is_a_member() -> None:
    with RedisServer(password="secret", tls=True) as server:
        check_member(partial(open_member, f"{server.url}&prefix=other:"))


@pytest.mark.parametrize("place", ["s3://bucket/some/prefix", "dynamodb://table"])
def test_an_aws_service_is_a_member(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with AwsServer() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        server.create_bucket("bucket")
        check_member(partial(open_member, f"{place}?endpoint_url={server.endpoint_url}"))


class ForgetfulMember(MemoryMember):
    """Loses a deletion."""

    def delete_many(self, keys: object) -> None:
        pass


def test_the_suite_names_the_clause_that_is_broken() -> None:
    with pytest.raises(AssertionError, match=r"memory://x breaks its contract: delete_many"):
        check_member(partial(ForgetfulMember, "x"), several_processes=False)
