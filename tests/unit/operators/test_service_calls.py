"""Calls with a service: created once, several at once, repeated, closed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest

from dagster_jet.core.job_context import Parameters, job_context
from dagster_jet.errors import Reaction, UserFunctionError
from dagster_jet.operators.user import services
from dagster_jet.operators.user.service_calls import ServiceCalls, in_order
from dagster_jet.operators.user.services import ServiceFactory
from dagster_jet.pipeline.service_map import ServiceMap
from dagster_jet.system import backoff

SCHEMA = pa.schema([("v", pa.int64())])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(backoff, "jitter_s", lambda bound_s: 0)
    yield
    services.close_all()


def batches(*sizes: int) -> list[pa.RecordBatch]:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return [
        pa.record_batch([pa.array(range(end - size, end), pa.int64())], schema=SCHEMA)
        for size, end in zip(sizes, ends, strict=True)
    ]


def calls(function: Any, create: Any = object, close: Any = None, **options: Any) -> ServiceCalls:
    factory = ServiceFactory("job", "scored", create, close, pipeline_id="this")
    return ServiceCalls(factory, function, SCHEMA, **options)


def values(made: ServiceCalls, *sizes: int) -> list[int]:
    return pa.Table.from_batches(made(batches(*sizes)), schema=SCHEMA).column("v").to_pylist()


def test_one_service_for_all_tasks_of_a_process() -> None:
    created: list[object] = []

    def create() -> object:
        created.append(object())
        return created[-1]

    def use(service: object, rows: pa.Table) -> pa.Table:
        assert service is created[0]
        return rows

    for _ in range(3):
        assert values(calls(use, create), 3, 2) == [0, 1, 2, 3, 4]
    assert len(created) == 1


def test_without_rows_nothing_is_created() -> None:
    assert values(calls(None, lambda: 1 / 0), 0) == []


@pytest.mark.parametrize("concurrency", [1, 3])
def test_batches_have_so_many_rows_and_results_the_order_of_the_rows(concurrency: int) -> None:
    sizes = []

    def use(service: object, rows: pa.Table) -> pa.Table | None:
        sizes.append(rows.num_rows)
        return None if 0 in rows["v"].to_pylist() else rows

    made = calls(use, batch_rows=4, concurrency=concurrency)
    assert values(made, 6, 5) == [*range(4, 11)]
    assert sorted(sizes) == [1, 2, 4, 4]


def test_so_many_calls_at_once() -> None:
    barrier, running, most = threading.Barrier(3, timeout=30), [0], [0]
    lock = threading.Lock()

    def use(number: int) -> int:
        with lock:
            running[0] += 1
            most[0] = max(running[0], most[0])
        barrier.wait()
        with lock:
            running[0] -= 1
        return number

    assert list(in_order(use, range(9), 3)) == [*range(9)]
    assert most == [3]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_a_call_is_repeated_so_often(concurrency: int) -> None:
    seen: list[list[int]] = []

    def use(service: object, rows: pa.Table) -> pa.Table:
        seen.append(rows["v"].to_pylist())
        if seen.count(seen[-1]) < 3:
            raise TimeoutError("slow")
        return rows

    made = calls(use, batch_rows=1, retries=2, concurrency=concurrency)
    assert values(made, 2) == [0, 1]
    assert seen.count([0]) == seen.count([1]) == 3


def test_a_row_that_python_does_not_have_does_not_hide_the_error() -> None:
    """The row has a year after 9999. The service's error is temporary, so the job restarts."""

    def use(service: object, rows: pa.Table) -> pa.Table:
        raise ConnectionResetError(104, "reset by peer")

    far = pa.record_batch({"at": pa.array([10**15], pa.timestamp("s", "UTC"))})
    with pytest.raises(UserFunctionError, match=r"reset by peer.*\+31690708-07-05") as caught:
        list(calls(use)([far]))
    assert caught.value.reaction is Reaction.RESTART


