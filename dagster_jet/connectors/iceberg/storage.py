"""Where a table's files are: the folder that tasks write to, and how `pyiceberg` reaches it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dagster_jet.connectors.files.places.location import StorageOptions
from dagster_jet.connectors.lake.data_folder import DataFolder, data_folder

_BUCKET = "s3://"
_ANY = f"{_BUCKET}any"
_S3 = re.compile("s3[an]?://")


def place_of(location: str) -> str | None:
    """Returns a local path or the URL of a bucket's folder; None for any other place. The library
    takes locations literally: a percent sign is no escape."""
    if location.startswith("file:"):
        return "/" + location.removeprefix("file:").lstrip("/")
    if _S3.match(location):
        return _S3.sub(_BUCKET, location, count=1)
    return location if location.startswith("/") else None


def folder_at(location: str, options: StorageOptions) -> DataFolder:
    """Returns the folder, opened in this process."""
    place = place_of(location) or location
    return data_folder(place, options if place.startswith(_BUCKET) else ())


def library_options(options: StorageOptions, *, in_bucket: bool) -> Mapping[str, str]:
    """Returns the properties of the library, with the credentials of this moment."""
    found = {"py-io-impl": "dagster_jet.connectors.iceberg.durable_files.DurableFiles"}
    access = data_folder(_ANY, options).s3_access() if in_bucket or options else None
    if access is None:
        return found
    names = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
    found |= {name: key for name, key in zip(names, access.keys, strict=False) if key}
    found["s3.region"] = access.region
    found["s3.connect-timeout"] = f"{access.connect_timeout_s:g}"
    found["s3.request-timeout"] = f"{access.timeout_s:g}"
    if access.endpoint_url is not None:
        found["s3.endpoint"] = access.endpoint_url
    return found
