"""The epoch sizer against simulated pipelines: what it costs is known, so the best size is too.

Rates and durations are judged by the model without its noise. An epoch that is twice as long
because the machine was busy is nobody's fault; one that is twice as large is.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from dagster_jet.contract import Lag
from dagster_jet.execution.epoch_size import FIRST_BYTES, FIRST_ROWS, EpochSizer

TARGET_MS = 500
CATCH_UP_MS = 5_000
ENOUGH = 10**12
"""A backlog without an end."""
SEEDS = range(20)


def sizer_of(
    target_ms: float = TARGET_MS,
    catch_up_ms: float = CATCH_UP_MS,
    source_rows_max: int | None = None,
    bytes_max: float = 10**15,
) -> EpochSizer:
    return EpochSizer(target_ms, catch_up_ms, source_rows_max, bytes_max)


def waits(rows: int, row_bytes: int = 200) -> Lag:
    return Lag(rows, {}, rows * row_bytes)


@dataclass(frozen=True)
class Pipeline:
    """Cost of a pipeline's epochs, and the pieces in which its input comes."""

    fixed_ms: float
    rows_per_ms: float
    file_rows: int = 1
    noise: float = 0.0
    """Epochs are up to so much longer, as a part of them."""
    stalls: float = 0.0
    """Share of the epochs that take three times as long."""

    def model_ms(self, rows: int) -> float:
        return self.fixed_ms + rows / self.rows_per_ms

    def best_rate(self) -> float:
        """Highest rate within the bound for catching up, or within twice the fixed cost."""
        bound_ms = max(CATCH_UP_MS, 2 * self.fixed_ms)
        return (bound_ms - self.fixed_ms) * self.rows_per_ms / bound_ms