@pytest.mark.parametrize(
    ("error", "reaction"),
    [
        (ValueError("no such model"), Reaction.FAIL),
        (FileNotFoundError(2, "no such file"), Reaction.FAIL),
        (TimeoutError("slow"), Reaction.RESTART),
        (ConnectionRefusedError(111, "refused"), Reaction.RESTART),
    ],
)
def test_an_error_names_stage_and_row_and_closes_the_service(
    error: Exception, reaction: Reaction
) -> None:
    closed: list[object] = []

    def use(service: object, rows: pa.Table) -> pa.Table:
        if 7 in rows["v"].to_pylist():
            raise error
        return rows

    made = calls(use, object, closed.append, batch_rows=2, retries=1, concurrency=2)
    said = f"stage 'scored': .*test_service_calls.py:.*use raised {type(error).__name__}"
    said += r".* It was given 2 times 2 rows; the first: \{\"v\":7\}\. "
    with pytest.raises(UserFunctionError, match=said) as raised:
        values(made, 5, 5)
    assert raised.value.reaction is reaction
    assert len(closed) == 1
    assert values(calls(lambda service, rows: rows), 1) == [0], "with a new one"


def test_a_service_that_cannot_be_created() -> None:
    with pytest.raises(UserFunctionError, match=r"stage 'scored': .*ZeroDivisionError"):
        values(calls(None, lambda: 1 / 0), 1)


def test_results_have_the_schema() -> None:
    def other(service: object, rows: pa.Table) -> pa.Table:
        return rows.rename_columns(["w"])

    with pytest.raises(UserFunctionError, match=r"other returned results.* w"):
        values(calls(other), 1)


def test_another_pipeline_has_a_service_of_its_own() -> None:
    closed: list[str] = []

    def factory(pipeline: str) -> ServiceFactory:
        return ServiceFactory(
            "job", "scored", lambda: pipeline, closed.append, pipeline_id=pipeline
        )

    assert services.opened(factory("old")) == "old"
    assert services.opened(factory("old")) == "old"
    assert not closed
    assert services.opened(factory("new")) == "new"
    assert closed == ["old"]


def test_jobs_of_partitions_share_a_service_and_have_their_own_names() -> None:
    """A function sees the partition's job, not the pipeline's."""
    seen: list[tuple[str, object]] = []

    def use(service: object, rows: pa.Table) -> pa.Table:
        seen.append((job_context().job, service))
        return rows

    made = ServiceMap(ServiceFactory("p", "scored", object), use, "*", 10, 1, 0)
    for job in ("p-monday", "p-tuesday"):
        factory = made.in_job(job, Parameters(), lambda counters: None).factory
        values(ServiceCalls(factory, use, SCHEMA), 1)
    assert [job for job, _ in seen] == ["p-monday", "p-tuesday"]
    assert seen[0][1] is seen[1][1]


def test_an_error_of_close_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    made = ServiceFactory("p", "scored", object, lambda service: 1 / 0, job="job")
    services.opened(made)
    services.close_all()
    assert "job 'job', stage 'scored': close raised" in caplog.text
    assert not services._open


@pytest.mark.parametrize("end", ["SIGHUP", "no more tasks"])
def test_the_end_of_a_worker_closes(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark ends its workers by a signal of its daemon, or when no more input comes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        worker = ModuleType("pyspark.worker")
        hangup = lambda: os.kill(os.getpid(), signal.SIGHUP)  # noqa: E731
        worker.main = hangup if end == "SIGHUP" else lambda: sys.exit(-1)  # type: ignore[attr-defined]
        sys.modules["pyspark.worker"] = worker
        close = lambda service: os.write(write, b"closed")  # noqa: E731
        services.opened(ServiceFactory("job", "scored", object, close))
        try:
            worker.main()
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    os.close(write)
    assert os.read(read, 100) == b"closed"
    os.close(read)
