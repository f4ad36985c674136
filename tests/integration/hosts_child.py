"""Kafka, a window, Kafka on a cluster whose hosts share nothing: the driver, and all around it.

    unshare --net --mount ... python -m tests.integration.hosts_child <folder>

It runs in a network namespace of its own. A host is cut off for a while, then another one until it
is given up, and comes back. Prints, as its last line, what followed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from dagster_jet import Jet, JobConfig
from dagster_jet.execution.events import (
    EpochCompleted,
    ExecutionRestarting,
    JobEvent,
    SnapshotCommitted,
)
from dagster_jet.jobs.pipeline_job import PipelineJob
from tests.servers.kafka import prepared
from tests.servers.members import RedisServer

from .connectors.kafka_child import kafka_pipeline
from .connectors.kafka_job import found_in, wanted_of
from .connectors.kafka_world import KafkaWorld
from .hosts import DRIVER, Host, be_the_driver, hosts
from .oracle import difference
from .standalone import await_workers, master, settings
from .world import wait_until

HOSTS = 2
RATE = 200
"""Messages a second."""
KEYS = 12
CUT_S = 30.0
RECOVERED_S = 300.0
"""Longest wait for a snapshot after a cut."""


@dataclass
class Stream:
    """Messages that come in all the time, until it is stopped."""

    servers: str
    topic: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        rng, producer = random.Random("hosts"), Producer({"bootstrap.servers": self.servers})
        while not self._stopped.wait(1 / RATE):
            row = {
                "k": f"key-{rng.randrange(KEYS)}",
                "ts": time.time_ns() // 1_000_000,
                "v": rng.randrange(100),
            }
            producer.produce(self.topic, json.dumps(row), row["k"])
            producer.poll(0)
            self.rows.append(row)
        assert producer.flush(60) == 0

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


class Watch:
    """The job's snapshots and restarts."""

    def __init__(self) -> None:
        self.snapshots, self.restarts = 0, list[str]()

    def __call__(self, event: JobEvent) -> None:
        if isinstance(event, SnapshotCommitted):
            self.snapshots += 1
        elif isinstance(event, ExecutionRestarting):
            self.restarts.append(event.reason)
        if not isinstance(event, EpochCompleted):
            print(f"{time.time():.1f}", event, flush=True)

    def goes_on_s(self, job: PipelineJob) -> float:
        """Seconds until it has taken three more snapshots."""
        began, before = time.monotonic(), self.snapshots

        def goes_on() -> bool:
            assert not job.done.is_set(), "the job has ended"
            return self.snapshots >= before + 3

        wait_until(goes_on, "more snapshots", RECOVERED_S)
        return round(time.monotonic() - began, 1)


def lose_hosts(jet: Jet, folder: Path, stream: Stream, workers: list[Host]) -> dict[str, Any]:
    watch = Watch()
    job = jet.submit(kafka_pipeline(folder), JobConfig(), until="stopped", on_event=watch)
    first_s = watch.goes_on_s(job)
    first, second = workers
    first.cut_off()
    during = watch.snapshots
    time.sleep(CUT_S)
    during = watch.snapshots - during
    first.reconnect()
    again_s = watch.goes_on_s(job)
    restarts = len(watch.restarts)
    second.cut_off()
    alone_s = watch.goes_on_s(job)
    second.reconnect()  # what it had sent arrives now, after its successor's requests
    back_s = watch.goes_on_s(job)
    stream.stop()
    job.suspend()
    job.result()
    jet.run(kafka_pipeline(folder), JobConfig(), until="completed", on_event=watch)
    return {
        "first_s": first_s,
        "snapshots_while_cut_off": during,
        "again_s": again_s,
        "restarts_by_the_first": restarts,
        "alone_s": alone_s,
        "back_s": back_s,
        "restarts": watch.restarts,
    }


def main(folder: Path) -> None:
    be_the_driver()
    own, logs = folder / "own", folder / "logs"
    for one in (own, logs, folder / "kafka"):
        one.mkdir()
    with ExitStack() as running:
        broker = prepared(folder / "kafka", DRIVER)
        with open(logs / "kafka.log", "wb") as log:
            kafka = subprocess.Popen(broker.command, stdout=log, stderr=log)
        running.callback(kafka.kill)
        anywhere = (f"bind 127.0.0.1 {DRIVER}", "protected-mode no")
        redis = [running.enter_context(RedisServer(settings=anywhere)) for _ in range(3)]
        members = [f"redis://{DRIVER}:{server.port}/0" for server in redis]
        url = running.enter_context(master(logs / "master.log", DRIVER))
        workers = running.enter_context(hosts(logs, own, url, HOSTS))
        await_workers(logs / "master.log", HOSTS)
        wait_until(broker.is_ready, "the broker answers")
        world = KafkaWorld(str(broker.facts["servers"]))
        place = {"servers": world.servers, "in": world.topic(4)}
        place |= {"counts": world.topic(2), "big": world.topic(2)}
        (folder / "kafka.json").write_text(json.dumps(place))
        stream = Stream(world.servers, place["in"])
        spark = settings(url, DRIVER, HOSTS)
        with Jet(store=members, spark=spark, work_dir=own / "jet") as jet:
            report = lose_hosts(jet, folder, stream, workers)
        assert not any((own / "work").glob("*")), "the hosts share a folder"
        found = found_in(world, place)
        for name, wanted in wanted_of(stream.rows).items():
            wrong = difference(found[name], wanted)
            report[name] = {"rows": found[name].total(), "wrong": wrong}
    print(json.dumps(report, default=str), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
