"""Folder of a table's data files, local or in a bucket. They are written at their final place:
readers see only what the table's metadata names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast

from botocore.exceptions import ClientError
from botocore.session import Session

from dagster_jet.aws.access import code_of
from dagster_jet.aws.conditions import Condition, ignored_condition
from dagster_jet.connectors.files.places.local import LocalStagedFile
from dagster_jet.connectors.files.places.location import StorageOptions, scheme_of
from dagster_jet.connectors.files.places.place import Sealed, StagedFile
from dagster_jet.connectors.files.places.s3_bucket import GONE
from dagster_jet.connectors.files.places.s3_output import S3Output, S3StagedFile
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.durable import make_folder

_PLACES_MAX = 64


@dataclass(frozen=True, repr=False)
class S3Access:
    """How a library reaches a bucket as boto3 would: it would look in fewer places itself."""

    keys: tuple[str | None, ...]
    """Access key id, secret access key, and the session token if there is one; may be empty."""
    region: str
    endpoint_url: str | None
    connect_timeout_s: float
    timeout_s: float


class DataFolder(Protocol):
    """A folder. Paths are relative to it. Every failure is an `OSError`."""

    def s3_access(self) -> S3Access | None:
        """Returns the access to its bucket, with the credentials of this moment; None: it is
        local."""
        ...

    def check(self, job: str, stage: str) -> None:
        """Checks that an object can be created on condition that there is none.

        Raises:
            ConfigurationError: the place ignores the condition: two writers would lose rows.
        """

    def create(self, path: str) -> StagedFile:
        """Begins a data file."""
        ...

    def finish(self, path: str, file: StagedFile) -> Sealed:
        """Ends a data file, which is durable on return."""
        ...

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Returns the size of each file; None if there is none."""
        ...

    def paths(self, beginning: str) -> Iterator[str]:
        """Yields the paths, at any depth, of data files whose names have this beginning."""
        ...

    def remove(self, paths: Collection[str]) -> None:
        """Removes files; missing ones are ignored."""

    def remove_unfinished(self, is_orphan: Callable[[str], bool]) -> int:
        """Removes what is left of files that were never finished, chosen by path."""
        ...


@lru_cache(_PLACES_MAX)
def data_folder(url: str, options: StorageOptions) -> DataFolder:
    """Returns the folder, opened in this process. Cached: it may keep connections."""
    return LocalFolder(url) if scheme_of(url) == "file" else S3Folder(url, options)


class LocalFolder:
    """A local or mounted folder."""

    def __init__(self, path: str) -> None:
        self._root = Path(path)

    def s3_access(self) -> None:
        return None

    def check(self, job: str, stage: str) -> None:
        """Creates the folder. A version of a log in it is a hard link: only one writer creates
        it."""
        make_folder(self._root)

    def create(self, path: str) -> StagedFile:
        make_folder((self._root / path).parent)
        return LocalStagedFile(self._root / path)

    def finish(self, path: str, file: StagedFile) -> Sealed:
        return file.seal()

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        return [self._size(path) for path in paths]

    def _size(self, path: str) -> int | None:
        with suppress(FileNotFoundError):
            return (self._root / path).stat().st_size
        return None

    def paths(self, beginning: str) -> Iterator[str]:
        for folder, folders, names in os.walk(self._root):
            folders[:] = [name for name in folders if not name.startswith("_")]
            for name in names:
                if name.startswith(beginning):
                    yield os.path.relpath(os.path.join(folder, name), self._root)

    def remove(self, paths: Collection[str]) -> None:
        for path in paths:
            (self._root / path).unlink(missing_ok=True)

    def remove_unfinished(self, is_orphan: Callable[[str], bool]) -> int:
        """Returns 0: a file that was not finished is listed as any other."""
        return 0


class S3Folder:
    """A folder of a bucket. A file is a multipart upload, so its size is not known before."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._place = S3Output(url, options)

    def s3_access(self) -> S3Access:
        settings, client = self._place.settings, self._place.aws.repeating
        given = settings.credentials
        found = None if given else Session().get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
        keys = (
            tuple(secret.value() for secret in given)
            if frozen is None
            else (frozen.access_key, frozen.secret_key, frozen.token)
        )
        region = client.meta.region_name
        return S3Access(
            keys,
            "us-east-1" if region in (None, "aws-global") else region,
            None if settings.endpoint_url is None else client.meta.endpoint_url,
            settings.connect_timeout_s,
            settings.timeout_s,
        )

    def check(self, job: str, stage: str) -> None:
        place = self._place
        server = str(place.settings.endpoint_url or "")
        scratch = f"{place.prefix}_dagster_jet/.probe-"
        with place.aws.errors_named():
            ignored = ignored_condition(
                place.aws, server, place.bucket, scratch, (Condition.CREATE,)
            )
        if ignored is not None:
            raise ConfigurationError(
                f"{place.url} is on a server that ignores {ignored.value}: of two writers that "
                "create one version of the table's log, one would lose its rows.",
                job=job,
                stage=stage,
                cure="Use a server with conditional writes, such as AWS S3 or a newer MinIO.",
            )

    def create(self, path: str) -> StagedFile:
        return S3StagedFile(self._place, path, attempt=path)

    def finish(self, path: str, file: StagedFile) -> Sealed:
        sealed = file.seal()
        artifact = Artifact("", 0, sealed.token, path, 0, sealed.bytes, sealed.checksum)
        if not self._place.publish(artifact):
            raise FileExistsError(f"{self._place.url}/{path} exists: another task wrote it")
        return sealed

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        return self._place.aws.in_parallel(self._size, paths)

    def _size(self, path: str) -> int | None:
        found = self._place.head(self._place.at(path)["Key"])
        return None if found is None else cast(int, found["ContentLength"])

    def paths(self, beginning: str) -> Iterator[str]:
        for page in self._place.pages("list_objects_v2", Prefix=self._place.prefix):
            for found in page.get("Contents", ()):
                path = found["Key"].removeprefix(self._place.prefix)
                if path.rpartition("/")[2].startswith(beginning):
                    yield path

    def remove(self, paths: Collection[str]) -> None:
        self._place.remove_all(paths)

    def remove_unfinished(self, is_orphan: Callable[[str], bool]) -> int:
        place, removed = self._place, 0
        for page in place.pages("list_multipart_uploads", Prefix=place.prefix):
            for found in page.get("Uploads", ()):
                if is_orphan(found["Key"].removeprefix(place.prefix)):
                    self._abort(found["Key"], found["UploadId"])
                    removed += 1
        return removed

    def _abort(self, key: str, upload: str) -> None:
        with self._place.aws.errors_named():
            try:
                self._place.aws.repeating.abort_multipart_upload(
                    Bucket=self._place.bucket, Key=key, UploadId=upload
                )
            except ClientError as error:
                if code_of(error) not in GONE:
                    raise
