"""Runs that stand by, on a real store and a real Dagster instance; no Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest

from dagster_jet import Jet, Pipeline, sinks, sources
from dagster_jet.execution.events import StandingBy
from dagster_jet.orchestration import metadata_keys as keys
from dagster_jet.orchestration.asset_reports import AssetReports, LastReport
from dagster_jet.orchestration.launches import Launches, is_launched_by_hand
from dagster_jet.orchestration.materialization import ReportedAsset
from dagster_jet.orchestration.retirement import Retirement
from dagster_jet.orchestration.run_notes import RunNotes
from dagster_jet.orchestration.run_worker import RunWorker
from dagster_jet.orchestration.sensor import supervise
from dagster_jet.orchestration.sightings import BootTime
from dagster_jet.orchestration.supervisor import RestartPolicy
from dagster_jet.orchestration.takeover import Takeover
from dagster_jet.ownership.lease import new_lease
from dagster_jet.ownership.record_keeper import record_register
from dagster_jet.ownership.succession import Succession, SuccessionWatch
from dagster_jet.ownership.supervision import Intent, read_supervision, set_intent
from dagster_jet.snapshot.record import ExecutionRecord, JobStatus, SnapshotRef, StopCause

POLICY = RestartPolicy()
DEAD_PID = 2**22 + 1


def shop(large: int) -> Pipeline:
    p = Pipeline("shop")
    rows = p.read_from(sources.items([], schema="amount int"), name="orders")
    rows.filter(f"amount > {large}").write_to(sinks.files("/o", format="json"), name="out")
    return p


class Supervisor:
    """Ticks of one sensor, ten seconds apart; its definitions may be loaded again."""

    def __init__(self, instance: dg.DagsterInstance, jet: Jet) -> None:
        self.instance, self.jet, self.pipeline = instance, jet, shop(1)
        self.cursor: str | None = None
        self.now_ms = 0
        self.standby = True

    def tick(self) -> tuple[list[dg.RunRequest], str]:
        """The requests, and what was said if there are none."""
        self.now_ms += 10_000
        with dg.build_sensor_context(instance=self.instance, cursor=self.cursor) as context:
            result = supervise(
                context,
                self.jet,
                Launches("shop", "shop_job"),
                POLICY,
                {"team": "sales"},
                clock=lambda: BootTime("this boot", self.now_ms),
                retirement=Retirement(pipeline=self.pipeline),
                standby=self.standby,
            )
        self.cursor = result.cursor
        said = result.skip_reason.skip_message if result.skip_reason is not None else None
        return list(result.run_requests or []), said or ""

    def requests(self, run_key: str) -> dg.RunRequest:
        (request,), _ = self.tick()
        assert request.run_key == run_key
        return request

    def says(self, text: str) -> None:
        requests, said = self.tick()
        assert requests == [] and text in said, said

    def launch(self, request: dg.RunRequest) -> str:
        """Creates a run of a request and starts it, as the daemon does."""
        run = self.instance.create_run_for_job(_job(), tags=dict(request.tags))
        started = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, run.job_name)
        self.instance.report_dagster_event(started, run_id=run.run_id)
        return run.run_id

    def stands_by(self, run_id: str, pipeline: Pipeline) -> None:
        """Writes the run's tag that says that its Spark is warm."""
        worker = replace(
            RunWorker.here(run_id), stands_by=True, definition=pipeline.graph.definition()
        )
        self.instance.add_run_tags(run_id, {keys.TAG_WORKER: worker.to_tag()})


@pytest.fixture
def jet(tmp_path: Path) -> Iterator[Jet]:
    with Jet(store=[f"file://{tmp_path}/store"], backup_count=0) as jet:
        yield jet


@pytest.fixture
def supervisor(jet: Jet) -> Iterator[Supervisor]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Supervisor(instance, jet)


