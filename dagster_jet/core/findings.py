"""What a probe of an outside system finds out: questions, answered in words."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum


class Verdict(str, Enum):
    """The answer to a question."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
    """It cannot be asked for, or we may not ask."""


@dataclass(frozen=True)
class Finding:
    """One question and its answer, for people; without secrets.

    Attributes:
        question: such that "yes" is good.
        verdict: what was tried or read, not what is hoped.
        meaning: what follows for a job.
        cure: what changes the answer; "" where nothing has to.
        is_needed: by the recipe that is the default: without it nothing is exactly once.
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
) -> Finding:
    """The finding of a question: with the meaning of its answer, and the cure unless it is yes.

    Args:
        holds: None: unknown.
    """
    if holds is None:
        return Finding(question, Verdict.UNKNOWN, unknown, cure, needed)
    if holds:
        return Finding(question, Verdict.YES, yes, "", needed)
    return Finding(question, Verdict.NO, no, cure, needed)


def breaks_the_recipe(findings: list[Finding]) -> bool:
    """Whether something that is needed does not hold."""
    return any(one.is_needed and one.verdict is Verdict.NO for one in findings)


def in_words(duration: timedelta) -> str:
    """Of a length that people set: "90 s", "2 h"."""
    seconds = duration.total_seconds()
    if seconds and seconds % 3600 == 0:
        return f"{seconds / 3600:g} h"
    return f"{seconds:g} s"
