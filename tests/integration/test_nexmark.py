"""NEXMark: every query killed in the middle, finished, and equal to DuckDB's answer.

The driver dies by SIGKILL at a named point, a few snapshots into the stream; what it had committed
must be part of the answer. The restart goes on with another number of shards. The verdict is
`benchmarks.nexmark.oracle`: batch SQL over the same files, multisets of committed rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pytest

from benchmarks.nexmark.generator import write_files
from benchmarks.nexmark.oracle import check, committed_files, make_views
from benchmarks.nexmark.queries import QUERIES
from dagster_jet import JobConfig
from dagster_jet.snapshot.record import JobStatus
from tests.long import long

from . import child, nexmark_child
from .nexmark_child import LATE, LATE_MODEL, MODEL, PER_FILE
from .world import World

CRASHES = {
    # After the decision, before anything is committed; between two files; around the commit.
    "q1": "files.commit.file:3",
    "q2": "record.snapshot.after:4",
    "q3": "commit.before:3",
    "q4": "files.commit.file:2",
    "q5": "record.snapshot.after:4",
    "q7": "commit.before:3",
    "q8": "files.commit.file:3",
    "q11": "record.snapshot.after:4",
    "q12": "record.snapshot.after:4",
    "q14": "commit.before:3",
    "q18": "record.snapshot.after:4",
    "q20": "files.commit.file:3",
}
SHARDED = {"q4", "q5", "q8", "q18", "q20"}
"""Every shard is a task of its own; with the others one task drives them all."""
BY_THE_CLOCK = {"q12"}
"""All of its windows may close at the end of the input only."""
APPENDING = set(QUERIES) - {"q4", "q12", "q18"}


class NexmarkWorld(World):
    """A world whose child and whose runs take a job of `nexmark_child`."""

    driver = staticmethod(nexmark_child.main)

    def finish(self, job: str, **config: Any) -> None:
        with self.jet() as jet:
            config = {**child.CONFIG, **config}
            result = jet.run(
                nexmark_child.job(job, self.folder), JobConfig(**config), until="completed"
            )
        assert result.status is JobStatus.COMPLETED


@pytest.fixture(scope="module")
def stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nexmark")
    write_files(MODEL, folder, PER_FILE)
    return folder


@pytest.fixture
def world(world: World) -> NexmarkWorld:
    return NexmarkWorld(world.folder, world.fail_points, world.spark)


@long  # the one below is killed, too
@pytest.mark.parametrize("query", QUERIES)
def test_query_is_killed_and_its_answer_is_exact(
    world: NexmarkWorld, stream: Path, query: str
) -> None:
    source, output = world.folder / "in", world.folder / "out"
    source.symlink_to(stream)
    world.run_child(f"{CRASHES[query]}=kill", job=query, sharded=query in SHARDED)
    half_way = check(query, MODEL, source, output)
    assert half_way.missing and not half_way.traces, half_way
    if query in APPENDING:
        assert not half_way.extra, half_way
    world.finish(query, parallelism=3)
    verdict = check(query, MODEL, source, output)
    assert verdict.is_exact and verdict.expected, verdict
    assert len(epochs(output)) > 1 or query in BY_THE_CLOCK


def epochs(output: Path) -> set[str]:
    return {Path(name).name.split("-")[1] for name in committed_files(output)}


def test_late_bids_go_to_their_sink_once(world: NexmarkWorld) -> None:
    """The lag is less than the disorder, and the job crashes: the counted and the late bids of each
    bidder and window are all there are. Where epochs begin decides which ones are late."""
    write_files(LATE_MODEL, world.folder / "in", PER_FILE)
    world.run_child("files.commit.file:4=kill", job=LATE)
    world.finish(LATE, parallelism=3)
    with duckdb.connect() as db:
        make_views(db, world.folder / "in")
        for name in ("out", "late"):
            files = committed_files(world.folder / name)
            db.execute(f"CREATE TABLE {name} AS FROM read_parquet($files)", {"files": files})
        wrong = db.execute(
            """
            SELECT bidder, start, sum(counted), sum(late), sum(bids) FROM (
                SELECT bidder, epoch_ms(window_start) AS start,
                    bid_count AS counted, 0 AS late, 0 AS bids FROM out
                UNION ALL SELECT bidder, epoch_ms(date_time) // 2000 * 2000, 0, 1, 0 FROM late
                UNION ALL SELECT bidder, ms // 2000 * 2000, 0, 0, 1 FROM bid)
            GROUP BY ALL HAVING sum(counted) + sum(late) <> sum(bids)
            """
        ).fetchall()
        assert not wrong, wrong[:5]
        missing = db.execute(
            "SELECT number, bidder, price, url, extra FROM late EXCEPT ALL "
            "SELECT number, bidder, price, url, extra FROM bid"
        ).fetchall()
        assert not missing, "a late row comes as the stage received it"
        ((late, bids),) = db.execute(
            "FROM (SELECT count(*) FROM late), (SELECT count(*) FROM bid)"
        ).fetchall()
    assert 0 < late < bids / 2
