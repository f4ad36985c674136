"""Checks with a scratch object that a server honours conditional S3 requests.

Data shared by several processes is changed conditionally: only if it is unchanged since it was
read. Some servers with the S3 API accept the headers of a condition, ignore them and answer 200;
two owners would then both believe that they have won.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any

from botocore.exceptions import ClientError

from dagster_jet.aws.access import AwsAccess, code_of

REFUSED = frozenset(("PreconditionFailed", "412", "ConditionalRequestConflict", "409"))
"""Error codes of a server for a condition that does not hold."""


class Condition(Enum):
    """A condition of a request."""

    CREATE = "If-None-Match of PUT"
    REPLACE = "If-Match of PUT"
    READ = "If-Match of GET"
    DELETE = "If-Match of DELETE"


_OTHER_ETAG = '"00000000000000000000000000000000"'

_kept: set[tuple[str, str, Condition]] = set()
_lock = threading.Lock()


def ignored_condition(
    aws: AwsAccess,
    server: str,
    bucket: str,
    scratch_prefix: str,
    wanted: Collection[Condition] = tuple(Condition),
) -> Condition | None:
    """Return the first condition that a server ignores; None if it honours all wanted ones.

    Checked once per process and bucket, with two requests plus one per condition. A crash inside
    leaves an object of one byte.

    Args:
        aws: the access to the server.
        server: identifies the server in the cache of results.
        bucket: the bucket for the check.
        scratch_prefix: prefix of the scratch object; its name is new each time.
        wanted: the conditions that are needed.

    Raises:
        ClientError, BotoCoreError: the check failed; it is repeated at the next call.
    """
    with _lock:
        if all((server, bucket, condition) in _kept for condition in wanted):
            return None
    client = aws.once  # a repeated request could be refused because of its own first attempt
    at = {"Bucket": bucket, "Key": f"{scratch_prefix}{secrets.token_hex(8)}"}
    client.put_object(**at, Body=b"1", IfNoneMatch="*")
    calls: dict[Condition, tuple[Callable[..., Any], dict[str, Any]]] = {
        Condition.CREATE: (client.put_object, {"Body": b"2", "IfNoneMatch": "*"}),
        Condition.REPLACE: (client.put_object, {"Body": b"2", "IfMatch": _OTHER_ETAG}),
        Condition.READ: (client.get_object, {"IfMatch": _OTHER_ETAG}),
        Condition.DELETE: (client.delete_object, {"IfMatch": _OTHER_ETAG}),
    }
    try:
        for condition in Condition:
            call, given = calls[condition]
            if condition in wanted and not _is_refused(call, {**at, **given}):
                return condition
    finally:
        client.delete_object(**at)
    with _lock:
        _kept.update((server, bucket, condition) for condition in wanted)
    return None


def _is_refused(call: Callable[..., Any], request: dict[str, Any]) -> bool:
    try:
        call(**request)
    except ClientError as error:
        if code_of(error) in REFUSED:
            return True
        raise
    return False


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()  # another thread may have held it during the fork


os.register_at_fork(after_in_child=_new_lock)
