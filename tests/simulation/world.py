"""One history: virtual time, processes that die, freeze and wake, and the end of it all.

Everything that happens is a step in one queue, drawn by one `random.Random(seed)`. A step belongs
to a process, and dies with it, or to nobody: a message in flight, a task on an executor.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from greenlet import getcurrent

from dagster_jet.execution.epoch_planner import EpochPlanner
from dagster_jet.execution.loop import Loop
from dagster_jet.execution.sink_committer import SinkCommitter
from dagster_jet.execution.snapshot_driver import SnapshotDriver
from dagster_jet.execution.source_journals import SourceJournals
from dagster_jet.exports.exporting import newest_committed
from dagster_jet.snapshot.coordinator import Coordinator
from dagster_jet.snapshot.job_state import CoordinatorConfig
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef

from .chunks import ChunkMap, Exported
from .deployment import AS_EVER, REOPENABLE, SEALED, Deployment, changed
from .driver import Driver
from .oracle import Oracle, Violation
from .promises import Promises
from .register import Register
from .scenario import Mishap, Odds, Point, Scenario
from .sinks import Sink

MOST_STEPS = 60_000
CALM_AFTER_STEPS = 6_000
"""Number of steps after which nothing goes wrong any more, so that every history ends."""

Action = Callable[[], object]


@dataclass(frozen=True)
class Cast:
    """Classes of the simulation; a mutant replaces one of them."""

    coordinator: Callable[[CoordinatorConfig], Coordinator] = Coordinator
    driver: type[Driver] = Driver
    loop: type[Loop] = Loop
    planner: type[EpochPlanner] = EpochPlanner
    committer: type[SinkCommitter] = SinkCommitter
    snapshots: type[SnapshotDriver] = SnapshotDriver
    register: type[Register] = Register
    journals: type[SourceJournals] = SourceJournals
    oracle: type[Oracle] = Oracle


@dataclass
class Process:
    """An operating system process with one execution after the other in it."""

    name: str
    deployment: Deployment
    dead: bool = False
    frozen: bool = False
    driver: Driver | None = None
    parked: list[tuple[Point | None, Action]] = field(default_factory=list)
    """Steps that were due while it was frozen."""

    @property
    def runs(self) -> bool:
        return not (self.dead or self.frozen)


class World:
    def __init__(
        self, seed: int, cast: Cast | None = None, scenario: Scenario | None = None
    ) -> None:
        self.seed = seed
        self.hub = getcurrent()
        """Greenlet of the scheduler; fibers give control back to it."""
        self.cast = cast or Cast()
        self.rng = random.Random(seed)
        self.users = random.Random(f"users of {seed}")
        """Random numbers for cancels: apart from `rng`, so that everything else happens as without
        them."""
        self.has_users = self.users.random() < 0.2
        self.queues = random.Random(f"queues of {seed}")
        """Random numbers for sources that hand out a few rows at a time; apart from `rng`,
        likewise."""
        self.keepers = random.Random(f"keepers of {seed}")
        """Random numbers for the places that sinks write to."""
        self.exporters = random.Random(f"exporters of {seed}")
        self.scenario = scenario or Scenario.draw(self.rng)
        if seed % 10 == 9 and scenario is None:  # by the seed: all others play as they did
            self.scenario = replace(self.scenario, writers=12)
        if seed % 10 == 8 and scenario is None:
            self.scenario = replace(self.scenario, holds_back=True)
        self.odds = self.scenario.odds
        self.oracle = self.cast.oracle(self.scenario)
        self.register = self.cast.register(self.rng, self._on_record)
        self.chunks = ChunkMap()
        self.exports: dict[str, Exported] = {}
        self.sinks: dict[str, Sink] = {}
        """Sinks by place."""
        self.promises = Promises(self.oracle.on_kept)
        self.oracle.watch(self.chunks, self.sinks, self.promises)
        self.processes: list[Process] = []
        self._story: list[tuple[int, str, str, object]] = []
        self.seen: Counter[str] = Counter()
        """Events of this history, to check that no kind of event is left untried."""
        self.now_ms = 0
        self._queue: list[tuple[int, int, Process | None, Point | None, Action]] = []
        self._steps = 0
        self._mishaps = list(self.scenario.mishaps)
        self._passings = 0
        self._start_scheduled = False
        self._deaths_in_recovery = 0
        self._full_until_ms = 0
        self._must_come_back = False
        """A start was refused, and told to bring back the pipeline of the newest snapshot."""
        self._rewinds_left = 2 if self.scenario.rewinds else 0

    # --- time -----------------------------------------------------------------------------------

    def after(
        self, process: Process | None, action: Action, point: Point | None = None, at_least: int = 0
    ) -> None:
        """Schedules a step after a random delay, long ones included."""
        delay = at_least + self.rng.randint(1, 12)
        if self.chance("slow"):
            delay += self.rng.randint(50, 1500)
        self._steps += 1
        heapq.heappush(self._queue, (self.now_ms + delay, self._steps, process, point, action))

    def chance(self, odds_name: str) -> bool:
        odds: float = getattr(self.odds, odds_name)
        return odds > 0 and self.rng.random() < odds

    def _step(self) -> None:
        self.now_ms, _, process, point, action = heapq.heappop(self._queue)
        if process is not None:
            if not process.runs:
                process.parked.append((point, action))
                return
            if point is not None:
                self.seen[str(point)] += 1
                self._pass(process, point)
                if not process.runs:
                    process.parked.append((None, action))
                    return
        action()

    def tell(self, who: str, what: str, thing: object = None) -> None:
        self._story.append((self.now_ms, who, what, thing))

    @property
    def story(self) -> list[str]:
        """Events of the history, a line each."""
        return [
            f"{at_ms:>7} ms  {who:<9} {what}{' ' + _brief(thing) if thing is not None else ''}"
            for at_ms, who, what, thing in self._story
        ]

    # --- what happens to processes --------------------------------------------------------------

    def start_process(self) -> None:
        self._start_scheduled = False
        process = Process(f"p{len(self.processes) + 1}", self._deploy())
        self._perhaps_set_back(process.deployment)
        self.processes.append(process)
        self.tell(process.name, f"starts {process.deployment}")
        self.begin_execution(process)

    @property
    def is_calm(self) -> bool:
        return self.odds == Odds().scaled(0)

    def _deploy(self) -> Deployment:
        """The pipeline as it is at this start."""
        scenario, record = self.scenario, self.register.read()
        as_ever = Deployment(
            AS_EVER,
            in_two_phases=scenario.in_two_phases,
            kind=SEALED if scenario.sealed else REOPENABLE,
        )
        if self._must_come_back and record is not None and record.snapshot is not None:
            self._must_come_back = False
            before = self.oracle.deployments[record.snapshot.execution_id]
            return replace(before, initial_snapshot=None)
        if self.is_calm or self._is_completed():
            return as_ever
        deployment = as_ever
        if scenario.changes and self.rng.random() < 0.6:
            counts = self.rng.random() < 0.8
            deployment = replace(as_ever, sinks=changed(self.rng), counts=counts)
        if record is not None and record.snapshots and self._rewinds_left > 0:
            if self.rng.random() < 0.4:
                self._rewinds_left -= 1
                if self.exports and self.rng.random() < 0.35:
                    return replace(deployment, initial_snapshot=self.rng.choice([*self.exports]))
                ref = self.rng.choice(record.snapshots)
                deployment = replace(deployment, initial_snapshot=ref.snapshot_id)
                if scenario.damages and self.rng.random() < 0.3:
                    self._damage(record, ref)
        return deployment

    def refuse(self, driver: Driver) -> None:
        """The start of `driver` is refused; whoever starts next does what the cure says."""
        if driver.owns_the_job:
            self._must_come_back = True

    def store_is_full(self) -> bool:
        """Returns whether the store is full; it stays so for a while."""
        if self.now_ms >= self._full_until_ms and self.chance("store_fills"):
            self.seen["the store was full for a while"] += 1
            self._full_until_ms = self.now_ms + self.rng.randint(100, 3000)
        return self.now_ms < self._full_until_ms

    def sink_at(self, place: str) -> Sink:
        return self.sinks.setdefault(place, Sink(place, self.oracle.on_commit))

    def _perhaps_damage(self, record: ExecutionRecord) -> None:
        """An older snapshot, but none that somebody may have restored already to go back to it."""
        wanted = {p.deployment.initial_snapshot for p in self.processes if not p.dead}
        older = [ref for ref in record.snapshots[1:] if ref.snapshot_id not in wanted]
        if self.scenario.damages and older and self.chance("snapshot_damaged"):
            self._damage(record, self.rng.choice(older))

    def _damage(self, record: ExecutionRecord, ref: SnapshotRef) -> None:
        """An older retained snapshot: its manifest, or something that only it needs."""
        if ref is record.snapshot or ref.manifest_name in self.oracle.damaged:
            return
        manifest = self.chunks.read_manifest(ref.manifest_name)
        needed = self.oracle.needed_by([r for r in record.snapshots if r is not ref])
        own = sorted((v, n) for v, names in manifest.chunk_sets().items() for n in names)
        own = [key for key in own if key not in needed]
        self.oracle.damaged.add(ref.manifest_name)
        if own and self.rng.random() < 0.3:
            self.tell("", f"*** a chunk set of snapshot {ref.snapshot_id} is lost")
            self.chunks.chunk_sets.pop(self.rng.choice(own), None)
        elif self.rng.random() < 0.5:
            self.tell("", f"*** the manifest of snapshot {ref.snapshot_id} is lost")
            del self.chunks.manifests[ref.manifest_name]
        else:
            self.tell("", f"*** the manifest of snapshot {ref.snapshot_id} is damaged")
            by, data = self.chunks.manifests[ref.manifest_name]
            self.chunks.manifests[ref.manifest_name] = (by, data[:-1])

    def _perhaps_set_back(self, deployment: Deployment) -> None:
        """A place is found empty, or older: one whose sink the pipeline has had since."""
        for sink in self.sinks.values():
            sink.bring_back()
        record = self.register.read()
        is_alone = all(p.dead or p.driver is None for p in self.processes)
        if self.is_calm or not is_alone or record is None or record.snapshot is None:
            return
        if not record.snapshot.committed or deployment.initial_snapshot is not None:
            return
        there = self.oracle.output_there(deployment)
        is_imported = self.seen["an export was brought in"] > 0  # it says nothing of its places
        if not there or is_imported or self.keepers.random() >= 0.1:
            return
        place = self.keepers.choice(sorted(there))
        newest, *older = there[place]
        since = self.keepers.choice([newest, *older]).epoch_id
        gone = {one.target for one in there[place] if one.epoch_id >= since}
        self.sinks[place].set_back(gone)
        self.tell("", f"*** {place} is as it was before epoch {since}")

    def begin_execution(self, process: Process) -> None:
        process.driver = self.cast.driver(self, process)
        process.driver.begin()

    def ensure_somebody_runs(self) -> None:
        """The supervisor: starts the job again when nobody drives it."""
        if self._start_scheduled or any(p.runs and p.driver for p in self.processes):
            return
        if self._is_completed():
            return
        self._start_scheduled = True
        self.after(None, self.start_process, at_least=20)

    def _is_completed(self) -> bool:
        record = self.register.read()
        return record is not None and record.status is JobStatus.COMPLETED

    def end_process(self, process: Process) -> None:
        """The driver is done and wants no restart."""
        process.driver = None
        self.ensure_somebody_runs()

    def _pass(self, process: Process, point: Point) -> None:
        """A process passes a point; perhaps not unharmed."""
        if self._mishaps and self._mishaps[0].point == point:
            if self._passings >= self._mishaps[0].skip:
                self._passings = 0
                self._strike(process, self._mishaps.pop(0))
                return
            self._passings += 1
        if self.chance("crash_anywhere"):
            self._strike(process, Mishap("crash", point, 0))

    def _strike(self, process: Process, mishap: Mishap) -> None:
        self.seen[f"{mishap.kind} {mishap.point}"] += 1
        self.tell(process.name, f"*** {mishap.kind} {mishap.point}")
        if mishap.kind == "crash":
            self._note_depth(process)
            process.dead = True
        elif mishap.kind == "freeze":
            process.frozen = True
            self.after(None, lambda: self._wake(process), at_least=self.rng.randint(100, 4000))
        else:
            self.after(None, self.start_process)
            return
        self.ensure_somebody_runs()

    def _note_depth(self, process: Process) -> None:
        driver = process.driver
        recovering = driver is not None and not driver.was_ready
        self._deaths_in_recovery = self._deaths_in_recovery + 1 if recovering else 0
        if self._deaths_in_recovery >= 3:
            self.seen["three deaths in recovery, one after the other"] += 1

    def _wake(self, process: Process) -> None:
        self.seen["a frozen process woke"] += 1
        if process.driver is not None and process.driver.execution_id < self.register.promised:
            self.seen["a frozen process woke to find a successor"] += 1
        self.tell(process.name, "*** wakes up")
        process.frozen = False
        parked, process.parked = process.parked, []
        for point, action in parked:
            self.after(process, action, point)

    def _on_record(self, record: ExecutionRecord) -> None:
        newest = record.snapshot
        self.tell(
            "record",
            f":= execution {record.execution_id}, {record.status.value}, snapshot "
            + (f"{newest.snapshot_id}{'' if newest.committed else ' (open)'}" if newest else "-"),
        )
        self.oracle.on_record(record)
        self._perhaps_export(record)
        self._perhaps_damage(record)

    def _perhaps_export(self, record: ExecutionRecord) -> None:
        """Perhaps exports the newest committed snapshot."""
        ref = newest_committed(record.snapshots)
        if not self.scenario.rewinds or ref is None or ref.manifest_name in self.oracle.damaged:
            return
        if self.exporters.random() < 0.15:
            name = f"kept-{len(self.exports) + 1}"
            self.exports[name] = self.chunks.exported(self.chunks.read_manifest(ref.manifest_name))
            self.oracle.on_exported(name, ref)
            self.tell("", f"*** snapshot {ref.snapshot_id} is exported as {name}")

    # --- the whole history ----------------------------------------------------------------------

    def run(self) -> None:
        """Plays the history to its end.

        Raises:
            Violation: the protocol (or a mutant of it) broke a promise.
        """
        self._start_scheduled = True
        self.after(None, self.start_process)
        self._run_until_quiet()
        while not self._is_completed():
            if any(p.runs and p.driver for p in self.processes):
                raise Violation("an execution is alive, and nothing moves any more")
            # A supervisor looks again and again: a claim may have landed after its last look.
            self.ensure_somebody_runs()
            self._run_until_quiet()
        self.odds, self._mishaps = Odds().scaled(0), []
        self.tell("", "the job is complete, everybody is gone; two more starts, undisturbed")
        for _ in range(2):
            # What a damaged snapshot may have needed goes at the start after it was dropped.
            self.start_process()
            self._run_until_quiet()
        self.oracle.judge(self.register)

    def _run_until_quiet(self) -> None:
        while self._queue:
            self._step()
            if self._steps > CALM_AFTER_STEPS:
                self.odds, self._mishaps = Odds().scaled(0), []
            if self._steps > MOST_STEPS:
                raise Violation("the history does not end")


def play(seed: int, cast: Cast | None = None) -> World:
    """Plays the history of `seed`; a failure carries the story and how to see it again."""
    world = World(seed, cast)
    try:
        world.run()
    except Violation as violation:
        raise Violation(f"{violation}\n\n{narrate(world)}") from violation
    except Exception as error:  # the coordinator must survive whatever comes, in any order
        raise Violation(f"{type(error).__name__}: {error}\n\n{narrate(world)}") from error
    return world


def narrate(world: World) -> str:
    return "\n".join(
        [
            f"seed {world.seed}: {world.scenario}",
            *world.story,
            "",
            f"again: JET_SIMULATION_SEED={world.seed} "
            "python -m pytest tests/simulation/test_histories.py -k one_history",
        ]
    )


def _brief(thing: object) -> str:
    """A command or an event in one line: scalars in full, collections by their length."""
    parts = []
    for name, value in vars(thing).items():
        if isinstance(value, tuple | dict):
            parts.append(f"{len(value)} {name}")
        elif isinstance(value, int | str | None):
            parts.append(f"{name}={getattr(value, 'value', value)}")
    return f"{type(thing).__name__}({', '.join(parts)})"
