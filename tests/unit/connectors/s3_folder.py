"""A folder of moto's S3 server, for tests of places."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import boto3
import pytest

from tests.servers.members import AwsServer

BUCKET = "bucket"


@dataclass(frozen=True)
class S3Folder:
    """Folder of a bucket that a test reads or writes."""

    server: AwsServer
    prefix: str

    @classmethod
    def new(cls, server: AwsServer) -> S3Folder:
        return cls(server, uuid.uuid4().hex)

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}"

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint_url": self.server.endpoint_url}

    @cached_property  # to make one takes a tenth of a second
    def client(self) -> Any:
        return boto3.client("s3", endpoint_url=self.server.endpoint_url)

    def put(self, name: str, body: bytes | str) -> str:
        data = body if isinstance(body, bytes) else body.encode()
        self.client.put_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}", Body=data)
        return f"{self.url}/{name}"

    def delete(self, name: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")

    def get(self, name: str) -> bytes:
        found = self.client.get_object(Bucket=BUCKET, Key=f"{self.prefix}/{name}")
        body: bytes = found["Body"].read()
        return body

    def names(self) -> list[str]:
        """All that a listing shows, hidden names left out."""
        return [n for n in self.every_name() if not n.rpartition("/")[2].startswith(".")]

    def every_name(self) -> list[str]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=BUCKET, Prefix=f"{self.prefix}/"
        )
        keys = [one["Key"] for page in pages for one in page.get("Contents", ())]
        return [key.removeprefix(f"{self.prefix}/") for key in keys]

    def uploads(self) -> list[str]:
        found = self.client.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{self.prefix}/")
        return [one["Key"].rpartition("/")[2] for one in found.get("Uploads", ())]


def environment(server: AwsServer) -> Iterator[tuple[str, str]]:
    """Variables that a process needs to reach the server."""
    yield from server.environment.items()
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        yield variable, "/not/there"
    yield "AWS_EC2_METADATA_DISABLED", "true"


@pytest.fixture(scope="module")
def server() -> Iterator[AwsServer]:
    with AwsServer() as started:
        started.create_bucket(BUCKET)
        yield started


@pytest.fixture
def s3(server: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Folder]:
    for name, value in environment(server):
        monkeypatch.setenv(name, value)
    yield S3Folder.new(server)
    server.ignore()
