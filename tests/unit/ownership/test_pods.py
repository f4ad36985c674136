"""Pods of one machine: real PID namespaces, one host name, and the same process ids in each.

A pod's owner is never taken for dead because its id is not to be found here, nor for alive because
something else has it. Only its lease counts, and a pod that is evicted gives it back within its
grace period. No Spark.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dagster_jet.errors import LeaseHeldError
from dagster_jet.ownership.lease import is_owner_alive
from dagster_jet.ownership.record_keeper import RecordKeeper, read_record
from dagster_jet.snapshot.record import ExecutionRecord
from dagster_jet.store import Store, StoreConfig
from tests.servers.members import RedisServer

TTL_MS = 1_500
REPOSITORY = Path(__file__).parents[3]
POD = """
import os, signal, socket, sys, threading
from dagster_jet.ownership.record_keeper import RecordKeeper
from dagster_jet.store import Store, StoreConfig

socket.sethostname("pod")
is_evicted = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: is_evicted.set())
with Store.open(StoreConfig((sys.argv[1],), backup_count=0)) as store:
    keeper = RecordKeeper(store, "j", int(sys.argv[2]), run_id="run")
    record = keeper.claim(change=None)
    print(record.execution_id, os.getpid(), flush=True)
    is_evicted.wait()
    keeper.release(record)
"""


@pytest.fixture
def url() -> Iterator[str]:
    with RedisServer() as server:
        yield server.url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(StoreConfig((url,), backup_count=0)) as store:
        yield store


class Pod:
    """A process in namespaces of its own, in which it is process 1; it has the job."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.execution, self.pid = map(int, process.stdout.readline().split())
        (self.inner,) = psutil.Process(process.pid).children()
        # As on another node: here the number of a namespace that is gone is given to the next one,
        # which then rightly knows that all of the old one's processes are dead.
        self.namespace = os.open(f"/proc/{self.inner.pid}/ns/pid", os.O_RDONLY)

    def send(self, number: int) -> None:
        """Sends a signal to the process in the namespace: `unshare` only waits for it."""
        self.inner.send_signal(number)
        self.process.wait(30)


@contextmanager
def pod(url: str) -> Iterator[Pod]:
    namespaces = ["--pid", "--fork", "--kill-child", "--mount-proc", "--uts"]
    if os.geteuid() != 0:
        namespaces.append("--map-root-user")
    process = subprocess.Popen(
        ["unshare", *namespaces, sys.executable, "-c", POD, url, str(TTL_MS)],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        text=True,
    )
    one = None
    try:
        one = Pod(process)
        yield one
    finally:
        process.kill()
        process.wait()
        if one is not None:
            os.close(one.namespace)


def found(store: Store) -> ExecutionRecord:
    record = read_record(store, "j")
    assert record is not None
    return record


def test_another_pod_with_the_same_ids_waits_for_the_lease_and_no_longer(
    url: str, store: Store
) -> None:
    with pod(url) as first:
        assert (first.execution, first.pid) == (1, 1)
        lease = found(store).lease
        assert lease is not None and (lease.host, lease.pid) == ("pod", 1)
        assert is_owner_alive(lease) is None, "our process 1 is not its process 1"
        second = RecordKeeper(store, "j", TTL_MS, run_id=None)
        with pytest.raises(LeaseHeldError, match="execution 1 is alive"):
            second.claim(change=None)
        first.send(signal.SIGKILL)  # out of memory: no grace
        killed_at = time.monotonic()
        with pod(url) as third:
            assert (third.execution, third.pid) == (2, 1), "the same host name and id once more"
            assert time.monotonic() - killed_at >= 0.5 * TTL_MS / 1000, "it watched the lease"
            assert found(store).restarts == 1


def test_an_evicted_pod_gives_the_job_back_within_its_grace_period(url: str, store: Store) -> None:
    with pod(url) as first:
        first.send(signal.SIGTERM)
        assert first.process.returncode == 0
        assert found(store).lease is None
        with pod(url) as second:
            assert second.execution == 2
