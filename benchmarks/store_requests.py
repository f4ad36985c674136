"""Requests of a snapshot and a restore on S3 and DynamoDB, counted by moto's server.

Only counts: moto's speed says nothing about theirs. One member, no backups, as is usual there.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.store_workers import Workers
from dagster_jet.store import Store, StoreConfig
from tests.servers.members import AwsServer

_BUCKET = "bucket"


@dataclass(frozen=True)
class Requests:
    """HTTP requests by method, until the workers had their answers."""

    kind: str
    shards: int
    chunks: int
    state_mb: float
    snapshot: dict[str, int]
    restore: dict[str, int]


def count(state_bytes: int, shard_counts: Sequence[int]) -> list[Requests]:
    """Requests of a snapshot and a restore by as many processes as there are shards, for each
    number."""
    with AwsServer() as server, _environment(server.environment):
        server.create_bucket(_BUCKET)
        return [
            _counted(server, kind, url, shards, state_bytes)
            for kind, url in (("s3", f"s3://{_BUCKET}/{{}}"), ("dynamodb", "dynamodb://{}"))
            for shards in shard_counts
        ]


def _counted(server: AwsServer, kind: str, url: str, shards: int, state_bytes: int) -> Requests:
    place = url.format(f"jet-{uuid.uuid4().hex}")
    config = StoreConfig((f"{place}?endpoint_url={server.endpoint_url}",), backup_count=0)
    with (
        Store.open(config) as store,
        Workers(state_bytes, shards, store.partition_count) as workers,
    ):
        expected = {at: done.result for at, done in enumerate(workers.together("ready"))}
        begun = server.requests()
        sets = [done.result for done in workers.together("snapshot", store.handle())]
        written = server.requests()
        read = workers.together("restore", store.handle(), sets)
        ended = server.requests()
    if dict(done.result for done in read) != expected:
        raise AssertionError(f"the rows restored from {kind} are not those of the snapshot")
    return Requests(
        kind=kind,
        shards=shards,
        chunks=sum(one.chunks for one in sets),
        state_mb=sum(one.bytes for one in sets) / 1e6,
        snapshot=requests_between(begun, written),
        restore=requests_between(written, ended),
    )


def requests_between(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    more = {method: after[method] - before.get(method, 0) for method in after}
    return {method: n for method, n in sorted(more.items()) if n}


@contextmanager
def bucket() -> Iterator[tuple[str, AwsServer]]:
    """Yields the URL of a member in a bucket of moto's server, and the server, which counts."""
    with AwsServer() as server, _environment(server.environment):
        server.create_bucket(_BUCKET)
        yield f"s3://{_BUCKET}/jet?endpoint_url={server.endpoint_url}", server


@contextmanager
def _environment(wanted: dict[str, str]) -> Iterator[None]:
    """Variables that the workers inherit, and what was there before afterwards."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
