"""Jobs of other engines: what is read, which events Dagster gets, when a check is red."""

from __future__ import annotations

import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import dagster as dg
import pytest
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.testing.utils import create_defs_folder_sandbox

from dagster_jet import ObservedStreamsComponent
from dagster_jet.errors import SourceError, SourceUnavailableError
from dagster_jet.orchestration.outside.consumer_group import group_reading
from dagster_jet.orchestration.outside.flink_job import FlinkJob, flink_reading
from dagster_jet.orchestration.outside.observation_tick import (
    GREEN_AGAIN_MS,
    Shown,
    cursor_of,
    default_interval_ms,
    reports,
    shown_in,
)
from dagster_jet.orchestration.outside.parallel_reads import ParallelReads
from dagster_jet.orchestration.outside.reading import Reading, StreamLimits, verdicts
from dagster_jet.orchestration.outside.streaming_query import Checkpoint, LoggedEpoch

pytestmark = pytest.mark.filterwarnings("ignore::dagster_shared.utils.warnings.BetaWarning")

KEY = dg.AssetKey("payments")
MINUTE = 60_000
EVERY = 15 * MINUTE
LIMITS = StreamLimits(10 * MINUTE, lag=100, watermark_lag_ms=60 * MINUTE)
NOW = 1_795_747_800_000
# Recorded from Flink 2.3.0: a SQL job that reads Kafka in event time. Metrics are left out.
RECORDED: dict[str, Any] = json.loads(
    Path(__file__).with_name("flink-2.3-rest.json").read_text(encoding="utf-8")
)
(JOB,) = RECORDED["/jobs/overview"]["jobs"]


def well(reading: Reading, now_ms: int = NOW) -> dict[str, bool]:
    return {name: health.is_well for name, health in verdicts(reading, LIMITS, now_ms).items()}


def test_a_job_is_alive_while_it_commits_or_has_nothing_to_read() -> None:
    recent = Reading("7", "RUNNING", committed_at_ms=NOW - MINUTE)
    assert well(recent)["alive"]
    assert not well(recent, NOW + 10 * MINUTE)["alive"]
    assert well(Reading("7", "up", is_idle=True, committed_at_ms=1))["alive"]
    assert not well(Reading("7", "FAILED", is_up=False, committed_at_ms=NOW))["alive"]
    assert well(Reading("7", "RUNNING"))["alive"], "an engine that shows no commits"


def test_lag_and_watermark_have_limits_of_their_own() -> None:
    reading = Reading("7", "RUNNING", lag=100, watermark_ms=NOW - 60 * MINUTE)
    assert well(reading) == {"alive": True, "lag": True, "watermark_lag": True}
    beyond = Reading("7", "RUNNING", lag=101, watermark_ms=NOW - 60 * MINUTE - 1)
    assert well(beyond) == {"alive": True, "lag": False, "watermark_lag": False}
    assert not well(Reading("7", "RUNNING"))["lag"], "a limit on what nobody shows"
    assert verdicts(beyond, StreamLimits(MINUTE), NOW).keys() == {"alive"}


class Daemon:
    """Ticks one stream with a clock of its own; the cursor goes through its text."""

    def __init__(self) -> None:
        self.cursor: str | None = None
        self.now_ms = NOW

    def tick(self, read: Reading | str, after_ms: int = 30_000, every_ms: int = EVERY) -> list[str]:
        """The events: "observed", and each check with its verdict."""
        self.now_ms += after_ms
        before = shown_in(self.cursor).get("payments", Shown())
        events, after = reports(KEY, read, StreamLimits(10 * MINUTE), before, self.now_ms, every_ms)
        self.cursor = cursor_of({"payments": after})
        return [
            f"{event.check_name} {event.passed}"
            if isinstance(event, dg.AssetCheckEvaluation)
            else "observed"
            for event in events
        ]


def test_the_first_tick_is_green_and_what_follows_waits() -> None:
    daemon = Daemon()
    assert daemon.tick(Reading("7", "RUNNING", committed_at_ms=NOW)) == ["observed", "alive True"]
    assert daemon.tick(Reading("8", "RUNNING", committed_at_ms=NOW)) == []
    assert daemon.tick(Reading("9", "RUNNING", committed_at_ms=NOW + EVERY), EVERY) == ["observed"]
    same = Reading("9", "RUNNING", committed_at_ms=NOW + EVERY, is_idle=True)
    assert daemon.tick(same, EVERY) == [], "an idle stream adds nothing"