@dataclass
class World:
    """Runs epochs as the driver does."""

    pipeline: Pipeline
    sizer: EpochSizer = field(default_factory=sizer_of)
    waiting: int = ENOUGH
    arrive_per_ms: float = 0.0
    seed: int = 1
    now_ms: float = 0.0
    epochs: list[int] = field(default_factory=list)
    """The rows of each."""
    row_bytes: int = 200

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._arrived = float(self.waiting)

    def start_cold(self) -> World:
        """The first epoch takes 5 seconds more, and the next ones get faster."""
        self._measured(self._plan(), extra_ms=5_000)
        for slowness in (4.0, 3.0, 2.5, 2.0, 1.5, 1.2):
            self._measured(self._plan(), slower=slowness)
        return self

    def start_warm(self) -> World:
        self._measured(self._plan())
        return self

    def run(self, epochs: int) -> list[int]:
        """The rows of each of these epochs."""
        for _ in range(epochs):
            while not (rows := self._plan()):
                self._pass(200)
            self._measured(rows)
        return self.epochs[-epochs:]

    def _plan(self) -> int:
        file_rows = self.pipeline.file_rows
        files = int(self._arrived) // file_rows
        if files == 0:
            return 0
        share = self.sizer.shares({"in": waits(files * file_rows, self.row_bytes)})["in"]
        return min(files, max(1, share // file_rows)) * file_rows

    def _measured(self, rows: int, *, slower: float = 1.0, extra_ms: float = 0.0) -> None:
        pipeline = self.pipeline
        slower *= 1 + self._random.uniform(0, pipeline.noise)
        slower *= 3 if self._random.random() < pipeline.stalls else 1
        duration_ms = pipeline.model_ms(rows) * slower + extra_ms
        self.sizer.learn(rows, duration_ms)
        self.epochs.append(rows)
        self._arrived -= rows
        self._pass(duration_ms)

    def _pass(self, ms: float) -> None:
        self.now_ms += ms
        self._arrived += self.arrive_per_ms * ms

    def rate(self, epochs: list[int]) -> float:
        return sum(epochs) / sum(map(self.pipeline.model_ms, epochs))

    def share_of_best(self, epochs: list[int]) -> float:
        return self.rate(epochs) / self.pipeline.best_rate()

    def longest_ms(self, epochs: list[int]) -> float:
        return max(map(self.pipeline.model_ms, epochs))


PIPELINES = {
    "three stages": Pipeline(550, 300),
    "three stages, equal files": Pipeline(550, 300, file_rows=20_000),
    "one stage, equal files": Pipeline(70, 300, file_rows=20_000),
    "one stage, tiny files": Pipeline(70, 200, file_rows=500),
    "three stages, tiny files": Pipeline(600, 200, file_rows=500),
    "a fast one": Pipeline(40, 2_000, file_rows=20_000),
    "a slow function per row": Pipeline(100, 1),
}
named = pytest.mark.parametrize("pipeline", PIPELINES.values(), ids=PIPELINES.keys())


def disturbed(pipeline: Pipeline) -> Pipeline:
    return replace(pipeline, noise=0.3, stalls=0.05)


# --- with a backlog ------------------------------------------------------------------------------


@named
def test_a_job_that_catches_up_soon_runs_at_nine_tenths_of_the_best_rate(pipeline: Pipeline):
    world = World(pipeline).start_cold()
    assert world.share_of_best(world.run(60)) >= 0.9
    assert world.share_of_best(world.epochs[1:21]) >= 0.9, "the first twenty, too"


@named
def test_noise_and_stalls_cost_little(pipeline: Pipeline):
    shares = []
    for seed in SEEDS:
        world = World(disturbed(pipeline), seed=seed).start_cold()
        world.run(10)
        shares.append(world.share_of_best(world.run(60)))
    assert min(shares) >= 0.8
    assert sorted(shares)[len(shares) // 2] >= 0.95


@named
def test_epochs_exceed_the_bound_by_a_factor_at_most(pipeline: Pipeline):
    for seed in SEEDS:
        world = World(disturbed(pipeline), seed=seed).start_cold()
        assert world.longest_ms(world.run(80)[10:]) <= 3 * CATCH_UP_MS
    world = World(pipeline).start_warm()
    assert world.longest_ms(world.run(80)[20:]) <= 1.5 * CATCH_UP_MS


def test_epochs_are_no_longer_than_it_takes():
    """A tenth of overhead is reached far below the bound."""
    world = World(Pipeline(70, 300)).start_warm()
    epochs = world.run(100)[40:]
    assert sorted(map(world.pipeline.model_ms, epochs))[30] <= 1_000


@pytest.mark.parametrize("fixed_ms", [3_000, 7_000])
def test_a_cluster_whose_epochs_cost_seconds_is_not_held_to_one_file(fixed_ms: float):
    world = World(Pipeline(fixed_ms, 100, file_rows=20_000)).start_cold()
    world.run(15)
    assert world.share_of_best(world.run(40)) >= 0.9


def test_noise_that_is_larger_than_what_a_file_costs_does_not_stop_it():
    for seed in SEEDS:
        pipeline = Pipeline(3_000, 100, file_rows=20_000, noise=0.3)
        world = World(pipeline, seed=seed).start_cold()
        assert world.run(20)[-1] >= 5 * 20_000


def test_equal_files_do_not_hide_what_an_epoch_costs():
    """All epochs were alike, the fit booked all time on rows, and one file was right for ever."""
    sizer = sizer_of()
    sizer.rows = 20_000
    world = World(Pipeline(600, 300, file_rows=20_000), sizer).start_warm()
    assert world.run(10)[-1] >= 20 * 20_000


@pytest.mark.parametrize("duration_ms", [1_000, 5_700, 19_000])
def test_a_cold_first_epoch_teaches_how_many_rows_are_no_risk(duration_ms: float):
    """If all its time were its rows', the second would take 20 seconds; it never is."""
    sizer = sizer_of()
    first = sizer.shares({"in": waits(ENOUGH)})["in"]
    sizer.learn(first, duration_ms)
    second = sizer.shares({"in": waits(ENOUGH)})["in"]
    assert second == pytest.approx(first * min(4, 4 * CATCH_UP_MS / duration_ms), abs=1)


def test_a_small_first_epoch_leaves_the_size_alone():
    sizer = sizer_of()
    sizer.shares({"in": waits(10)})
    sizer.learn(10, duration_ms=5_000)
    assert sizer.rows == FIRST_ROWS


def test_a_second_epoch_that_is_near_the_bound_is_not_a_reason_for_smaller_ones():
    """The job still warms up: the third epoch is faster, whatever its size."""
    sizer = sizer_of()
    first = sizer.shares({"in": waits(ENOUGH)})["in"]
    for duration_ms in (19_000, 4_800):
        sizer.learn(first, duration_ms)
    assert first < sizer.shares({"in": waits(ENOUGH)})["in"] < 4 * first


def test_a_first_epoch_that_takes_a_minute_was_too_large_whatever_is_cold():
    sizer = sizer_of()
    first = sizer.shares({"in": waits(ENOUGH)})["in"]
    sizer.learn(first, duration_ms=60_000)
    assert sizer.shares({"in": waits(ENOUGH)})["in"] <= first / 3


# Three queries of the race, and a function per row. A JVM that warms up does so by the time that it
# has worked, whatever the size of its epochs: that part of them nobody can save.
WARMING = {
    "stateless": Pipeline(70, 400, file_rows=20_000),
    "sliding windows": Pipeline(350, 200, file_rows=20_000),
    "join of windows": Pipeline(200, 260, file_rows=20_000),
    "a slow function": Pipeline(100, 20, file_rows=20_000),
}


@dataclass
class ColdWorld(World):
    """Work is slower by `slower` at first, and so much less the longer the JVM has worked."""

    slower: float = 9.0
    warms_up_ms: float = 3_000.0
    worked_ms: float = 0.0
    durations_ms: list[float] = field(default_factory=list)

    def duration_ms(self, rows: int) -> float:
        left, took, step = self.pipeline.model_ms(rows), 0.0, 10.0
        while left > 0:
            cold = math.exp(-(self.worked_ms + took) / self.warms_up_ms)
            left -= step / (1 + self.slower * cold)
            took += step
        return took

    def _measured(self, rows: int, *, slower: float = 1.0, extra_ms: float = 0.0) -> None:
        took = self.duration_ms(rows)
        self.worked_ms += took
        self.durations_ms.append(took)
        self.sizer.learn(rows, took + extra_ms)
        self.epochs.append(rows)
        self._arrived -= rows

    def take_all(self) -> float:
        """The time of all epochs but the first, whose size is given."""
        self._measured(self._plan(), extra_ms=3_000)
        while self._arrived > 0:
            self._measured(self._plan())
        return sum(self.durations_ms[1:])


def best_ms(world: ColdWorld, first: int) -> float:
    """Duration with a sizer that knows the duration of every epoch and keeps to the bound."""
    world._measured(first)
    while world._arrived > 0:
        rows = piece = world.pipeline.file_rows
        while rows < world._arrived and world.duration_ms(rows + piece) <= CATCH_UP_MS:
            rows += piece
        world._measured(min(rows, int(world._arrived)))
    return sum(world.durations_ms[1:])


@pytest.mark.parametrize("pipeline", WARMING.values(), ids=WARMING.keys())
@pytest.mark.parametrize("warms_up_ms", [1_000, 3_000, 6_000])
def test_a_backlog_is_read_while_a_jvm_warms_up_as_fast_as_if_all_were_known(
    pipeline: Pipeline, warms_up_ms: float
):
    rows = int(pipeline.rows_per_ms) * 8_000
    world = ColdWorld(pipeline, waiting=rows, warms_up_ms=warms_up_ms)
    ours = world.take_all()
    best = best_ms(ColdWorld(pipeline, waiting=rows, warms_up_ms=warms_up_ms), world.epochs[0])
    assert best / ours >= 0.9
    assert max(world.durations_ms[1:]) <= 3 * CATCH_UP_MS
    if pipeline.rows_per_ms > 100:
        assert len(world.epochs) <= 6, "each one costs more than this model says"


def test_on_a_machine_so_busy_that_one_file_takes_longer_than_the_bound_it_tries_two():
    """Seen on two cores with 30 processes: each epoch took 10 seconds, for 20 rows or for
    20,000."""
    for seed in SEEDS:
        pipeline = Pipeline(9_000, 20, file_rows=20_000, noise=0.3)
        world = World(pipeline, seed=seed)
        world.sizer.rows = 10_000
        world.start_warm()
        assert max(world.run(30)[-10:]) >= 3 * 20_000


def test_rows_that_become_dearer_while_it_grows_cost_one_long_epoch():
    for epoch in (1, 2, 3, 4):
        world = World(Pipeline(200, 260, file_rows=2_000)).start_warm()
        world.run(epoch)
        world.pipeline = replace(world.pipeline, rows_per_ms=260 / 20)
        world.run(20)
        too_long = [n for n in world.epochs[epoch + 1 :] if world.pipeline.model_ms(n) > 15_000]
        assert len(too_long) <= 2
        assert world.share_of_best(world.epochs[-15:]) >= 0.85


@pytest.mark.parametrize("factor", [0.1, 10])
def test_it_follows_when_rows_become_dearer_or_cheaper(factor: float):
    world = World(disturbed(Pipeline(550, 300, file_rows=2_000))).start_cold()
    world.run(30)
    world.pipeline = replace(world.pipeline, rows_per_ms=300 * factor)
    assert world.longest_ms(world.run(40)[5:]) <= 3 * CATCH_UP_MS
    assert world.share_of_best(world.epochs[-30:]) >= 0.85


def test_where_larger_epochs_are_slower_it_stays_with_smaller_ones():
    """Memory runs short: a row costs the more, the more there are."""

    class Thrashing(Pipeline):
        def model_ms(self, rows: int) -> float:
            return super().model_ms(rows) * (1 + (rows / 500_000) ** 2)

    world = World(Thrashing(100, 300)).start_warm()
    best = max(n / world.pipeline.model_ms(n) for n in range(10_000, 1_000_000, 10_000))
    assert world.rate(world.run(80)[20:]) >= 0.8 * best


# --- bounds --------------------------------------------------------------------------------------


def test_the_first_epoch_is_small_in_rows_and_in_bytes():
    assert sizer_of().shares({"in": waits(ENOUGH, row_bytes=10)})["in"] == FIRST_ROWS
    assert sizer_of().shares({"in": waits(10**6, row_bytes=10_000)})["in"] == FIRST_BYTES // 10_000


def test_memory_bounds_an_epoch():
    world = World(Pipeline(550, 300), sizer_of(bytes_max=10**9), row_bytes=10_000).start_warm()
    assert max(world.run(60)) == 10**9 // 10_000


def test_of_a_source_that_does_not_say_how_large_its_rows_are_they_are_taken_for_small_ones():
    sizer = sizer_of(bytes_max=2_000_000)
    assert sizer.shares({"in": Lag(ENOUGH, {})})["in"] == 10_000


@pytest.mark.parametrize("rows_max", [1, 20])
def test_a_job_s_own_limit_is_kept_and_says_nothing_of_what_else_is_possible(rows_max: int):
    sizer = sizer_of(source_rows_max=rows_max)
    for _ in range(30):
        assert sizer.shares({"a": waits(400), "b": waits(30)}) == {"a": rows_max, "b": rows_max}
        sizer.learn(2 * rows_max, duration_ms=4_000)


def test_one_piece_that_takes_longer_than_the_bound_is_taken_alone():
    world = World(Pipeline(100, 100, file_rows=2_000_000)).start_cold()
    assert set(world.run(40)) == {2_000_000}


# --- without a backlog ---------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.001, 0.1, 0.3])
@pytest.mark.parametrize("pipeline", [PIPELINES["three stages"], Pipeline(70, 300)])
def test_a_job_that_keeps_up_takes_what_is_there(pipeline: Pipeline, load: float):
    world = World(pipeline, waiting=1_000, arrive_per_ms=load * pipeline.rows_per_ms)
    world.start_cold()
    world.run(40)
    for _ in range(40):
        came = int(world._arrived)
        assert world.run(1) == [came] or came == 0


@pytest.mark.parametrize("load", [0.2, 0.3])
def test_it_keeps_up_within_its_target(load: float):
    world = World(replace(Pipeline(70, 300), noise=0.3), arrive_per_ms=load * 300, waiting=0)
    world.run(60)
    assert world.longest_ms(world.epochs[-40:]) <= TARGET_MS


def test_a_load_that_small_epochs_cannot_carry_is_carried_by_larger_ones():
    """Half of an epoch within the target would be overhead. At 0.8 of the best rate the backlog
    grows until epochs are large enough, and stays there."""
    world = World(PIPELINES["three stages"], waiting=0, arrive_per_ms=0.8 * 300)
    world.run(200)
    assert world._arrived <= 2 * CATCH_UP_MS * 300
    assert world.longest_ms(world.epochs[-50:]) <= 1.5 * CATCH_UP_MS


def test_after_catching_up_epochs_are_short_again():
    world = World(PIPELINES["three stages"], waiting=10_000_000, arrive_per_ms=30)
    world.start_cold()
    while world._arrived > 100_000:
        world.run(1)
    world.run(5)
    assert world.longest_ms(world.run(40)) <= 2 * 550


def test_epochs_of_a_trickle_leave_the_size_for_a_backlog_alone():
    world = World(PIPELINES["three stages"], waiting=0, arrive_per_ms=0.02)
    world.run(50)
    world._arrived += 10_000_000
    assert world.run(2)[-1] >= FIRST_ROWS
    assert world.share_of_best(world.run(12)) >= 0.9


# --- several sources -----------------------------------------------------------------------------


def test_where_all_fits_in_each_source_may_give_all_it_has():
    """The backlog is an estimate: the last file must not stay behind for a row."""
    shares = sizer_of().shares({"a": waits(10), "b": waits(20_000), "c": Lag(0, {})})
    assert shares == dict.fromkeys("abc", FIRST_ROWS)


@pytest.mark.parametrize("rows_per_offset", [0.2, 0.01, 0.000_1])
def test_a_source_with_gaps_is_not_asked_for_fewer_and_fewer_rows(rows_per_offset: float):
    """As `from_batches` with a `limit_offset` that counts offsets: epochs became ever smaller."""
    sizer, asked = sizer_of(), []
    pipeline = Pipeline(500, 100)
    for _ in range(40):
        asked.append(sizer.shares({"in": waits(ENOUGH)})["in"])
        rows = max(1, round(asked[-1] * rows_per_offset))
        sizer.learn(rows, pipeline.model_ms(rows))
    assert min(asked) >= FIRST_ROWS


def test_of_two_backlogs_the_same_part_is_taken_so_that_their_times_stay_together():
    world = {"orders": waits(10_000_000), "clicks": waits(30_000_000)}
    shares = sizer_of().shares(world)
    assert sum(shares.values()) == pytest.approx(FIRST_ROWS, abs=2)
    assert 2 <= shares["clicks"] / shares["orders"] <= 3.1


def test_a_source_with_little_need_not_wait_for_the_backlog_of_another():
    shares = sizer_of().shares({"live": waits(1_000), "history": waits(100_000_000)})
    assert shares["live"] >= 1_000
    assert shares["live"] + shares["history"] <= FIRST_ROWS


def two_sources(cost: Callable[[int, int], float]) -> tuple[list[int], list[int]]:
    """Rows of each epoch while two sources of 30 and 10 million rows are read."""
    sizer, left = sizer_of(), {"a": 30_000_000, "b": 10_000_000}
    taken: tuple[list[int], list[int]] = ([], [])
    while any(left.values()):
        shares = sizer.shares({name: waits(rows) for name, rows in left.items()})
        rows = {name: min(left[name], shares[name]) for name in left}
        sizer.learn(sum(rows.values()), cost(rows["a"], rows["b"]))
        for name, series in zip("ab", taken, strict=True):
            left[name] -= rows[name]
            series.append(rows[name])
    return taken


def test_two_sources_share_one_epoch_and_its_bound():
    def cost(a: int, b: int) -> float:
        return 550 + a / 300 + b / 200

    epochs = list(zip(*two_sources(cost), strict=True))
    assert max(cost(*one) for one in epochs) <= 1.5 * CATCH_UP_MS
    in_all = sum(cost(*one) for one in epochs)
    assert in_all <= (30_000_000 / 300 + 10_000_000 / 200) / 0.85
