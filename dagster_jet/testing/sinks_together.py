"""Clauses of `check_sink` for sinks that their place commits in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace

from dagster_jet.contract import CommitPart
from dagster_jet.errors import FencedError
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system import failpoint
from dagster_jet.testing.sink_place import JOB, MakeSink, Place, patiently
from dagster_jet.testing.sink_rows import Row

Staged = Sequence[tuple[Artifact, ...]]
"""Artifacts of each sink."""


@dataclass(frozen=True)
class Beside:
    """A second sink, which commits together with the first one (`Committer.together_with`).

    Args:
        make_sink: returns its definition. It has another output than the first one, empty at the
            first call, with the columns of `SCHEMA`.
        read: returns the rows that are visible there.
        steps: fail points of `Committer.commit_together`, each of which must be reached.
        lost_answers: while it is entered, the place does what it is asked for, and the answer does
            not arrive.
        in_one_step: False: the place says that it cannot, so that each sink commits by itself.
    """

    make_sink: MakeSink
    read: Callable[[], Iterable[Row]]
    steps: Sequence[str] = ()
    lost_answers: Callable[[], AbstractContextManager[object]] | None = None
    in_one_step: bool = True


class Pair:
    """Both sinks, with the calls that the engine makes."""

    def __init__(self, place: Place, beside: Beside) -> None:
        other = replace(
            place,
            make_sink=beside.make_sink,
            read=beside.read,
            stage_name="beside",
            expected={},
            compared={},
        )
        self.places, self.beside = (place, other), beside
        sink = other.make_sink()
        sink.check(JOB, other.stage_name, is_new_job=True)
        sink.claim_place(JOB, other.stage_name)

    def next(self, *, execution_id: int | None = None) -> tuple[Staged, list[list[Row]]]:
        """Stages an epoch of both. Returns the artifacts and the rows."""
        first, second = self.places
        second.epoch_id, second.execution_id = first.epoch_id, first.execution_id
        rows = [place.rows(4) for place in self.places]
        return [
            place.stage(some, shards=2, execution_id=execution_id)
            for place, some in zip(self.places, rows, strict=True)
        ], rows

    def commit(
        self, staged: Staged, *, execution_id: int | None = None, waits: bool = True
    ) -> bool:
        """Commits in one step, with new committers, as a start does."""
        opened = [one.sink().open_committer(JOB, one.stage_name) for one in self.places]
        try:
            places = {one.together_with() for one in opened}
            assert len(places) == 1 and None not in places, f"they name the places {places}"
            parts = [
                CommitPart(committer, artifacts, place.context(execution_id))
                for committer, artifacts, place in zip(opened, staged, self.places, strict=True)
            ]
            first = opened[0]
            if not waits:
                return first.commit_together(parts)
            return patiently(lambda: first.commit_together(parts), first)
        finally:
            for one in opened:
                one.close()

    def expect(self, rows: Sequence[Sequence[Row]] = ((), ())) -> None:
        for place, some in zip(self.places, rows, strict=True):
            place.expect(some)

    def expect_all_or_none(self, rows: Sequence[Sequence[Row]]) -> None:
        seen = [
            any(row["id"] == some[0]["id"] for row in place.read())
            for place, some in zip(self.places, rows, strict=True)
        ]
        assert len(set(seen)) == 1, "one sink shows the epoch, and the other one does not"


def _is_one_step(pair: Pair) -> None:
    """A place that cannot commit several sinks in one step commits none, and each by itself."""
    staged, rows = pair.next()
    is_done = pair.commit(staged)
    assert is_done == pair.beside.in_one_step, f"commit_together returns {is_done}"
    if not is_done:
        pair.expect()
        for place, artifacts in zip(pair.places, staged, strict=True):
            place.commit(artifacts)
    pair.expect(rows)


def _again_and_late(pair: Pair) -> None:
    """A step that is made again, or after its successors by a dead execution, changes nothing."""
    dead = pair.places[0].execution_id - 1
    of_dead, old = pair.next(execution_id=dead)
    pair.commit(of_dead, execution_id=dead)
    pair.expect(old)
    staged, rows = pair.next()
    for _ in range(2):
        pair.commit(staged)
        pair.expect(rows)
    for artifacts, by in ((of_dead, dead), (staged, None), (of_dead, None)):
        with suppress(FencedError):
            pair.commit(artifacts, execution_id=by)
        pair.expect()


def _one_is_there(pair: Pair) -> None:
    """A sink that is committed already gets nothing twice, and the other one all of its epochs."""
    for ahead in (0, 1):
        first, before = pair.next()
        second, after = pair.next()
        pair.places[ahead].commit(first[ahead])
        pair.commit([a + b for a, b in zip(first, second, strict=True)])
        pair.expect([a + b for a, b in zip(before, after, strict=True)])


def _fails_in_between(pair: Pair) -> None:
    """A failure at any step, or a lost answer, leaves both sinks committed or none, and a
    repetition commits both once."""
    lost = pair.beside.lost_answers
    for step in (*pair.beside.steps, *([None] if lost else [])):
        staged, rows = pair.next()
        failpoint.configure(f"{step}=raise" if step else "")
        try:
            with lost() if lost and step is None else nullcontext():
                pair.commit(staged, waits=False)
        except Exception:
            if step is not None and not failpoint.hits(step):
                raise
        else:
            raise AssertionError(f"nothing failed at {step or 'the lost answer'}")
        finally:
            failpoint.configure("")
        pair.expect_all_or_none(rows)
        for place in pair.places:  # the next start commits it
            place.execution_id += 1
        pair.commit(staged)
        pair.expect(rows)


def clauses_of(beside: Beside) -> Sequence[Callable[[Pair], None]]:
    if not beside.in_one_step:
        return (_is_one_step,)
    return _is_one_step, _again_and_late, _one_is_there, _fails_in_between
