"""Probes whether an SQS queue supports exactly-once, by its settings and permissions."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import timedelta

from dagster_jet.connectors.sqs.queue import HIDDEN_MAX_S, SqsQueue
from dagster_jet.connectors.sqs.sqs_reader import VISIBILITY_MIN_S
from dagster_jet.core.answers import Answer, answered, in_words
from dagster_jet.core.secret import Url
from dagster_jet.errors import SourceError, SourceUnavailableError

_RECEIVES_MIN = 10
_HIDDEN_MAX = 100_000
"""Warn below SQS's limit of about 120,000."""
_RETENTION_MIN = timedelta(days=1)


def probe(
    url: Url, interval: timedelta, region: str | None = None, endpoint_url: Url | None = None
) -> list[Answer]:
    """Returns all answers about the queue, with the credentials that boto3 finds.

    Raises:
        JetError: the queue cannot be reached, refuses access, or does not exist.
    """
    with closing(SqsQueue.of(url, region, endpoint_url, {}).open("probe", "queue")) as client:
        attributes = client.attributes()
        lacking = None
        try:
            client.check_rights()
        except SourceUnavailableError:
            raise
        except SourceError as error:
            lacking = error
    hidden = timedelta(seconds=int(attributes["VisibilityTimeout"]))
    kept = timedelta(seconds=int(attributes["MessageRetentionPeriod"]))
    answers = [
        answered(
            "Are the rights there?",
            lacking is None,
            yes="To receive, to delete and to renew. Nothing was received.",
            no="" if lacking is None else lacking.message,
            cure="" if lacking is None else lacking.cure or "",
            needed=True,
        ),
        answered(
            "Is the visibility time-out long enough to be renewed?",
            hidden.total_seconds() >= VISIBILITY_MIN_S,
            yes=f"It is {in_words(hidden)}, and renewed at half time: it need not be longer than "
            "the snapshot interval. So long messages stay hidden after a crash.",
            no=f"It is {in_words(hidden)}: messages come again before they can be renewed.",
            cure='Set the queue to 30 seconds, or give sqs(visibility_timeout="30 seconds").',
            needed=True,
        ),
        answered(
            "Does it wait for a snapshot?",
            interval.total_seconds() < HIDDEN_MAX_S,
            yes=f"For 12 hours at most, and the interval is {in_words(interval)}.",
            no=f"For 12 hours at most, and the interval is {in_words(interval)}.",
            cure="Take snapshots more often.",
            needed=True,
        ),
        answered(
            "Does it keep messages for longer than an outage?",
            kept >= _RETENTION_MIN,
            yes=f"For {in_words(kept)}, read or not.",
            no=f"For {in_words(kept)} only: what is not read by then is lost.",
            cure="Raise MessageRetentionPeriod, up to 14 days.",
        ),
    ]
    hidden_now = int(attributes.get("ApproximateNumberOfMessagesNotVisible", 0))
    answers.append(
        answered(
            "Does SQS hand out more messages now?",
            hidden_now < _HIDDEN_MAX,
            yes=f"About {hidden_now:,} are hidden and not deleted; the limit is 120,000.",
            no=f"About {hidden_now:,} are hidden and not deleted, and the limit is 120,000.",
            cure="End its other consumers, or wait until what dead ones have held shows again.",
        )
    )
    if policy := attributes.get("RedrivePolicy"):
        most = int(json.loads(policy).get("maxReceiveCount", 0))
        answers.append(
            answered(
                "Do messages stay there when the job crashes again and again?",
                most >= _RECEIVES_MIN,
                yes=f"They are moved away after {most} deliveries.",
                no=f"They are moved away after {most} deliveries, those before a crash included, "
                "and then not read.",
                cure=f"Set maxReceiveCount to {_RECEIVES_MIN} or more.",
                needed=True,
            )
        )
    if attributes.get("FifoQueue") == "true":
        answers.append(
            answered(
                "Is it read without waiting?",
                False,
                no="It is a FIFO queue: each message group moves on by 10 messages per snapshot at "
                "most.",
                cure="Use many groups and a short snapshot_interval, or a standard queue.",
            )
        )
    return answers
