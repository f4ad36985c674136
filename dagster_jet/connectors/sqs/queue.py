"""SQS queue as seen by a client: URL, calls of a source, and the meaning of errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import ClientError

from dagster_jet.aws.access import AwsAccess, AwsFailure, AwsSettings, Cause, code_of
from dagster_jet.core.secret import Secret, Url, holds_password, named, shown, text_of
from dagster_jet.errors import ConfigurationError, SourceError, SourceUnavailableError
from dagster_jet.system.backoff import attempts

BATCH_MAX = 10
"""SQS's limit of messages per call."""
LONG_POLL_S = 1
"""Seconds for which a receive call waits for a message. Only a waiting call asks all of SQS's
servers. A longer wait would delay acknowledgements, which wait for a poll."""
HIDDEN_MAX_S = 12 * 3600
"""Maximum seconds after a receive for which SQS hides a message, including renewals."""
RIGHTS = ("ReceiveMessage", "DeleteMessage", "ChangeMessageVisibility", "GetQueueAttributes")
"""Permissions (sqs:...) that a source needs."""
_AWS_HOST = re.compile(r"(?:sqs\.([a-z0-9-]+)|([a-z0-9-]+)\.queue)\.amazonaws\.com(?:\.cn)?")
_ANSWER_S = 10
_ATTEMPTS_MAX = 5
_NO_HANDLE = "jet-asks-for-its-rights"


@dataclass(frozen=True)
class SqsQueue:
    """Address of a queue and access to it; picklable, without the values of secrets.

    Attributes:
        url: as AWS shows it; its host names the region.
        region: None: the URL's, else the one that boto3 finds.
        endpoint_url: None: AWS's endpoint of the region, or the URL's host if that is not AWS's.
        credentials: key id, key and optionally a session token; if empty, those that boto3 finds.
    """

    url: Url
    region: str | None = None
    endpoint_url: Url | None = None
    credentials: tuple[Secret, ...] = ()

    @classmethod
    def of(
        cls,
        url: Url,
        region: str | None,
        endpoint_url: Url | None,
        credentials: Mapping[str, Any],
    ) -> SqsQueue:
        """Validates the user's arguments. Raises `ConfigurationError`."""
        endpoint = None if endpoint_url is None else named(endpoint_url)
        if endpoint is not None and holds_password(endpoint):
            raise ConfigurationError(
                "endpoint_url: it has a password in it.",
                cure='Name an environment variable that holds it: Secret(env="...").',
            )
        keys = {name: named(key) for name, key in credentials.items() if key is not None}
        for name, key in keys.items():
            if not isinstance(key, Secret):
                raise ConfigurationError(
                    f"{name} is given in plain text, and everybody who sees the code can read it.",
                    cure=f'Name a variable that holds it: {name}=Secret(env="...").',
                )
        if keys and not {"access_key_id", "secret_access_key"} <= keys.keys():
            raise ConfigurationError(
                "access_key_id and secret_access_key belong together.",
                cure="Name both, or none: then they are what boto3 finds.",
            )
        secrets = tuple(key for key in keys.values() if isinstance(key, Secret))
        queue = cls(named(url), region, endpoint, secrets)
        if not isinstance(queue.url, Secret):
            queue.settings()
        return queue

    @property
    def shown(self) -> str:
        return shown(self.url)

    @property
    def name(self) -> str:
        """Last part of the URL; for a secret URL, the secret's name."""
        return self.shown.rpartition("/")[2]

    @property
    def is_fifo(self) -> bool:
        """True if the name ends in ".fifo", as all names of FIFO queues do and no others."""
        return text_of(self.url).endswith(".fifo")

    def settings(self) -> AwsSettings:
        """Raises `ConfigurationError`: the URL is not valid, or contradicts the region."""
        try:
            parts = urlsplit(text_of(self.url))
            is_url = parts.scheme in ("http", "https") and parts.hostname and len(parts.path) > 1
        except ValueError:
            is_url = None
        if not is_url or holds_password(text_of(self.url)):
            raise ConfigurationError(
                "url: this is not a valid URL of an SQS queue.",
                cure="Use the queue's URL, such as https://sqs.eu-west-1.amazonaws.com/1234/orders.",
            )
        known = _AWS_HOST.fullmatch(parts.hostname or "")
        of_url = known and (known[1] or known[2])
        if of_url and self.region and of_url != self.region:
            raise ConfigurationError(
                f"region: {self.region!r}, but the queue's URL is of {of_url!r}.",
                cure="Leave region out, or correct one of them.",
            )
        endpoint = self.endpoint_url
        if endpoint is None and known is None:
            endpoint = f"{parts.scheme}://{parts.netloc}"
        return AwsSettings(
            region=self.region or of_url or None,
            endpoint_url=endpoint,
            timeout_s=_ANSWER_S,
            credentials=self.credentials,
        )

    def open(self, job: str, stage: str) -> QueueClient:
        return QueueClient(self, job, stage)


