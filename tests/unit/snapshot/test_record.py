"""The record's bytes: causes are words of an enumeration, also those that format 1 had in texts."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from dagster_jet.snapshot.record import (
    RECORD_FORMAT,
    ExecutionRecord,
    JobStatus,
    StopCause,
)


def test_a_cause_comes_back_as_it_was_written() -> None:
    record = ExecutionRecord("j", 3, JobStatus.FAILED, cause=StopCause.CANCEL, failure="cancelled")
    assert ExecutionRecord.from_bytes(record.to_bytes()) == record


@pytest.mark.parametrize(
    ("status", "failure", "cause"),
    [
        ("FAILED", "cancelled", StopCause.CANCEL),
        ("FAILED", "disk full", StopCause.OTHER),
        ("FAILED", None, StopCause.OTHER),
        ("SUSPENDED", "suspend", StopCause.SUSPEND),
        ("SUSPENDED", "disk full", StopCause.OTHER),
        ("COMPLETED", None, StopCause.COMPLETE),
        ("NOT_RUNNING", "gave up after 6 failed executions: disk full", StopCause.GAVE_UP),
        ("NOT_RUNNING", None, StopCause.OTHER),
        ("RUNNING", None, None),
    ],
)
def test_what_format_1_said_in_words_is_a_cause(
    status: str, failure: str | None, cause: StopCause | None
) -> None:
    old = _fields(ExecutionRecord("j", 3, JobStatus(status), failure=failure))
    del old["cause"]
    read = ExecutionRecord.from_bytes(json.dumps({**old, "format": 1}).encode())
    assert (read.cause, read.failure) == (cause, failure)
    assert read.format == RECORD_FORMAT, "what is written on top of it is of today"


def test_an_unknown_cause_is_other() -> None:
    fields = {**_fields(ExecutionRecord("j", 3, JobStatus.FAILED)), "cause": "of tomorrow"}
    assert ExecutionRecord.from_bytes(json.dumps(fields).encode()).cause is StopCause.OTHER


def _fields(record: ExecutionRecord) -> dict[str, object]:
    return asdict(record)