def write(
    jet: Jet, execution_id: int, run_id: str, status: JobStatus = JobStatus.RUNNING, pid: int = 0
) -> None:
    lease = new_lease("o", 3_600_000, run_id)
    record = ExecutionRecord(
        "shop",
        execution_id,
        status,
        lease=replace(lease, pid=pid or lease.pid) if status.is_live else None,
        snapshots=(SnapshotRef(5, 5, execution_id, "manifest/5", 0, 0, 0, committed=True),),
    )
    register = jet.store.register(record_register("shop"))
    register.claim(execution_id, "test").write(record.to_bytes())


def test_one_is_kept_beside_the_run_that_has_the_job(supervisor: Supervisor, jet: Jet) -> None:
    write(jet, 4, "owner")
    request = supervisor.requests("shop:standby:1")
    assert request.tags[keys.TAG_KIND] == "standby" and request.tags["team"] == "sales"
    assert keys.TAG_GENERATION not in request.tags, "it is no attempt at the job"
    supervisor.says("run shop:standby:1 was requested to stand by")
    first = supervisor.launch(request)
    run = supervisor.instance.get_run_by_id(first)
    assert run is not None
    launches = Launches("shop", "shop_job").of(jet.store)
    assert not is_launched_by_hand(supervisor.instance, run, launches.owner)
    unended = launches.unended(supervisor.instance)
    assert unended.unfinished == () and unended.may_report == ()
    supervisor.says(f"run {first} is about to stand by")
    supervisor.stands_by(first, supervisor.pipeline)
    supervisor.says(f"run {first} stands by")

    write(jet, 4, "owner", pid=DEAD_PID)
    supervisor.says(f"run {first}, which stands by, takes over")
    write(jet, 5, first)
    taken = replace(RunWorker.here(first), execution_id=5, took_over_at_s=1.0)
    kind = {keys.TAG_KIND: keys.KIND_STREAM, keys.TAG_WORKER: taken.to_tag()}
    supervisor.instance.add_run_tags(first, kind)
    second = supervisor.launch(supervisor.requests("shop:standby:2"))
    supervisor.stands_by(second, supervisor.pipeline)
    supervisor.says(f"run {second} stands by")
    supervision = read_supervision(jet.store, "shop")
    assert supervision is not None
    assert (supervision.generation, supervision.attempts) == (0, 0), "nothing was restarted"


def test_it_is_replaced_when_definitions_are_loaded_again(supervisor: Supervisor, jet: Jet) -> None:
    write(jet, 4, "owner")
    first = supervisor.launch(supervisor.requests("shop:standby:1"))
    supervisor.stands_by(first, supervisor.pipeline)
    supervisor.says(f"run {first} stands by")
    supervisor.pipeline = shop(2)
    request = supervisor.requests("shop:standby:2")
    supervision = read_supervision(jet.store, "shop")
    assert supervision is not None and supervision.replaced_standbys == (first,)
    second = supervisor.launch(request)
    supervisor.stands_by(second, shop(3))  # its process has loaded yet another one
    run = supervisor.instance.get_run_by_id(first)
    assert run is not None
    supervisor.instance.report_run_canceled(run)
    supervisor.says(f"run {second} stands by")


def test_a_store_that_is_older_than_dagster_gives_no_number_twice(
    supervisor: Supervisor, jet: Jet
) -> None:
    """Failed before: Dagster launched none under a number that it knew."""
    write(jet, 4, "owner")
    request = supervisor.requests("shop:standby:1")
    for number in ("1", "7"):
        tags = {**request.tags, keys.TAG_STANDBY: number}
        run_id = supervisor.launch(dg.RunRequest(tags=tags))
        run = supervisor.instance.get_run_by_id(run_id)
        assert run is not None
        supervisor.instance.report_run_failed(run)
    supervisor.says("1 in a row soon ended")
    supervisor.requests("shop:standby:8")


