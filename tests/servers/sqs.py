"""Queues of moto's SQS, which stands in for AWS's, for tests with queues of their own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import boto3

from tests.servers.members import AwsServer

_LARGE = 100_000
"""Ten of them are too many for one call."""
KEY_ID, KEY, REGION = "testing", "a-secret-word", "eu-west-1"


@dataclass(frozen=True)
class SqsQueue:
    """A queue for one test, by a plain client."""

    endpoint_url: str
    name: str
    url: str

    @property
    def port(self) -> int:
        port = urlsplit(self.endpoint_url).port
        assert port is not None
        return port

    @property
    def client(self) -> Any:
        return client_of(self.endpoint_url)

    def send(self, rows: Iterable[Mapping[str, Any] | str], **given: Any) -> None:
        """Sends messages in order.

        Args:
            given: for each message, by boto3's names.
        """
        client = self.client
        bodies = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        size = 10 if all(len(body) < _LARGE for body in bodies) else 1
        for first in range(0, len(bodies), size):
            some = bodies[first : first + size]
            entries = [{"Id": str(n), "MessageBody": one, **given} for n, one in enumerate(some)]
            answer = client.send_message_batch(QueueUrl=self.url, Entries=entries)
            assert len(answer["Successful"]) == len(some), answer

    def send_with_ids(self, rows: Mapping[str, Any], attribute: str) -> None:
        """Rows by the id that their publisher gives them in an attribute."""
        for message_id, row in rows.items():
            given = {attribute: {"DataType": "String", "StringValue": message_id}}
            self.send([row], MessageAttributes=given)

    def left(self) -> int:
        """Number of messages in the queue, hidden or not."""
        return self.visible() + self.hidden()

    def visible(self) -> int:
        return self._count("ApproximateNumberOfMessages")

    def hidden(self) -> int:
        return self._count("ApproximateNumberOfMessagesNotVisible")

    def show_again(self, handles: Iterable[str]) -> None:
        """Ends the time for which these are hidden."""
        for handle in handles:
            self.client.change_message_visibility(
                QueueUrl=self.url, ReceiptHandle=handle, VisibilityTimeout=0
            )

    def _count(self, name: str) -> int:
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=[name])
        return int(found["Attributes"][name])


@cache  # to make one takes a tenth of a second
def client_of(endpoint_url: str, key_id: str = KEY_ID, key: str = KEY) -> Any:
    return boto3.client(
        "sqs",
        endpoint_url=endpoint_url,
        region_name=REGION,
        aws_access_key_id=key_id,
        aws_secret_access_key=key,
    )


def new_queue(server: AwsServer, *, fifo: bool = False, **attributes: Any) -> SqsQueue:
    """Hidden for a minute by default: no test is so slow that a message comes again by itself."""
    name = f"q-{uuid.uuid4().hex[:12]}" + (".fifo" if fifo else "")
    given = {"VisibilityTimeout": 60, **attributes, **({"FifoQueue": "true"} if fifo else {})}
    made = client_of(server.endpoint_url).create_queue(
        QueueName=name, Attributes={attribute: str(value) for attribute, value in given.items()}
    )
    return SqsQueue(server.endpoint_url, name, made["QueueUrl"])