def test_red_is_immediate_repeated_seldom_and_green_again_after_a_while() -> None:
    daemon = Daemon()
    up = Reading("", "RUNNING")
    assert daemon.tick(up) == ["observed", "alive True"]
    assert daemon.tick("connection refused") == ["alive False"]
    assert daemon.tick("connection refused") == []
    assert daemon.tick(up) == [], "a job that comes and goes does not fill the log"
    assert daemon.tick("connection refused", EVERY) == ["alive False"], "with a new reason"
    assert daemon.tick(up, GREEN_AGAIN_MS) == ["observed", "alive True"]


OBSERVATION_KB, CHECK_KB = 4.7, 3.5
"""Sizes in SQLite, with the key and metadata of a Flink job, as measured over 500 of each."""


@pytest.mark.parametrize("streams", [1, 2, 10])
def test_a_month_of_all_streams_takes_less_than_30_mb(streams: int) -> None:
    daemon, events, every = Daemon(), 0, default_interval_ms(streams)
    for number in range(24 * 60):
        reading = Reading(str(number), "RUNNING", committed_at_ms=daemon.now_ms, lag=number % 7)
        events += daemon.tick(reading, MINUTE, every).count("observed")
    assert 10 < streams * (30 * events * OBSERVATION_KB + CHECK_KB) / 1000 < 30


def test_an_engine_without_times_of_commits_is_red_once_nothing_moves() -> None:
    """Kafka shows offsets, and not since when."""
    daemon = Daemon()
    stuck = Reading("100-a", "stable with 1 members", lag=5)
    assert daemon.tick(stuck) == ["observed", "alive True"]
    assert daemon.tick(stuck, 10 * MINUTE) == []
    assert daemon.tick(stuck) == ["observed", "alive False"]
    assert daemon.tick(Reading("101-b", "stable with 1 members", lag=4), GREEN_AGAIN_MS) == [
        "observed",
        "alive True",
    ]


def test_an_unreadable_cursor_reports_once_more() -> None:
    assert shown_in("not one") == shown_in(None) == shown_in('{"a": 1}') == {}


def test_an_observation_carries_numbers_and_a_data_version() -> None:
    reading = Reading("7", "RUNNING", committed_at_ms=NOW, watermark_ms=NOW - MINUTE, lag=3)
    observed = reports(KEY, reading, LIMITS, Shown(), NOW, EVERY)[0][0]
    assert isinstance(observed, dg.AssetObservation)
    assert observed.tags["dagster/data_version"] == "7"
    values = {name: value.value for name, value in observed.metadata.items()}
    assert values["lag_rows"] == 3 and values["lag_min"] == 1
    assert values["watermark"] == (NOW - MINUTE) / 1000


def test_offsets_of_structured_streaming() -> None:
    text = 'v1\n{"batchWatermarkMs":5}\n{"clicks":{"0":7,"1":9}}\n-\n{"logOffset":3}'
    epoch = LoggedEpoch.parse(text)
    assert epoch.watermark_ms == 5
    assert epoch.sources == ({"clicks": {"0": 7, "1": 9}}, None, {"logOffset": 3})
    assert epoch.kafka_offsets() == {("clicks", 0): 7, ("clicks", 1): 9}
    kinesis = '{"shardId-0":{"iteratorType":"TRIM_HORIZON","iteratorPosition":""}}'
    epoch = LoggedEpoch.parse(f'v1\n{{}}\n{kinesis}\n{{"clicks":{{"0":7}}}}')
    assert epoch.kafka_offsets() == {("clicks", 0): 7}, "failed before: a shard has no offsets"
    with pytest.raises(SourceError, match="v9"):
        LoggedEpoch.parse("v9\n{}\n")


