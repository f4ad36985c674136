"""Does a server keep the conditions of S3? Tried with a scratch object before they are relied on.

A register, and every group of values, is changed under a condition: only if nobody has changed it
since it was read. Some servers that speak S3 take the headers of a condition, ignore them and
answer 200; two owners would then both believe that they have won.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from typing import Any

from botocore.exceptions import ClientError

from dagster_jet.errors import StoreUnwritableError
from dagster_jet.store.members.aws import AwsAccess, code_of

REFUSED = frozenset(("PreconditionFailed", "412", "ConditionalRequestConflict", "409"))
"""What a server answers where a condition does not hold."""

_OTHER_ETAG = '"00000000000000000000000000000000"'

_kept: set[tuple[str, str]] = set()
_lock = threading.Lock()


def check_conditions(aws: AwsAccess, place: str, bucket: str, scratch_prefix: str) -> None:
    """Refuse a server that does not keep a condition; once per process and bucket.

    Costs six small requests. A crash inside leaves an object of one byte.

    Args:
        aws: the way to the server.
        place: which server, for those that were found good.
        bucket: where to try it.
        scratch_prefix: of the object to try it with; its name is new each time.

    Raises:
        StoreUnwritableError: names the condition.
        ClientError, BotoCoreError: the server could not be asked; asked again at the next call.
    """
    with _lock:
        if (place, bucket) in _kept:
            return
    client = aws.once  # a repeated request could be refused by what its first one has done
    at = {"Bucket": bucket, "Key": f"{scratch_prefix}{secrets.token_hex(8)}"}
    etag = client.put_object(**at, Body=b"1", IfNoneMatch="*")["ETag"]
    try:
        for request, condition, call, given in (
            ("PUT", "If-None-Match", client.put_object, {"Body": b"2", "IfNoneMatch": "*"}),
            ("PUT", "If-Match", client.put_object, {"Body": b"2", "IfMatch": _OTHER_ETAG}),
            ("GET", "If-Match", client.get_object, {"IfMatch": _OTHER_ETAG}),
            ("DELETE", "If-Match", client.delete_object, {"IfMatch": _OTHER_ETAG}),
        ):
            if not _is_refused(call, {**at, **given}):
                raise StoreUnwritableError(
                    f"the store member {aws.member_id} is on a server that ignores {condition} of "
                    f"{request}: writes of two processes at one moment would be lost.",
                    cure="Use AWS S3, or a server (a newer version of this one) that keeps the "
                    "conditions If-None-Match and If-Match of PUT, GET and DELETE.",
                )
    except BaseException:
        client.delete_object(**at)
        raise
    client.delete_object(**at, IfMatch=etag)
    with _lock:
        _kept.add((place, bucket))


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
    _lock = threading.Lock()  # another thread may have held it at the moment of the fork


os.register_at_fork(after_in_child=_new_lock)
