"""Commits of several sinks: in parallel, or in one step where their place can do it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from dagster_jet.contract import CommitPart, Committer
from dagster_jet.execution.retrying import Attempted, Retrying
from dagster_jet.snapshot.owed import OwedCommit
from dagster_jet.snapshot.store_reactions import StoreCall

_AT_ONCE_MAX = 8
"""Maximum number of sinks that commit in parallel."""

RunAll = Callable[[Sequence[Callable[[], None]]], None]


def in_threads(works: Sequence[Callable[[], None]]) -> None:
    """Runs all works in parallel and returns when all have ended.

    Raises:
        BaseException: of the first work that has raised.
    """
    if len(works) == 1:
        works[0]()
        return
    with ThreadPoolExecutor(min(len(works), _AT_ONCE_MAX), "jet-commit") as pool:
        running = [pool.submit(work) for work in works]
    for ended in running:
        ended.result()


def grouped(
    pending: Sequence[OwedCommit], committer_of: Callable[[OwedCommit], Committer | None]
) -> list[list[OwedCommit]]:
    """Returns the commits, those in one group that one step can make.

    Args:
        committer_of: None for a commit that is made alone. What it raises is left to the commit.
    """
    groups: dict[Hashable, list[OwedCommit]] = {}
    for owed in pending:
        key: Hashable = ("alone", owed.sink)
        with suppress(Exception):
            committer = committer_of(owed)
            place = None if committer is None else committer.together_with()
            key = key if place is None else ("together", place)
        groups.setdefault(key, []).append(owed)
    return list(groups.values())


def commit_together(
    parts: Sequence[CommitPart], place: str, retrying: Retrying, one_failed: threading.Event
) -> bool:
    """Returns False if each part has to be committed by itself.

    Args:
        place: named in errors.

    Raises:
        JetError: as `Retrying.until_done`.
    """
    first, answers = parts[0], list[bool]()
    stages = tuple(one.context.sink for one in parts)
    is_decided = not first.context.repeatable
    attempted = Attempted("commit", stages, place, first.committer, StoreCall.COMMIT, is_decided)
    retrying.until_done(
        lambda: answers.append(first.committer.commit_together(parts)),
        attempted,
        one_failed.is_set,
    )
    return answers[0]
