"""Folder of a table, local or in a bucket. Data files are written at their final place: readers
see only what the table's log names."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from botocore.exceptions import ClientError
from botocore.session import Session

from dagster_jet.aws.access import code_of
from dagster_jet.aws.conditions import Condition, ignored_condition
from dagster_jet.connectors.files.places.local import LocalStagedFile
from dagster_jet.connectors.files.places.location import StorageOptions, scheme_of
from dagster_jet.connectors.files.places.opening import open_input
from dagster_jet.connectors.files.places.place import Sealed, StagedFile
from dagster_jet.connectors.files.places.s3_bucket import GONE
from dagster_jet.connectors.files.places.s3_output import S3Output, S3StagedFile
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system.durable import make_folder, sync_folder

LOG = "_delta_log"
_PLACES_MAX = 64
_SYNCED_AT_FIRST = 100
_S3_ANSWERS_WITHIN = "20s"


class DataFolder(Protocol):
    """A table's folder. Paths are relative to it. Every failure is an `OSError`."""

    def options(self) -> Mapping[str, str]:
        """Returns the options of the package `deltalake`, with the credentials of this moment."""
        ...

    def check(self, job: str, stage: str) -> None:
        """Checks that a version of the log can be created on condition that there is none.

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

    def sync_log(self, version: int) -> None:
        """Makes the log durable, up to this version. Called again only with later versions."""


@lru_cache(_PLACES_MAX)
def data_folder(url: str, options: StorageOptions) -> DataFolder:
    """Returns the folder, opened in this process. Cached: it may keep connections."""
    return LocalFolder(url) if scheme_of(url) == "file" else S3Folder(url, options)


def columns_in(url: str, options: StorageOptions, path: str) -> pa.Schema:
    """Returns the columns of a data file, by its footer.

    Raises:
        OSError: it cannot be read.
    """
    place, whole = open_input(url, options), f"{url}/{path}"
    found = place.find(whole)
    if found is None:
        raise FileNotFoundError(whole)
    with place.open(found) as file:
        return pq.read_schema(file)


class LocalFolder:
    """A local or mounted folder."""

    def __init__(self, path: str) -> None:
        self._root, self._synced = Path(path), -1

    def options(self) -> Mapping[str, str]:
        return {}

    def check(self, job: str, stage: str) -> None:
        """A version of the log is a hard link: only one writer creates it."""
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

    def sync_log(self, version: int) -> None:
        """Does what the library does not: a version that a reader has seen may be lost in a power
        failure, and with it the marker by which its rows count as committed."""
        first = max(self._synced + 1, version - _SYNCED_AT_FIRST)
        for number in range(first, version + 1):
            with suppress(FileNotFoundError):  # a checkpoint has replaced it
                handle = os.open(self._root / LOG / f"{number:020d}.json", os.O_RDONLY)
                try:
                    os.fsync(handle)
                finally:
                    os.close(handle)
        sync_folder(self._root / LOG)
        self._synced = version


class S3Folder:
    """A folder of a bucket. A file is a multipart upload, so its size is not known before."""

    def __init__(self, url: str, options: StorageOptions) -> None:
        self._place = S3Output(url, options)

    def options(self) -> Mapping[str, str]:
        """Returns the credentials that boto3 finds: the library would look in fewer places."""
        place, client = self._place, self._place.aws.repeating
        given = place.settings.credentials
        found = None if given else Session().get_credentials()
        frozen = None if found is None else found.get_frozen_credentials()
        keys = (
            [secret.value() for secret in given]
            if frozen is None
            else [frozen.access_key, frozen.secret_key, frozen.token]
        )
        names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
        options = {name: key for name, key in zip(names, keys, strict=False) if key}
        region = client.meta.region_name
        options["aws_region"] = "us-east-1" if region in (None, "aws-global") else region
        options["conditional_put"] = "etag"
        options["connect_timeout"] = f"{place.settings.connect_timeout_s:g}s"
        options["timeout"] = f"{place.settings.timeout_s:g}s"
        options["retry_timeout"] = _S3_ANSWERS_WITHIN
        if place.settings.endpoint_url is not None:
            options["aws_endpoint_url"] = client.meta.endpoint_url
            is_plain = urlsplit(client.meta.endpoint_url).scheme == "http"
            options["aws_allow_http"] = str(is_plain).lower()
        return options

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

    def sync_log(self, version: int) -> None:
        """Does nothing: S3 answers when data is durable."""
