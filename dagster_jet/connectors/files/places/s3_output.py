"""Output to buckets of S3 and compatible servers: ``s3://bucket/folder``.

Nothing is renamed. In phase 1 a file is a multipart upload to its final name, invisible until it is
completed. Phase 2 completes it on condition that no object exists (`If-None-Match: *`), then
creates the epoch's marker on the same condition: if two executions commit an epoch, one of them
writes the marker. An upload is completed once. A dead execution that completes it late finds the
upload gone, and checks whether the object is the uploaded one (its metadata names the attempt).

Listings of the bucket show whole committed files, as in a local folder, shortly before the marker
lists them. Uncommitted files are incomplete uploads; their keys name the execution.
"""

from __future__ import annotations

import errno
import io
import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, cast

import xxhash
from botocore.exceptions import BotoCoreError, ClientError

from dagster_jet.aws.access import code_of
from dagster_jet.aws.conditions import REFUSED, Condition, ignored_condition
from dagster_jet.connectors.files.places.place import (
    EPOCHS_FOLDER,
    OutputName,
    Sealed,
    execution_of,
    is_published,
)
from dagster_jet.connectors.files.places.s3_bucket import GONE, S3Bucket
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.backoff import attempts

_logger = logging.getLogger(__name__)

_PART_BYTES = 8 << 20
_PARTS_PER_SIZE = 200
"""The part size doubles after this many parts, so no file needs more than S3's 10,000 parts."""
_CONFLICTS_MAX = 5
_ATTEMPT = "jet-attempt"
_CONFLICT = frozenset(("ConditionalRequestConflict", "409"))
_SHORT_LIFE_DAYS = 7
_REMOVED_AT_ONCE = 1000
"""S3's limit per request."""


class S3StagedFile:
    """A multipart upload to the final name."""

    def __init__(self, place: S3Bucket, target: str, attempt: str) -> None:
        self._place, self._at, self._attempt = place, place.at(target), attempt
        self.name = f"{place.url}/{target}"
        self._upload: str | None = None
        self._parts = _Parts(self._send)
        self.file = cast(BinaryIO, self._parts)

    @property
    def written(self) -> int:
        return self._parts.content[0]

    def seal(self) -> Sealed:
        parts = self._parts
        parts.finish()
        return Sealed(_token(self.name, self._upload, self._attempt, parts.etags), *parts.content)

    def discard(self) -> None:
        if self._upload is not None:
            _abort(self._place, self._at["Key"], self._upload)

    def _send(self, number: int, data: bytes) -> str:
        aws = self._place.aws
        with aws.errors_named():
            if self._upload is None:
                self._upload = aws.repeating.create_multipart_upload(
                    **self._at, Metadata={_ATTEMPT: self._attempt}
                )["UploadId"]
            answer = aws.repeating.upload_part(
                **self._at, UploadId=self._upload, PartNumber=number, Body=data
            )
        return str(answer["ETag"])


