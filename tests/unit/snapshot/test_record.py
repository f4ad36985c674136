"""The record's bytes: causes are words of an enumeration."""

from __future__ import annotations

import json
from dataclasses import asdict

from dagster_jet.snapshot.record import (
    ExecutionRecord,
    JobStatus,
    StopCause,
)


def test_a_cause_comes_back_as_it_was_written() -> None:
    record = ExecutionRecord("j", 3, JobStatus.FAILED, cause=StopCause.CANCEL, failure="cancelled")
    assert ExecutionRecord.from_bytes(record.to_bytes()) == record


def test_an_unknown_cause_is_other() -> None:
    fields = {**_fields(ExecutionRecord("j", 3, JobStatus.FAILED)), "cause": "of tomorrow"}
    assert ExecutionRecord.from_bytes(json.dumps(fields).encode()).cause is StopCause.OTHER


def _fields(record: ExecutionRecord) -> dict[str, object]:
    return asdict(record)
