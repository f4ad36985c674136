"""Access to a folder of a bucket, with failures as `OSError`."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any, cast

from botocore.exceptions import ClientError

from dagster_jet.aws.access import AwsAccess, AwsFailure, AwsSettings, Cause, code_of
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.core.secret import Secret, text_of

GONE = frozenset(("NoSuchKey", "NoSuchUpload", "404"))


class S3Bucket:
    """One folder of one bucket. Every failure is an `OSError`."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self.url = url
        self.bucket, _, self.folder = url.removeprefix("s3://").partition("/")
        self.prefix = f"{self.folder}/" if self.folder else ""
        self.settings = _settings(options)
        self.aws = AwsAccess("s3", self.settings, self._as_error)

    def at(self, name: str) -> dict[str, str]:
        """Returns the request parameters of an object by its name in the folder."""
        return {"Bucket": self.bucket, "Key": self.prefix + name}

    def head(self, key: str) -> dict[str, Any] | None:
        with self.aws.errors_named():
            try:
                answer = self.aws.repeating.head_object(Bucket=self.bucket, Key=key)
            except ClientError as error:
                if code_of(error) in GONE:
                    return None
                raise
        return cast("dict[str, Any]", answer)

    def pages(self, request: str, **asked: Any) -> Iterator[dict[str, Any]]:
        with self.aws.errors_named():
            yield from self.aws.repeating.get_paginator(request).paginate(
                Bucket=self.bucket, **asked
            )

    def _as_error(self, failure: AwsFailure) -> OSError:
        text = f"{self.url}: {failure.text}"
        if failure.cause is Cause.OUTAGE:
            return OSError(errno.EREMOTEIO, text)
        numbers = {Cause.PLACE: errno.ENOENT, Cause.FULL: errno.ENOSPC}
        return OSError(numbers.get(failure.cause, errno.EACCES), text)


def _settings(options: StorageOptions) -> AwsSettings:
    given = dict(options)

    def text(name: str) -> str | None:
        return text_of(given[name]) if name in given else None

    keys = [given.get(name) for name in ("access_key_id", "secret_access_key", "session_token")]
    return AwsSettings(
        region=text("region"),
        endpoint_url=given.get("endpoint_url"),
        connect_timeout_s=float(text("connect_timeout") or 2),
        timeout_s=float(text("timeout") or 20),
        credentials=tuple(key for key in keys if isinstance(key, Secret)),
    )