class QueueClient:
    """Thread-safe calls. Each raises `SourceError`, or `SourceUnavailableError` if it is
    temporary."""

    def __init__(self, queue: SqsQueue, job: str, stage: str) -> None:
        self._queue, self._job, self._stage = queue, job, stage
        self._url = text_of(queue.url)
        self._settings = queue.settings()
        self._aws = AwsAccess("sqs", self._settings, self._meaning)

    def attributes(self) -> dict[str, str]:
        """All attributes of the queue, by SQS's names."""
        with self._aws.errors_named():
            found = self._aws.once.get_queue_attributes(QueueUrl=self._url, AttributeNames=["All"])
        attributes: dict[str, str] = found.get("Attributes", {})
        return attributes

    def check_rights(self) -> None:
        """Raises `SourceError` if receiving, deleting or renewing is not permitted. It requests no
        message and uses an invalid handle, because SQS checks permissions first."""
        entry = {"Id": "0", "ReceiptHandle": _NO_HANDLE}
        client = self._aws.once
        with self._aws.errors_named(), _unless_of_arguments():
            client.receive_message(QueueUrl=self._url, MaxNumberOfMessages=0, VisibilityTimeout=0)
        with self._aws.errors_named(), _unless_of_arguments():
            client.delete_message_batch(QueueUrl=self._url, Entries=[entry])
        with self._aws.errors_named(), _unless_of_arguments():
            client.change_message_visibility_batch(
                QueueUrl=self._url, Entries=[{**entry, "VisibilityTimeout": 1}]
            )

    def receive(
        self, count: int, visibility_s: int, system: Sequence[str], attributes: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Receives messages as the client library returns them; waits up to `LONG_POLL_S` for one.

        Not retried: a lost answer hides its messages until their visibility time-out ends.

        Args:
            count: maximum number of messages, up to `BATCH_MAX`.
            visibility_s: seconds for which they are hidden.
            system: names of the message attributes of SQS to return.
            attributes: names of the publishers' attributes to return, or "All".
        """
        with self._aws.errors_named():
            answer = self._aws.once.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=count,
                WaitTimeSeconds=LONG_POLL_S,
                VisibilityTimeout=visibility_s,
                MessageSystemAttributeNames=list(system),
                MessageAttributeNames=list(attributes),
            )
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def delete(self, handles: Sequence[str]) -> set[str]:
        """Deletes messages; idempotent. Returns the handles that SQS refused as not valid."""
        return self._batches("delete_message_batch", handles, {})

    def hide(self, handles: Sequence[str], seconds: int) -> set[str]:
        """Hides messages for `seconds` from now; 0 returns them to the queue. Returns the refused
        handles, whose messages are not hidden any more."""
        given = {"VisibilityTimeout": seconds}
        return self._batches("change_message_visibility_batch", handles, given)

    def close(self) -> None:
        self._aws.close()

    def _batches(self, call: str, handles: Sequence[str], given: Mapping[str, Any]) -> set[str]:
        batches = [handles[i : i + BATCH_MAX] for i in range(0, len(handles), BATCH_MAX)]
        refused = self._aws.in_parallel(lambda batch: self._batch(call, batch, given), batches)
        return {handle for some in refused for handle in some}

    def _batch(self, call: str, handles: Sequence[str], given: Mapping[str, Any]) -> list[str]:
        """Entries of a batch fail individually; those that failed on SQS's side are retried."""
        left, refused = list(handles), []
        for _ in attempts(_ATTEMPTS_MAX, base_s=0.1):
            entries = [{"Id": str(n), "ReceiptHandle": h, **given} for n, h in enumerate(left)]
            with self._aws.errors_named():
                answer = getattr(self._aws.repeating, call)(QueueUrl=self._url, Entries=entries)
            failed = answer.get("Failed", [])
            refused += [left[int(one["Id"])] for one in failed if one["SenderFault"]]
            left = [left[int(one["Id"])] for one in failed if not one["SenderFault"]]
            if not left:
                return refused
        raise self._error(
            SourceUnavailableError,
            f"the queue {self._queue.shown} does not carry out {call} for {len(left)} messages: "
            f"{failed[0].get('Code')}.",
        )

    def _meaning(self, failure: AwsFailure) -> SourceError:
        place, where = self._queue.shown, self._settings.region or "the region that boto3 finds"
        text = " ".join(failure.text.split())  # an endpoint that is not SQS may answer with a page
        match failure.cause:
            case Cause.OUTAGE if "OverLimit" in text:
                return self._error(
                    SourceUnavailableError,
                    f"SQS delivers no more messages of the queue {place}: the number of received "
                    f"messages that are not deleted has reached the limit ({text}).",
                    "Stop the queue's other consumers: a queue may be read by one job only. Or "
                    "wait until the messages that dead consumers received are visible again, or "
                    "use a smaller prefetch.",
                )
            case Cause.OUTAGE:
                return self._error(
                    SourceUnavailableError,
                    f"the queue {place} cannot be reached now: {text}.",
                )
            case Cause.PLACE:
                return self._error(
                    SourceError,
                    f"there is no queue {place} in {where}: {text}.",
                    "Create the queue, or correct the URL or the region. This source does not "
                    "create queues.",
                )
            case Cause.CREDENTIALS if "AccessDenied" in text:
                return self._error(
                    SourceError,
                    f"these credentials may not use the queue {place}: {text}.",
                    f"Allow {', '.join(f'sqs:{right}' for right in RIGHTS)}.",
                )
            case Cause.CREDENTIALS:
                return self._error(
                    SourceError,
                    f"the queue {place} does not accept the credentials: {text}.",
                    "Correct access_key_id and secret_access_key, or what boto3 finds without "
                    "them: environment, profile or role.",
                )
            case Cause.REQUEST | Cause.FULL:
                return self._error(SourceError, f"the queue {place} cannot be used: {text}.")

    def _error(self, kind: type[SourceError], message: str, cure: str | None = None) -> SourceError:
        return kind(message, job=self._job, stage=self._stage, cure=cure)


class _unless_of_arguments:  # noqa: N801 - read as a clause
    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        return isinstance(error, ClientError) and code_of(error) in (
            "ReceiptHandleIsInvalid",
            "InvalidParameterValue",
            "ReadCountOutOfRange",
        )
