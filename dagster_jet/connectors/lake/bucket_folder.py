"""Folder of a table's data files in a bucket. The module imports botocore, so it is imported only
when a bucket is opened."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import cast

from botocore.exceptions import ClientError
from botocore.session import Session

from dagster_jet.aws.access import code_of
from dagster_jet.aws.conditions import Condition, ignored_condition
from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.files.places.place import Sealed, StagedFile
from dagster_jet.connectors.files.places.s3_bucket import GONE
from dagster_jet.connectors.files.places.s3_output import S3Output, S3StagedFile
from dagster_jet.connectors.lake.s3_access import S3Access
from dagster_jet.connectors.lake.staged_names import may_hold_data
from dagster_jet.errors import ConfigurationError
from dagster_jet.snapshot.manifest import Artifact


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

    def paths(self, beginning: str | tuple[str, ...]) -> Iterator[str]:
        for page in self._place.pages("list_objects_v2", Prefix=self._place.prefix):
            for found in page.get("Contents", ()):
                path = found["Key"].removeprefix(self._place.prefix)
                *folders, name = path.split("/")
                if name.startswith(beginning) and all(map(may_hold_data, folders)):
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