def test_it_is_replaced_when_it_has_died_and_soon_less_often(
    supervisor: Supervisor, jet: Jet
) -> None:
    write(jet, 4, "owner")
    for number, pause_ticks in ((1, 1), (2, 2), (3, 4)):
        run_id = supervisor.launch(supervisor.requests(f"shop:standby:{number}"))
        run = supervisor.instance.get_run_by_id(run_id)
        assert run is not None
        supervisor.instance.report_run_failed(run)
        for _ in range(pause_ticks):
            supervisor.says(f"{number} in a row soon ended")


def test_it_ends_when_the_supervisor_keeps_none_any_more(supervisor: Supervisor, jet: Jet) -> None:
    """The one that a person has launched goes on."""
    write(jet, 4, "owner")
    asked = supervisor.launch(supervisor.requests("shop:standby:1"))
    by_hand = supervisor.launch(dg.RunRequest(tags={keys.TAG_KIND: keys.KIND_STANDBY,
                                                    keys.TAG_PIPELINE: "shop"}))  # fmt: skip
    supervisor.stands_by(asked, supervisor.pipeline)
    supervisor.standby = False
    supervisor.says(f"run {asked} is asked to end: no standby is wanted")
    supervision = read_supervision(jet.store, "shop")
    assert supervision is not None and supervision.replaced_standbys == (asked,)
    record = ExecutionRecord("shop", 4, JobStatus.NOT_RUNNING, cause=StopCause.SHUTDOWN)
    assert SuccessionWatch(run_id=asked).sees(record, supervision) is Succession.ENDS
    assert SuccessionWatch(run_id=by_hand).sees(record, supervision) is Succession.TAKES_OVER
    write(jet, 4, "owner", pid=DEAD_PID)
    supervisor.requests("shop:1")  # nobody waits for the one that ends


def test_none_is_requested_for_a_job_that_is_wanted_down(supervisor: Supervisor, jet: Jet) -> None:
    write(jet, 4, "owner")
    set_intent(jet.store, "shop", Intent.PAUSED)
    supervisor.says("adopt")
    write(jet, 4, "owner", JobStatus.NOT_RUNNING)
    supervisor.says("paused")
    write(jet, 4, "owner", JobStatus.COMPLETED)
    supervisor.says("done")


def test_a_run_that_takes_over_knows_the_last_reports_of_the_run_before_it(
    jet: Jet, tmp_path: Path
) -> None:
    """Failed before: both materialized the snapshot of the handover."""
    # Another thread writes: an instance in memory locks out who reads meanwhile.
    instance = dg.DagsterInstance.local_temp(str(tmp_path))
    owner = instance.create_run_for_job(_job())
    here = instance.create_run_for_job(_job())
    asset = ReportedAsset("out", dg.AssetKey("out"), None, is_sink=True, has_state=False)
    reports = AssetReports([asset])
    notes = RunNotes(SimpleNamespace(instance=instance, run=here), jet.store, "shop", "new")
    takeover = Takeover(notes, reports)
    takeover.begins()
    assert reports.last == {}, "it did not stand by"
    takeover.stands_by(StandingBy("shop", 4, owner.run_id))
    run = instance.get_run_by_id(here.run_id)
    assert run is not None
    worker = RunWorker.from_tag(run.tags[keys.TAG_WORKER], here.run_id)
    assert worker is not None and (worker.stands_by, worker.definition) == (True, "new")

    def report_and_end() -> None:
        facts = {keys.ROWS_IN: 7, keys.DAGSTER_ROW_COUNT: 7}
        instance.report_runless_asset_event(
            dg.AssetMaterialization("out", metadata=facts, tags={keys.TAG_DATA_VERSION: "41"})
        )
        instance.report_run_failed(owner)

    threading.Timer(0.5, report_and_end).start()
    takeover.begins()
    assert reports.last == {"out": LastReport("41", (7, 7))}


def _job() -> dg.JobDefinition:
    @dg.job
    def shop_job() -> None: ...

    return shop_job
