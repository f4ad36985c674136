"""Conformance suite of a sink: a test of the `Sink` and `Committer` contracts.

from functools import partial
from dagster_jet.contract import Sink
from dagster_jet.testing import check_sink

def test_my_table(tmp_path):
    check_sink(partial(SqliteTable, f"{tmp_path}/a.db", "rows", f"{tmp_path}/staged"), read)

It runs without the engine: it makes the engine's calls and simulates crashes.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dagster_jet.contract import Sink, TransactionId
from dagster_jet.contract.part import check_is_a
from dagster_jet.errors import FencedError, Reaction, SinkError
from dagster_jet.execution.connector_errors import reaction_to
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system import failpoint
from dagster_jet.testing.sink_place import (
    JOB,
    STAGE,
    MakeSink,
    Place,
    batches_of,
    commit,
    commit_with,
)
from dagster_jet.testing.sink_rows import EXTREMES, Row
from dagster_jet.testing.sinks_together import Beside, Pair, clauses_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITERS, _LONG = 12, 1_000_000


def in_one_log(row: Row) -> object:
    """`log_of` of a place that keeps the order of all its rows."""
    return None


def check_sink(
    make_sink: MakeSink,
    read: Callable[[], Iterable[Row]],
    *,
    spark: SparkSession | None = None,
    several_processes: bool = True,
    outages: Mapping[str, Callable[[], AbstractContextManager[object]]] | None = None,
    steps: Sequence[str] = (),
    secrets: Sequence[str] = (),
    log_of: Callable[[Row], object] | None = in_one_log,
    set_back: Mapping[str, Callable[[], AbstractContextManager[object]]] | None = None,
    refused: Sequence[Row] = (),
    beside: Beside | None = None,
) -> None:
    """Check that a sink keeps every clause of its contract.

    Args:
        make_sink: returns the sink's definition; every call for the **same** place, which is empty
            at the first call and takes the columns of `SCHEMA`. Picklable, unless
            `several_processes` is False.
        read: returns the rows that are visible now. `id` and all other columns of `SCHEMA` that a
            row has are compared. A place without such a type may keep times and dates as ISO 8601
            (no zone: UTC), bytes as base64, decimals as text or number, `flag` as 0 or 1.
        spark: for a sink that renders its rows with Spark.
        several_processes: also let another process commit. False for a place inside one process.
        outages: context managers by name (for messages) that make the place unusable while entered
            (a full disk, a locked table, a server that is down): a commit must then ask for a
            retry.
        steps: fail points of the connector. It is made to fail at each, in both phases; each must
            be reached.
        secrets: texts that must not be in anything sent, shown or kept.
        log_of: returns for a row of `read` the part of the place that keeps the order of its rows:
            a partition or, where only rows of one key keep their order, the key. `read` returns the
            rows of each part in its order. By default the place is one part. None: a place without
            an order, such as a map.
        set_back: context managers by name (for messages) that replace the place while entered and
            bring it back afterwards: emptied, created again, restored from an earlier copy.
        refused: column values that the place never takes, each used in a separate row:
            `Sink.refused` must name the row.
        beside: a second sink, whose committers name the same place by `Committer.together_with`.

    Raises:
        AssertionError: names the sink and the broken clause.
    """
    sink = make_sink()
    check_is_a(Sink, sink, job=JOB, stage=STAGE)
    kind = sink.describe()["kind"]
    place = Place(
        make_sink,
        read,
        spark,
        several_processes,
        outages or {},
        steps,
        secrets,
        log_of,
        set_back or {},
        refused,
    )
    clauses = [(clause.__doc__, partial(clause, place)) for clause in _CLAUSES]
    if beside is not None:
        pair = Pair(place, beside)
        clauses += [(clause.__doc__, partial(clause, pair)) for clause in clauses_of(beside)]
    for sentence, check in clauses:
        place.execution_id += 3
        try:
            check()
        except Exception as error:
            said = (sentence or "").strip()
            raise AssertionError(f"{kind} breaks its contract: {said} ({error})") from error


def _shows_no_secret(place: Place) -> None:
    """A definition pickles, describes itself as text with a kind, and shows no secret."""
    sink = place.make_sink()
    described = sink.describe()
    assert all(isinstance(one, str) for pair in described.items() for one in pair), described
    shown = [repr(sink), str(described)]
    if place.several_processes:
        shown.append(pickle.dumps(sink).decode("latin-1"))
    shown.append(json.dumps(sink.destination()))
    assert not any(secret in text for secret in place.secrets for text in shown)


def _is_checked_at_every_start(place: Place) -> None:
    """check passes twice for a new job at an empty place."""
    for _ in range(2):
        sink = place.make_sink()
        sink.check(JOB, STAGE, is_new_job=True)
        sink.claim_place(JOB, STAGE)


def _nothing_of_nothing(place: Place) -> None:
    """A writer without rows leaves no artifact, and a commit of no artifacts changes nothing."""
    assert place.stage([], shards=2) == ()
    place.commit(())
    place.expect()


def _visible_with_phase_2(place: Place) -> None:
    """Rows are invisible after phase 1 and all visible after phase 2; artifacts count them."""
    rows = place.rows(10)
    artifacts = place.stage(rows, shards=2)
    assert sum(artifact.rows for artifact in artifacts) == len(rows)
    assert {(one.sink, one.epoch_id) for one in artifacts} == {(STAGE, place.epoch_id)}
    place.expect()
    place.commit(artifacts)
    place.expect(rows)


def _says_what_is_committed(place: Place) -> None:
    """A committer that says what is committed says it of all committed artifacts, and no others."""
    rows = place.rows(10)
    artifacts = place.stage(rows, shards=2)
    if place.has_committed(artifacts) is None:
        place.commit(artifacts)
        place.expect(rows)
        return
    assert not place.has_committed(artifacts), "it says so before phase 2"
    place.commit(artifacts)
    assert place.has_committed(artifacts), "it does not say so after phase 2"
    more = place.rows(2)
    later = place.stage(more)
    assert not place.has_committed(later), "it says so of the next epoch"
    assert not place.has_committed((*artifacts, *later)), "it says so of two epochs, one of two is"
    place.commit(later)
    assert place.has_committed((*artifacts, *later)), "it does not say so of two epochs"
    place.expect(rows, more)


def _notices_a_place_set_back(place: Place) -> None:
    """A committer that says what is committed does not say it of artifacts whose place is empty,
    new or older than it was, and says it again once the place is back."""
    place.looks, rows = True, place.rows(4)
    artifacts = place.stage(rows, shards=2)
    for name, set_back in place.set_back.items():
        place.commit(artifacts)
        for some in (artifacts, artifacts[:1]):
            assert place.has_committed(some, owns_job=True), "it does not say so of some of them"
        with set_back():
            place.make_sink().check(JOB, STAGE, is_new_job=False)
            assert not place.has_committed(artifacts, owns_job=True), name
        assert place.has_committed(artifacts, owns_job=True), f"{name}: it is back"
    place.commit(artifacts)
    place.looks = False
    place.expect(rows)


def _any_value(place: Place) -> None:
    """Any value is kept as it is: nulls, extremes, microseconds, long or no text, 10,000 rows."""
    nulls = [{**dict.fromkeys(row), "id": row["id"], "flag": True} for row in place.rows(2)]
    place.commit(place.stage(nulls))
    place.expect(nulls)
    extremes = [{**row, **e} for row, e in zip(place.rows(2), EXTREMES, strict=True)]
    place.commit(place.stage(extremes))
    place.expect(extremes)
    empty = place.rows(1, text="")
    place.commit(place.stage(empty))
    place.expect(empty)
    long = place.rows(2, text="x" * _LONG)
    place.commit(place.stage(long))
    place.expect(long)
    many = place.rows(10_000)
    place.commit(place.stage(many, shards=3))
    place.expect(many)


def _refused_before(place: Place) -> None:
    """A row that the place never takes is named before it is staged, and no other row is."""
    sink: Any = place.make_sink().at_start(JOB, STAGE, on_one_host=True)
    good = [*place.rows(3), {**place.rows(4)[3], **EXTREMES[0]}]
    for batch in batches_of(place.rendered(good)):
        found = sink.refused(batch)
        assert not found, f"it refuses a row that it takes: {found}"
    for values in place.refused:
        looks = type(sink).refused is not Sink.refused
        assert looks, f"it takes {values!r:.200} without looking"
        named: list[str] = []
        for batch in batches_of(place.rendered([*good, {**place.rows(5)[4], **values}])):
            named += [one.raw for one in sink.refused(batch).values()]
        assert len(named) == 1, f"of {values!r:.200} it names {len(named)} rows"
    place.commit(place.stage(good))
    place.expect(good)


def _epochs_together(place: Place) -> None:
    """Several epochs are committed in one call, with their artifacts in any order."""
    first = place.rows(3)
    staged = place.stage(first)
    second = place.rows(3)
    staged += place.stage(second, shards=2)
    place.commit(staged[::-1])
    place.expect(first, second)


def _order(place: Place) -> None:
    """Rows of twelve writers are visible in the order of the writers and of their rows, and epoch
    after epoch."""
    rows = place.rows(60 * _WRITERS)
    rows = [{**row, "text": f"key {n % 7}"} for n, row in enumerate(rows)]
    half = len(rows) // 2
    staged = place.stage_in_tasks(rows[:half], _WRITERS)
    place.commit((*staged, *place.stage_in_tasks(rows[half:], _WRITERS)))
    place.expect(rows)
    if place.log_of is None:
        return
    newest: dict[object, int] = {}
    for row in place.read():
        if row["id"] >= rows[0]["id"]:
            log = place.log_of(row)
            before = newest.get(log, 0)
            assert row["id"] > before, f"row {row['id']} comes behind row {before}"
            newest[log] = row["id"]


def _again_and_again(place: Place) -> None:
    """A commit that is repeated, by any object, changes nothing."""
    rows = place.rows(5)
    artifacts = place.stage(rows, shards=2)
    for _ in range(3):
        place.commit(artifacts)
        place.expect(rows)


def _by_another_process(place: Place) -> None:
    """Another process finishes the commit, from pickled objects."""
    rows = place.rows(5)
    artifacts = place.stage(rows)
    if place.several_processes:
        context = multiprocessing.get_context("spawn")
        process = context.Process(
            target=commit, args=(place.make_sink(), artifacts, place.context())
        )
        process.start()
        process.join()
        assert process.exitcode == 0, f"the other process ended with {process.exitcode}"
    place.commit(artifacts)
    place.expect(rows)


def _late_commit(place: Place) -> None:
    """A commit that is made again after its successors, by this execution or by a dead one, changes
    nothing; it may be refused as fenced."""
    sink, dead = place.make_sink(), place.execution_id - 1
    of_dead = place.stage(old := place.rows(4), shards=2, execution_id=dead)
    by_dead = sink.open_committer(JOB, STAGE)
    commit_with(by_dead, of_dead, place.context(dead))
    place.expect(old)
    ours = sink.open_committer(JOB, STAGE)
    before = place.stage(new := place.rows(4), shards=2)
    commit_with(ours, before, place.context())
    after = place.stage(newest := place.rows(4))
    commit_with(ours, after, place.context())
    place.expect(new, newest)
    for committer, artifacts, execution_id in (
        (ours, before, place.execution_id),
        (ours, (*of_dead, *before, *after), place.execution_id),
        (by_dead, of_dead, dead),
        (ours, before, place.execution_id),
    ):
        with suppress(FencedError):
            commit_with(committer, artifacts, place.context(execution_id))
        place.expect()
    by_dead.close()
    ours.close()
    place.commit(before)
    place.commit(of_dead, execution_id=dead)
    place.expect()


def _orphans(place: Place) -> None:
    """Artifacts that an older execution staged and no snapshot decided are removed, for any number
    of writers; decided or newer artifacts stay."""
    decided, later = place.rows(3), None
    kept = place.stage(decided, shards=3, execution_id=place.execution_id - 2)
    place.stage(place.rows(3), shards=3, execution_id=place.execution_id - 1)
    later = place.rows(3)
    newer = place.stage(later, shards=2)
    place.abort_orphans([artifact.token for artifact in kept])
    place.abort_orphans(
        [artifact.token for artifact in kept], execution_id=place.execution_id - 2
    )  # from a fenced execution that wakes up
    place.commit(kept + newer)
    place.expect(decided, later)


def _zombie_writer(place: Place) -> None:
    """Rows that a writer of a dead execution prepares late are refused or never visible, and their
    epoch, written again by the successor, is visible once."""
    rows = place.rows(3)
    place.stage(rows, execution_id=place.execution_id - 1)
    place.abort_orphans()
    fresh = place.stage(rows, new_epoch=False)
    with suppress(SinkError):
        place.stage(rows, execution_id=place.execution_id - 1, attempt="late", new_epoch=False)
    place.commit(fresh)
    place.abort_orphans()
    place.expect(rows)


def _attempts(place: Place) -> None:
    """If a task ran twice, only the attempt with a committed artifact counts; an aborted one leaves
    nothing."""
    rows = place.rows(4)
    place.stage(rows, attempt="a0")
    counted = place.stage(rows, attempt="a1", new_epoch=False)
    aborted = place.make_sink().open_writer(
        TransactionId(JOB, STAGE, 1, place.execution_id, place.epoch_id, 0, "a2")
    )
    for batch in batches_of(place.rendered(rows)):
        aborted.write(batch)
    aborted.abort()
    aborted.close()
    place.commit(counted)
    place.expect(rows)


def _crashes(place: Place) -> None:
    """Whatever named step fails, the next execution rolls back and writes again, or commits again,
    and every row is visible once."""
    for step in place.steps:
        for hit in (1, 2):
            place.execution_id += 1
            rows = place.rows(4)
            place.expect()
            staged: tuple[Artifact, ...] = ()
            failpoint.configure(f"{step}:{hit}=raise")
            try:
                staged = place.stage(rows, shards=2)
                place.commit(staged)
            except Exception:  # noqa: BLE001 - any error that the step's failure causes
                place.execution_id += 1
            finally:
                hits = failpoint.hits(step)
                failpoint.configure("")
            assert hits or hit > 1, f"the step {step!r} was never reached"
            if not staged:
                place.abort_orphans()
                staged = place.stage(rows, shards=1, new_epoch=False)
            place.commit(staged)
            place.expect(rows)


def _outages(place: Place) -> None:
    """A commit in the middle of an outage is to be retried or restarts the job, leaves nothing half
    done, and succeeds afterwards; its error shows no secret."""
    for name, outage in place.outages.items():
        rows = place.rows(4)
        artifacts = place.stage(rows, shards=2)
        committer = place.make_sink().open_committer(JOB, STAGE)
        with outage():
            try:
                committer.commit(artifacts, place.context())
            except Exception as error:  # noqa: BLE001 - classified below
                reaction = reaction_to(error, committer)
                wanted = (Reaction.RETRY, Reaction.RESTART, None)
                assert reaction in wanted, f"{name}: {error} asks for {reaction}"
                assert not any(secret in str(error) for secret in place.secrets), name
            else:
                raise AssertionError(f"{name}: the commit has succeeded")
        committer.commit(artifacts, place.context())
        committer.close()
        place.expect(rows)


def _reopened(place: Place) -> None:
    """A sink that is reopened from its destination, as JSON, commits artifacts staged before."""
    rows = place.rows(4)
    artifacts = place.stage(rows)
    sink = place.make_sink()
    destination = json.loads(json.dumps(sink.destination()))
    if destination is not None:
        sink = sink.reopen(destination)
        # Set by the engine at every start, and not part of a sink's equality.
        made: Any = place.make_sink()
        engines = {f.name: getattr(made, f.name) for f in fields(made) if not f.compare and f.init}
        sink = replace(sink, **engines)  # type: ignore[type-var]
    commit(sink, artifacts, place.context())
    place.commit(artifacts)
    place.expect(rows)


_CLAUSES: tuple[Callable[[Place], None], ...] = (
    _shows_no_secret,
    _is_checked_at_every_start,
    _nothing_of_nothing,
    _visible_with_phase_2,
    _says_what_is_committed,
    _notices_a_place_set_back,
    _refused_before,
    _epochs_together,
    _order,
    _again_and_again,
    _by_another_process,
    _late_commit,
    _orphans,
    _zombie_writer,
    _attempts,
    _crashes,
    _outages,
    _reopened,
    _any_value,  # last: every clause reads all rows there
)