def test_a_checkpoint_that_is_missing_or_new(tmp_path: Path) -> None:
    checkpoint = Checkpoint.at(str(tmp_path), {}, None)
    with pytest.raises(FileNotFoundError):
        checkpoint.read()
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    assert checkpoint.read().state == "without an epoch yet"
    (tmp_path / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n0')
    assert checkpoint.read().state == "in its first epoch, 0"


def recorded(path: str) -> Any:
    return RECORDED[path]


def test_flinks_answers() -> None:
    reading = flink_reading(recorded, "billing")
    assert reading == flink_reading(recorded, JOB["jid"])
    assert reading.state == "RUNNING" and reading.is_up and not reading.is_idle
    assert reading.position == f"{JOB['jid']}:11"
    assert reading.committed_at_ms == 1795747784767
    assert reading.watermark_ms == 1795773942000
    assert reading.lag == 0
    assert reading.details["failed_checkpoints"] == 1 and reading.details["restarts"] == 0


def test_a_flink_job_without_checkpoints_shows_no_commits() -> None:
    counts = {"total": 0, "failed": 0}
    none = {f"/jobs/{JOB['jid']}/checkpoints": {"counts": counts, "latest": {"completed": None}}}
    reading = flink_reading({**RECORDED, **none}.__getitem__, "billing")
    assert reading.position == "" and reading.committed_at_ms is None
    assert well(reading.after(None, NOW), NOW + EVERY)["alive"]


def test_a_flink_job_that_is_not_there_or_has_ended() -> None:
    assert flink_reading(recorded, "nobody").is_up is False
    ended = {**JOB, "state": "FAILED", "jid": "f" * 32, "start-time": JOB["start-time"] + 1}
    answers = {"/jobs/overview": {"jobs": [JOB, ended]}}
    assert flink_reading(answers.__getitem__, "billing").state == "FAILED", "the newest counts"


class Rest(BaseHTTPRequestHandler):
    users: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.users.append(self.headers["Authorization"])
        found = RECORDED.get(self.path)
        self.send_response(404 if found is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def flink() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Rest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_flink_by_http(flink: str) -> None:
    assert FlinkJob(flink, "billing").read() == flink_reading(recorded, "billing")
    with pytest.raises(SourceUnavailableError, match="HTTP 404 for /jobs/overview"):
        FlinkJob(f"{flink}/elsewhere", "billing").read()
    with pytest.raises(SourceUnavailableError, match="refused"):
        FlinkJob("http://127.0.0.1:9", "billing").read()


def test_a_password_in_flinks_url_is_sent_and_not_shown(flink: str) -> None:
    """Failed before: no job could be read, and the password was in the error."""
    url = flink.replace("//", "//jet:p%40ss@")
    Rest.users.clear()
    assert FlinkJob(url, "billing").read() == flink_reading(recorded, "billing")
    assert set(Rest.users) == {"Basic " + b64encode(b"jet:p@ss").decode()}
    for bad in (f"{url}:8o81", url.replace("127.0.0.1", "[127"), url.replace("127", "1 27")):
        with pytest.raises(SourceUnavailableError) as raised:
            FlinkJob(bad, "billing").read()
        assert "p%40ss" not in str(raised.value) and "p@ss" not in str(raised.value)


def test_a_job_that_cannot_be_read_hides_no_other() -> None:
    """Failed before: the ticks of all streams failed, and the error's text was shown."""

    def breaks() -> Reading:
        raise RuntimeError("no answer from user:secret@host")

    reads = ParallelReads({"a": breaks, "b": lambda: Reading("1", "up")})
    assert reads.read("a", "b") == {"a": "RuntimeError.", "b": Reading("1", "up")}


def test_a_group_that_has_read_all_but_markers_is_idle() -> None:
    offsets = {("t", 0): 10, ("t", 1): 20}
    assert group_reading("stable", 1, offsets, lag=2).is_idle, "markers of transactions"
    assert not group_reading("empty", 0, offsets, lag=2).is_idle
    assert group_reading("empty", 0, offsets, lag=0).is_idle
    assert not group_reading("stable", 1, {}, lag=0).is_up
    moved = group_reading("stable", 1, {("t", 0): 11, ("t", 1): 19}, lag=2)
    assert moved.position != group_reading("stable", 1, offsets, lag=2).position


def test_a_job_that_does_not_answer_delays_no_other() -> None:
    go, calls = threading.Event(), []

    def hangs() -> Reading:
        calls.append(1)
        go.wait()
        return Reading("1", "late")

    reads = ParallelReads({"a": hangs, "b": lambda: Reading("1", "up")}, patience_s=0.05)
    for _ in range(2):
        assert reads.read("a", "b") == {"a": "no answer within 0.05 s.", "b": Reading("1", "up")}
    assert calls == [1], "it is not asked twice at a time"
    go.set()
    assert ParallelReads({"a": hangs}).read("a") == {"a": Reading("1", "late")}


def contents(**attributes: Any) -> dict[str, Any]:
    return {"type": "dagster_jet.ObservedStreamsComponent", "attributes": attributes}


def test_the_component_shows_checks_and_observes(tmp_path: Path, flink: str) -> None:
    sessions = {"key": "sessions", "url": flink, "job": "billing", "deps": ["raw"], "max_lag": 100}
    sessions |= {"max_commit_age": "1 minute"}
    written = contents(
        structured_streaming=[{"key": "lake/payments", "checkpoint": f"{tmp_path}/cp"}],
        flink=[sessions],
        translation={"owners": ["team:a"]},
    )
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            ObservedStreamsComponent, defs_path="ours", defs_yaml_contents=written
        )
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, definitions):
            repository = definitions.get_repository_def()
    node = repository.asset_graph.get(dg.AssetKey("sessions"))
    assert node.is_external and node.kinds == {"flink", "streaming"}
    assert node.parent_keys == {dg.AssetKey("raw")} and list(node.owners) == ["team:a"]
    sensor = repository.get_sensor_def("ours_observer")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    with dg.DagsterInstance.ephemeral() as instance:
        with dg.build_sensor_context(instance, repository_def=repository) as context:
            tick = sensor.evaluate_tick(context)
        for event in tick.asset_events:
            instance.report_runless_asset_event(event)
        said = {
            (e.asset_key.to_user_string(), e.check_name): (e.passed, e.description)
            for e in tick.asset_events
            if isinstance(e, dg.AssetCheckEvaluation)
        }
        assert said["sessions", "lag"] == (True, "0 rows are unread; the limit is 100 (max_lag).")
        assert not said["sessions", "alive"][0], "the recording is old"
        passed, why = said["lake/payments", "alive"]
        assert not passed and "No such file or directory" in str(why)
        job = repository.get_implicit_global_asset_job_def()
        selected = dg.AssetCheckKey(dg.AssetKey("sessions"), "lag")
        done = job.get_subset(asset_check_selection={selected}).execute_in_process(
            instance=instance
        )
        (again,) = done.get_asset_check_evaluations()
        assert again.passed


