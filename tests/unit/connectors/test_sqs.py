"""Decisions of the SQS source itself: which messages it holds and renews, and how it reads a
URL."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.stub import Stubber

from dagster_jet import Secret, sources
from dagster_jet.connectors.sqs.held import HeldMessages
from dagster_jet.connectors.sqs.queue import QueueClient, SqsQueue
from dagster_jet.connectors.sqs.receivers import Receivers, Receiving
from dagster_jet.errors import ConfigurationError, SourceError, SourceUnavailableError

URL = "https://sqs.eu-west-1.amazonaws.com/1234/orders"


# --- what is held ---------------------------------------------------------------------------------


def test_what_is_held_is_renewed_at_half_time_in_the_order_of_its_end() -> None:
    held = HeldMessages(30.0)
    held.received({"h1": "a"}, at=0.0)
    held.received({"h2": "b", "h3": "c"}, at=5.0)
    assert held.due(14.9) == [] and held.due(15.0) == ["h1"]
    held.renewed(["h1"], at=15.0)
    assert held.due(20.0) == ["h2", "h3"]
    held.renewed(["h2", "h3"], at=20.0)
    assert held.due(30.0) == ["h1"]


def test_what_was_not_renewed_in_time_is_not_ours_and_is_renewed_no_more() -> None:
    held = HeldMessages(30.0)
    held.received({"h1": "a"}, at=0.0)
    assert held.is_ours("a", 29.9) and not held.is_ours("a", 30.0)
    assert held.due(31.0) == [], "somebody else may have it"
    held.received({"h2": "a"}, at=40.0)
    assert held.handles_of("a") == ["h1", "h2"] and not held.is_ours("a", 41.0)


def test_a_message_with_several_handles_is_held_until_all_are_gone() -> None:
    held = HeldMessages(30.0)
    held.received({"h1": "a", "h2": "a", "h3": "b"}, at=0.0)
    assert held.is_ours("a", 1.0) and len(held) == 3
    held.forget(["h1"])
    assert held.handles_of("a") == ["h2"] and held.is_ours("a", 1.0)
    held.forget(["h2", "h2", "unknown"])
    assert held.handles_of("a") == [] and not held.is_ours("a", 1.0) and held.handles() == ["h3"]
    held.renewed(["h2"], at=2.0)
    assert len(held) == 1, "a renewal that comes after the deletion brings nothing back"


# --- batches --------------------------------------------------------------------------------------


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> QueueClient:
    monkeypatch.setenv("ID", "id")
    monkeypatch.setenv("KEY", "key")
    keys = {"access_key_id": Secret("ID"), "secret_access_key": Secret("KEY")}
    return SqsQueue.of(URL, None, None, keys).open("j", "in")


def entries(*handles: str) -> list[dict[str, str]]:
    return [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles)]


def failed(entry: int, *, is_ours: bool, code: str = "InternalError") -> dict[str, Any]:
    return {"Id": str(entry), "SenderFault": is_ours, "Code": code}


def test_entries_that_sqs_has_failed_at_are_sent_again_by_themselves(client: QueueClient) -> None:
    with Stubber(client._aws.repeating) as sqs:
        for sent, answer in (
            (entries("a", "b", "c"), [failed(2, is_ours=False), failed(0, is_ours=False)]),
            (entries("c", "a"), [failed(1, is_ours=False)]),
            (entries("a"), []),
        ):
            sqs.add_response(
                "delete_message_batch",
                {"Successful": [], "Failed": answer},
                {"QueueUrl": URL, "Entries": sent},
            )
        assert client.delete(["a", "b", "c"]) == set()
        sqs.assert_no_pending_responses()


def test_handles_that_are_none_any_more_are_told_and_not_sent_again(client: QueueClient) -> None:
    with Stubber(client._aws.repeating) as sqs:
        old = failed(1, is_ours=True, code="ReceiptHandleIsInvalid")
        sqs.add_response("delete_message_batch", {"Successful": [], "Failed": [old]})
        assert client.delete(["a", "b"]) == {"b"}
        sqs.assert_no_pending_responses()


def test_what_fails_again_and_again_is_an_outage(client: QueueClient) -> None:
    with Stubber(client._aws.repeating) as sqs:
        for _ in range(5):
            answer = {"Successful": [], "Failed": [failed(0, is_ours=False)]}
            sqs.add_response("delete_message_batch", answer)
        with pytest.raises(SourceUnavailableError, match="does not carry out delete_message_batch"):
            client.delete(["a"])


def test_a_batch_has_ten_at_most(client: QueueClient) -> None:
    handles = [f"h{n}" for n in range(21)]
    with Stubber(client._aws.repeating) as sqs:
        for first in (0, 10, 20):
            some = handles[first : first + 10]
            sqs.add_response(
                "change_message_visibility_batch",
                {"Successful": [], "Failed": []},
                {
                    "QueueUrl": URL,
                    "Entries": [{**one, "VisibilityTimeout": 30} for one in entries(*some)],
                },
            )
        client._aws.in_parallel = lambda work, items: [work(one) for one in items]
        assert client.hide(handles, 30) == set()
        sqs.assert_no_pending_responses()


# --- what users write -----------------------------------------------------------------------------


def test_the_url_says_region_and_endpoint() -> None:
    of_aws = SqsQueue(URL).settings()
    assert (of_aws.region, of_aws.endpoint_url) == ("eu-west-1", None)
    other = SqsQueue("http://localhost:9324/000000000000/orders").settings()
    assert (other.region, other.endpoint_url) == (None, "http://localhost:9324")
    legacy = SqsQueue("https://eu-west-1.queue.amazonaws.com/1234/orders").settings()
    assert legacy.region == "eu-west-1"
    behind = SqsQueue(URL, endpoint_url="https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com")
    assert behind.settings().endpoint_url == "https://vpce-1.sqs.eu-west-1.vpce.amazonaws.com"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "orders"}, "url: this is not a valid URL of an SQS queue"),
        (
            {"url": "https://me:hush@host/1/q"},
            "url: this is not a valid URL of an SQS queue",
        ),
        ({"region": "us-east-1"}, "region: 'us-east-1', but the queue's URL is of 'eu-west-1'"),
        ({"endpoint_url": "http://me:hush@host"}, "endpoint_url: it has a password in it"),
        ({"access_key_id": "hush"}, "access_key_id is given in plain text"),
        ({"access_key_id": Secret("A")}, "belong together"),
        ({"format": "xml"}, "format: 'xml' is unknown"),
        ({"schema": None}, "schema: json values need one"),
        ({"prefetch": 0}, "prefetch: 0 is not from 1 to 100000"),
        ({"receivers": 9}, "receivers: 9 is not from 1 to 8"),
        ({"visibility_timeout": "1 second"}, "visibility_timeout: 1 s is not from 2 s to 12 hours"),
        ({"visibility_timeout": "0.5 seconds"}, "visibility_timeout: 0 s is not from"),
        ({"visibility_timeout": "soon"}, "visibility_timeout: 'soon' is not a duration"),
        ({"guarantee": "twice"}, "guarantee: 'twice' is unknown"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        sources.sqs(**{"url": URL, "schema": "id long", **given})
    assert said in str(caught.value) and "hush" not in str(caught.value)


def test_a_snapshot_interval_is_refused_that_hides_nothing_so_long() -> None:
    made = sources.sqs(URL, schema="id long")
    made.check_snapshot_interval(timedelta(hours=11), "j", "in")
    with pytest.raises(ConfigurationError, match=r"SQS hides a message .* for 12 hours at most"):
        made.check_snapshot_interval(timedelta(hours=12), "j", "in")


# --- what SQS answers, and moto does not ----------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        ("OverLimit", SourceUnavailableError, "SQS delivers no more messages"),
        ("ExpiredToken", SourceError, "does not accept the credentials: "),
        ("InvalidClientTokenId", SourceError, "does not accept the credentials: "),
        ("AccessDenied", SourceError, "these credentials may not use the queue"),
        ("ServiceUnavailable", SourceUnavailableError, "cannot be reached now"),
    ],
)
def test_an_answer_in_the_middle_is_a_sentence(
    client: QueueClient, code: str, kind: type[SourceError], said: str
) -> None:
    with Stubber(client._aws.once) as stub:
        stub.add_client_error("receive_message", code, "no")
        with pytest.raises(SourceError, match=said) as caught:
            client.receive(10, 30, (), ())
    assert type(caught.value) is kind


# --- renewals -------------------------------------------------------------------------------------


def test_a_renewal_that_fails_unexpectedly_is_seen_and_tried_again(client: QueueClient) -> None:
    messages = [{"MessageId": "a", "ReceiptHandle": "h", "Body": "", "Attributes": {}}]
    tried, renewed, is_over = 0, threading.Event(), threading.Event()

    def receive(**_: Any) -> tuple[AWSResponse, dict[str, Any]]:
        if not messages:
            is_over.wait(20)
        return answer({"Messages": [messages.pop()] if messages else []})

    def renew(params: dict[str, Any], **_: Any) -> tuple[AWSResponse, dict[str, Any]]:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise RuntimeError("cannot start a new thread")
        renewed.set()
        return answer({})

    def answer(parsed: dict[str, Any]) -> tuple[AWSResponse, dict[str, Any]]:
        return AWSResponse(URL, 200, {}, None), parsed

    calls = "before-call.sqs"
    client._aws.once.meta.events.register(f"{calls}.ReceiveMessage", receive)
    client._aws.repeating.meta.events.register(f"{calls}.ChangeMessageVisibilityBatch", renew)
    receivers = Receivers(client, Receiving(2, 100, 1, lambda message: message["MessageId"]))
    try:
        assert [message.message_id for message in receivers.poll()] == ["a"]
        with pytest.raises(RuntimeError, match="cannot start a new thread"):
            receivers.poll()
        assert renewed.wait(20), "the thread has ended with the error"
    finally:
        is_over.set()
        receivers.close()
