"""Answers of a probe of an external system."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import timedelta
from enum import Enum
from typing import Any


class Verdict(str, Enum):
    """Answer to a question."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """The system does not report it, or access is denied."""


@dataclass(frozen=True)
class Answer:
    """One question and its answer, as text without secrets.

    Attributes:
        question: phrased so that "yes" is good.
        verdict: based on what was tried or read.
        meaning: consequence for a job.
        cure: action that changes the answer; "" if none is needed.
        is_needed: the default recipe needs it: without it nothing is exactly once.
    """

    question: str
    verdict: Verdict
    meaning: str
    cure: str = ""
    is_needed: bool = False


def answered(
    question: str,
    holds: bool | None,
    *,
    yes: str = "",
    no: str = "",
    unknown: str = "",
    cure: str = "",
    needed: bool = False,
) -> Answer:
    """Return the answer of a question: the meaning of its answer, and the cure unless it is yes.

    Args:
        holds: the answer; None: unknown.
    """
    if holds is None:
        return Answer(question, Verdict.UNKNOWN, unknown, cure, needed)
    if holds:
        return Answer(question, Verdict.YES, yes, "", needed)
    return Answer(question, Verdict.NO, no, cure, needed)


def breaks_the_recipe(answers: list[Answer]) -> bool:
    """Whether a needed property does not hold."""
    return any(one.is_needed and one.verdict is Verdict.NO for one in answers)


def as_rows(answers: list[Answer]) -> list[dict[str, Any]]:
    """Return the answers as values of a JSON document."""
    return [{**asdict(one), "verdict": one.verdict.value} for one in answers]


def in_words(duration: timedelta) -> str:
    """Return a configured duration as text: "90 s", "2 h"."""
    seconds = duration.total_seconds()
    if seconds and seconds % 3600 == 0:
        return f"{seconds / 3600:g} h"
    return f"{seconds:g} s"
