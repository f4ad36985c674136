"""Checks that tasks can read the files that the driver names."""

from __future__ import annotations

from dagster_jet.connectors.files.places.location import scheme_of
from dagster_jet.errors import ConfigurationError


def check_reachable(path: str, job: str, stage: str, *, is_reachable: bool) -> None:
    """Raises `ConfigurationError` for a folder of this machine if tasks run on others."""
    if scheme_of(path) == "file" and not is_reachable:
        raise ConfigurationError(
            f"{path!r} is a folder of this machine, and Spark's tasks run on others.",
            job=job,
            stage=stage,
            cure="Use a bucket (s3://...), or files(..., shared=True) if all machines have "
            "mounted the same file system there.",
        )
