"""Access to a bucket for the libraries of lake tables."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, repr=False)
class S3Access:
    """Settings as boto3 finds them; the libraries themselves look in fewer places."""

    keys: tuple[str | None, ...]
    """Access key id, secret access key, and the session token if there is one; may be empty."""
    region: str
    endpoint_url: str | None
    connect_timeout_s: float
    timeout_s: float
