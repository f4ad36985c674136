"""Input from buckets: ``s3://bucket/folder``, or a pattern of keys.

An object is read on condition that it has the planned ETag (`If-Match`).
"""

from __future__ import annotations

import errno
import io
import os
from datetime import datetime
from typing import Any, BinaryIO, cast

from botocore.exceptions import BotoCoreError, ClientError

from dagster_jet.aws.access import code_of
from dagster_jet.aws.conditions import REFUSED
from dagster_jet.connectors.files.places.listing import folder_of, found_in
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.place import InputFile, Known, Listing, unknown
from dagster_jet.connectors.files.places.s3_bucket import GONE, S3Bucket
from dagster_jet.system.backoff import attempts

_READ_BYTES = 8 << 20


class S3Input(S3Bucket):
    """Objects of a folder, or with keys matching a pattern."""

    reads_what_was_planned = True

    def __init__(self, url: str, options: StorageOptions, recursive: bool = False) -> None:
        super().__init__(url, options)
        self._recursive = recursive

    @property
    def folder_url(self) -> str:
        return folder_of(self.url)

    def listing(self, known: Known = unknown) -> Listing:
        is_folder = self.folder_url == self.url
        start = self.folder_url.removeprefix(f"s3://{self.bucket}").lstrip("/")
        asked: dict[str, str] = {"Delimiter": "/"} if is_folder and not self._recursive else {}
        files: list[InputFile] = []
        subfolders: list[str] = []
        for page in self.pages("list_objects_v2", Prefix=f"{start}/" if start else "", **asked):
            for one in page.get("Contents", ()):
                path = f"s3://{self.bucket}/{one['Key']}"
                files.append(_file(path, one["Size"], one["LastModified"], one["ETag"]))
            subfolders += [
                f"s3://{self.bucket}/{one['Prefix']}".rstrip("/")
                for one in page.get("CommonPrefixes", ())
            ]
        return found_in(self.url, files, subfolders, recursive=self._recursive)

    def find(self, path: str) -> InputFile | None:
        found = self.head(self._key(path))
        if found is None:
            return None
        return _file(path, found["ContentLength"], found["LastModified"], found["ETag"])

    def checksum(self, file: InputFile) -> None:
        """Returns None: the ETag identifies the content."""

    def open(self, file: InputFile) -> BinaryIO:
        raw = _Ranges(self, self._key(file.path), file)
        return cast(BinaryIO, io.BufferedReader(raw, _READ_BYTES))

    def remove(self, file: InputFile) -> None:
        with self.aws.errors_named():
            self.aws.repeating.delete_object(Bucket=self.bucket, Key=self._key(file.path))

    def move(self, file: InputFile, target: str) -> None:
        bucket, _, key = target.removeprefix("s3://").partition("/")
        with self.aws.errors_named():
            self.aws.repeating.copy_object(
                Bucket=bucket,
                Key=key,
                CopySource={"Bucket": self.bucket, "Key": self._key(file.path)},
                CopySourceIfMatch=file.etag,
            )
        self.remove(file)

    def _key(self, path: str) -> str:
        return path.removeprefix(f"s3://{self.bucket}/")


class _Ranges(io.RawIOBase):
    """Reads an object in ranges; fails once its content has changed."""

    def __init__(self, place: S3Bucket, key: str, file: InputFile) -> None:
        self._place, self._key, self._file, self._at = place, key, file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        self._at = start + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._file.size - self._at)
        if wanted <= 0:
            return 0
        data = self._fetch(self._at, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _fetch(self, begin: int, size: int) -> bytes:
        asked = {
            "Bucket": self._place.bucket,
            "Key": self._key,
            "Range": f"bytes={begin}-{begin + size - 1}",
            "IfMatch": f'"{self._file.etag}"',
        }
        failure: Exception | None = None
        with self._place.aws.errors_named():
            for _ in attempts(3):
                try:
                    with self._place.aws.repeating.get_object(**asked)["Body"] as body:
                        return cast(bytes, body.read())
                except ClientError as error:
                    if code_of(error) in GONE:
                        raise FileNotFoundError(
                            errno.ENOENT, "the object is gone", self._file.path
                        ) from error
                    if code_of(error) in REFUSED | {"InvalidRange", "416"}:
                        raise OSError(
                            errno.ESTALE, "the object has other content by now", self._file.path
                        ) from error
                    raise
                except BotoCoreError as error:
                    failure = error  # boto3 retries requests, but not reading a body
            assert failure is not None
            raise failure


def _file(path: str, size: int, modified: datetime, etag: str) -> InputFile:
    """Truncates times to seconds, which S3 stores; some answers show more digits."""
    return InputFile(int(modified.timestamp()) * 10**9, path, size, etag=etag.strip('"'))