def test_every_attribute_has_a_description_and_an_example() -> None:
    """`dg utils inspect-component` shows them."""
    schema = ObservedStreamsComponent.get_model_cls().model_json_schema()
    streams = ("StructuredStreamingModel", "FlinkModel", "KafkaGroupModel")
    for properties in [schema["properties"], *(schema["$defs"][s]["properties"] for s in streams)]:
        assert len(properties) >= 8
        for name, shown in properties.items():
            assert shown["description"] and shown["examples"], name


def test_what_the_scaffold_writes_loads() -> None:
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(ObservedStreamsComponent, defs_path="payments")
        with sandbox.load_component_and_build_defs(defs_path=path) as (_, definitions):
            keys = definitions.get_repository_def().asset_graph.external_asset_keys
    assert keys == {dg.AssetKey("payments")}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"max_commit_age": "old"}, "payments: max_commit_age: 'old' is not a duration"),
        ({"kafka_servers": "k:1", "kafka_options": {"sasl.password": "x"}}, "in plain text"),
        ({"checkpoint": "ftp://nowhere"}, "ftp"),
        ({"url": "http://flink"}, "url"),
    ],
)
def test_a_setting_that_is_none_is_named(changed: dict[str, Any], why: str) -> None:
    stream = {"key": "payments", "checkpoint": "/cp", **changed}
    written = contents(structured_streaming=[stream])
    with create_defs_folder_sandbox() as sandbox:
        path = sandbox.scaffold_component(
            ObservedStreamsComponent, defs_path="ours", defs_yaml_contents=written
        )
        with (
            pytest.raises(ComponentTreeException) as raised,
            sandbox.load_component_and_build_defs(defs_path=path),
        ):
            pass
    assert why in str(raised.value.__cause__)
