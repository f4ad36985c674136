"""Requests to a member's bucket: reads of ranges, lists, and the check of its conditions."""

from __future__ import annotations

from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from dagster_jet.aws.access import AwsAccess, code_of
from dagster_jet.aws.conditions import REFUSED, ignored_condition
from dagster_jet.errors import StoreUnavailableError, StoreUnwritableError
from dagster_jet.store.members.bulkhead import progressed
from dagster_jet.store.members.s3_group import Extent
from dagster_jet.system.backoff import attempts

RACES_MAX = 12
GONE = frozenset(("NoSuchKey", "404"))
CHANGED = REFUSED | GONE
_OUTSIDE = frozenset(("InvalidRange", "416"))


class ChangedError(Exception):
    """An object has changed since it was read."""


class S3Bucket:
    """The objects of one member.

    Args:
        aws: the access to the server.
        name: the bucket's name.
        member_id: for the messages.
        server: identifies the server where the checks of conditions are remembered.
        probe_prefix: prefix of the objects of these checks.
    """

    def __init__(
        self, aws: AwsAccess, name: str, member_id: str, *, server: str, probe_prefix: str
    ) -> None:
        self.aws = aws
        self.name = name
        self.member_id = member_id
        self._server = server
        self._probe = probe_prefix

    def check_conditions(self) -> None:
        """Check, once per process, that the server honours the conditions.

        Raises:
            StoreUnwritableError: it ignores one.
        """
        ignored = ignored_condition(self.aws, self._server, self.name, self._probe)
        if ignored is not None:
            raise StoreUnwritableError(
                f"the store member {self.member_id} is on a server that ignores "
                f"{ignored.value}: of two concurrent writes one would be lost.",
                cure="Use AWS S3, or a server (perhaps a newer version of this one) that "
                "supports the conditions If-None-Match and If-Match of PUT, GET and DELETE.",
            )

    def fetch_same(self, name: str, etag: str, extent: Extent) -> bytes:
        answer = self.fetch(name, extent, IfMatch=etag)
        if answer is None:
            raise ChangedError
        return answer[0]

    def fetch(
        self, name: str, extent: Extent | None = None, **condition: str
    ) -> tuple[bytes, str] | None:
        """Return bytes of an object and its ETag; None where there is none.

        Raises:
            ChangedError: the condition is not met.
        """
        asked: dict[str, Any] = {"Bucket": self.name, "Key": name, **condition}
        if extent is not None:
            asked["Range"] = f"bytes={extent.begin}-{extent.end - 1}"
        failure: BotoCoreError | None = None
        for _ in attempts(3):
            try:
                answer = self.aws.repeating.get_object(**asked)
            except ClientError as error:
                if code_of(error) in GONE:
                    return None
                if code_of(error) in CHANGED:
                    raise ChangedError from error
                if code_of(error) in _OUTSIDE and extent is not None:
                    # The range begins behind the end: an empty object, or a truncated one.
                    whole = self.fetch(name, None, **condition)
                    return None if whole is None else (whole[0][extent.begin :], whole[1])
                raise
            try:
                with answer["Body"] as body:
                    return body.read(), answer["ETag"]
            except BotoCoreError as error:
                # The client repeats requests, but not the reading of a response body.
                failure = error
        assert failure is not None
        raise failure

    def listed(self, prefix: str) -> list[tuple[str, str]]:
        """Return name and ETag of the objects with a prefix."""
        pages = self.aws.repeating.get_paginator("list_objects_v2").paginate(
            Bucket=self.name, Prefix=prefix
        )
        found: list[tuple[str, str]] = []
        for page in pages:
            found += [(one["Key"], one["ETag"]) for one in page.get("Contents", ())]
            progressed()
        return found

    def lost_races(self, name: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"the store member {self.member_id} lost {RACES_MAX} races for the object {name!r}."
        )