class _Parts(io.RawIOBase):
    """Output stream that splits data into parts."""

    def __init__(self, send: Any) -> None:
        self.etags: list[str] = []
        self._send, self._buffer = send, bytearray()
        self._bytes, self._digest = 0, xxhash.xxh3_64()

    @property
    def content(self) -> tuple[int, int]:
        """Size and checksum of the written data."""
        return self._bytes, self._digest.intdigest()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._bytes += len(view)
        self._buffer += view
        while len(self._buffer) >= (size := _PART_BYTES << len(self.etags) // _PARTS_PER_SIZE):
            self._cut(size)
        return len(view)

    def finish(self) -> None:
        if self._buffer or not self.etags:
            self._cut(len(self._buffer))

    def _cut(self, size: int) -> None:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self.etags.append(self._send(len(self.etags) + 1, data))


class S3Output(S3Bucket):
    """A folder that belongs to one sink."""

    def make(self, job: str, sink: str) -> None:
        with self.aws.errors_named():
            ignored = ignored_condition(
                self.aws,
                str(self.settings.endpoint_url or ""),
                self.bucket,
                f"{self.prefix}{EPOCHS_FOLDER}/.probe-",
                (Condition.CREATE,),
            )
        if ignored is not None:
            raise PermissionError(
                errno.EPERM,
                f"{self.url} is on a server that ignores {ignored.value}, by which one of two "
                "executions is told that the other has committed",
            )
        self._look_at_lifetime(job, sink)

    def stage(self, output: OutputName) -> S3StagedFile:
        t = output.transaction
        attempt = f"{t.execution_id}-{t.epoch_id}-{t.shard}-{t.attempt}"
        return S3StagedFile(self, output.target, attempt)

    def publish(self, artifact: Artifact) -> bool:
        url, _, rest = artifact.token.partition("#")
        if url != f"{self.url}/{artifact.target}":
            raise OSError(errno.EXDEV, "it was uploaded to another place", url)
        staged = json.loads(rest)
        parts = [{"PartNumber": n, "ETag": etag} for n, etag in enumerate(staged["parts"], 1)]
        with self.aws.errors_named():
            for _ in attempts(_CONFLICTS_MAX):
                try:
                    self.aws.repeating.complete_multipart_upload(
                        **self.at(artifact.target),
                        UploadId=staged["upload"],
                        MultipartUpload={"Parts": parts},
                        IfNoneMatch="*",
                    )
                    return True
                except ClientError as error:
                    conflict = error
                    if code_of(error) in _CONFLICT:
                        continue  # another execution is completing it
                    key = self.at(artifact.target)["Key"]
                    if code_of(error) not in REFUSED and not self._is_over(key, staged["upload"]):
                        raise
                    found = self.head(key)
                    return (
                        found is not None and found["Metadata"].get(_ATTEMPT) == staged["attempt"]
                    )
            raise conflict

    def _is_over(self, key: str, upload: str) -> bool:
        """Returns whether an upload was completed or removed. Some servers do not report this when
        they are asked to complete it."""
        try:
            self.aws.repeating.list_parts(Bucket=self.bucket, Key=key, UploadId=upload, MaxParts=1)
        except ClientError as error:
            if code_of(error) in GONE:
                return True
            raise
        return False

    def each(self, work: Callable[[Artifact], bool], artifacts: Sequence[Artifact]) -> list[bool]:
        return self.aws.in_parallel(work, artifacts)

    def make_durable(self, artifacts: Sequence[Artifact]) -> None:
        """Does nothing: S3 answers when data is durable."""

    def discard(self, token: str) -> None:
        url, _, rest = token.partition("#")
        key = url.removeprefix(f"s3://{self.bucket}/")
        _abort(self, key, json.loads(rest)["upload"])

    def orphans(self, job: str, sink: str, before: int, keep: Collection[str]) -> Iterator[str]:
        kept = {json.loads(token.partition("#")[2])["upload"] for token in keep if "#{" in token}
        for page in self.pages("list_multipart_uploads", Prefix=self.prefix):
            for found in page.get("Uploads", ()):
                # A folder below may be another sink's.
                execution_id = execution_of(found["Key"].removeprefix(self.prefix))
                is_older = execution_id is not None and execution_id < before
                if is_older and found["UploadId"] not in kept:
                    yield _token(f"s3://{self.bucket}/{found['Key']}", found["UploadId"])

    def read(self, name: str) -> str | None:
        with self.aws.errors_named():
            try:
                with self.aws.repeating.get_object(**self.at(name))["Body"] as body:
                    return cast(bytes, body.read()).decode()
            except ClientError as error:
                if code_of(error) in GONE:
                    return None
                raise

    def create(self, name: str, text: str) -> bool:
        with self.aws.errors_named():
            for _ in attempts(_CONFLICTS_MAX):
                try:
                    self.aws.repeating.put_object(
                        **self.at(name), Body=text.encode(), IfNoneMatch="*"
                    )
                    return True
                except ClientError as error:
                    conflict = error
                    if code_of(error) in _CONFLICT:
                        continue
                    if code_of(error) in REFUSED:
                        return False
                    raise
            raise conflict

    def remove(self, name: str) -> None:
        with self.aws.errors_named():
            self.aws.repeating.delete_object(**self.at(name))

    def is_there(self) -> bool:
        return self.read(f"{EPOCHS_FOLDER}/.owner") is not None

    def names(self, beginning: str) -> Iterator[str]:
        for page in self.pages("list_objects_v2", Prefix=f"{self.prefix}{beginning}"):
            for found in page.get("Contents", ()):
                yield found["Key"].rpartition("/")[2]

    def published(self) -> Iterator[str]:
        for page in self.pages("list_objects_v2", Prefix=self.prefix):
            for found in page.get("Contents", ()):
                if is_published(found["Key"].removeprefix(self.prefix)):
                    yield found["Key"].rpartition("/")[2]

    def remove_all(self, names: Collection[str]) -> None:
        keys = [{"Key": self.prefix + name} for name in names]
        with self.aws.errors_named():
            for first in range(0, len(keys), _REMOVED_AT_ONCE):
                some = keys[first : first + _REMOVED_AT_ONCE]
                self.aws.repeating.delete_objects(
                    Bucket=self.bucket, Delete={"Objects": some, "Quiet": True}
                )

    def _look_at_lifetime(self, job: str, sink: str) -> None:
        """Warns if the bucket removes incomplete uploads (staged files) within 7 days."""
        try:
            with _quietly_unless_answered():
                rules = self.aws.repeating.get_bucket_lifecycle_configuration(Bucket=self.bucket)
        except LookupError:
            return
        for rule in rules.get("Rules", ()):
            days = rule.get("AbortIncompleteMultipartUpload", {}).get("DaysAfterInitiation")
            if rule.get("Status") == "Enabled" and days is not None and days < _SHORT_LIFE_DAYS:
                _logger.warning(
                    "job %r, sink %r: the bucket %s removes incomplete uploads after %d days. What "
                    "a job has staged when it stops is lost if it is down for longer.",
                    job,
                    sink,
                    self.bucket,
                    days,
                )


@contextmanager
def _quietly_unless_answered() -> Iterator[None]:
    """Converts errors to `LookupError`: access to the rules may be denied."""
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise LookupError from error


def _token(url: str, upload: str | None, attempt: str = "", parts: Collection[str] = ()) -> str:
    return f"{url}#" + json.dumps({"upload": upload, "attempt": attempt, "parts": list(parts)})


def _abort(place: S3Bucket, key: str, upload: str) -> None:
    with place.aws.errors_named():
        try:
            place.aws.repeating.abort_multipart_upload(
                Bucket=place.bucket, Key=key, UploadId=upload
            )
        except ClientError as error:
            if code_of(error) not in GONE:
                raise
