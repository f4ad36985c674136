"""The files sink in a bucket, through moto's server: what a reader sees, and who may complete."""

from __future__ import annotations

import json
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from dagster_jet import sinks, sources
from dagster_jet.connectors.files.files_sink import FilesSink
from dagster_jet.connectors.files.places import s3_output
from dagster_jet.connectors.reopening import destination_of
from dagster_jet.contract import CommitContext, TransactionId
from dagster_jet.core.secret import Secret
from dagster_jet.errors import (
    ArtifactLostError,
    ConfigurationError,
    SinkError,
    SinkMismatchError,
    SinkUnavailableError,
)
from dagster_jet.snapshot.manifest import Artifact
from dagster_jet.system import failpoint
from tests.servers.members import AwsServer
from tests.servers.proxy import Proxy

from .s3_folder import BUCKET, S3Folder
from .s3_folder import s3 as s3
from .s3_folder import server as server


@pytest.fixture
def folder(s3: S3Folder) -> Iterator[S3Folder]:
    yield s3
    failpoint.configure("")


@pytest.fixture
def sink(folder: S3Folder) -> FilesSink:
    made = open_sink(folder)
    made.check("j", "out", is_new_job=True)
    return made


def open_sink(folder: S3Folder, **options: Any) -> FilesSink:
    return sinks.files(
        folder.url, format="json", storage_options={**folder.storage_options, **options}
    )


def stage(
    sink: FilesSink, *values: int, execution_id: int = 1, epoch_id: int = 1
) -> list[Artifact]:
    artifacts: list[Artifact] = []
    for shard, value in enumerate(values):
        transaction = TransactionId("j", "out", 1, execution_id, epoch_id, shard, f"a{value}")
        writer = sink.open_writer(transaction)
        writer.write(pa.record_batch({"a": pa.array([value])}))
        artifacts += writer.prepare()
    return artifacts


def by(execution_id: int, *, accept_loss: bool = False) -> CommitContext:
    return CommitContext("j", "out", 1, execution_id, execution_id > 1, accept_loss)


def visible(folder: S3Folder) -> list[str]:
    names = [name for name in folder.names() if name.startswith("part-")]
    return [folder.get(name).decode().strip() for name in sorted(names)]


def test_nothing_is_seen_before_phase_2(folder: S3Folder, sink: FilesSink) -> None:
    parts = stage(sink, 1, 2)
    assert folder.names() == [] and len(folder.uploads()) == 2
    sink.commit(parts, by(1))
    assert visible(folder) == ['{"a":1}', '{"a":2}'] and folder.uploads() == []
    marker = json.loads(folder.get("_epochs/0000000001.json"))
    assert [file["name"] for file in marker["files"]] == [part.target for part in parts]
    assert marker["files"][0]["bytes"] == len(folder.get(parts[0].target)) == parts[0].bytes


def test_a_commit_is_repeated(folder: S3Folder, sink: FilesSink) -> None:
    parts = stage(sink, 1, 2)
    sink.commit(parts, by(1))
    seen = visible(folder)
    sink.commit(parts, by(1))
    sink.commit(parts, by(2))
    assert visible(folder) == seen
    # A reader has moved on what the marker lists.
    folder.delete(parts[0].target)
    sink.commit(parts, by(2))
    assert visible(folder) == seen[1:]


@pytest.mark.parametrize(
    "point", ["files.commit.file:2", "files.commit.renamed", "files.commit.marker"]
)
def test_another_process_goes_on_where_one_died(
    folder: S3Folder, sink: FilesSink, point: str
) -> None:
    parts = stage(sink, 1, 2)
    failpoint.configure(f"{point}=raise")
    with pytest.raises(SinkUnavailableError, match="fail point"):
        sink.commit(parts, by(1))
    failpoint.configure("")
    FilesSink.reopen(destination_of(sink)).commit(parts, by(2))
    assert visible(folder) == ['{"a":1}', '{"a":2}'] and folder.uploads() == []


@pytest.mark.parametrize("successor", [1, 2])
@pytest.mark.parametrize(
    "is_it", [b"POST /", b"PUT /%s/_epochs/0000000002"], ids=["completion", "marker"]
)
def test_a_request_of_a_commit_that_arrives_late(
    server: AwsServer, folder: S3Folder, sink: FilesSink, is_it: bytes, successor: int
) -> None:
    """The network has kept it, the client has asked again, and a reader has taken files away."""
    port = urlsplit(server.endpoint_url).port
    assert port is not None
    is_it = is_it.replace(b"%s", f"{BUCKET}/{folder.prefix}".encode())
    with Proxy(port, is_http=True) as proxy:
        ours = open_sink(folder, endpoint_url=f"http://127.0.0.1:{proxy.port}")
        first, second, third = (stage(ours, 10 * n, 10 * n + 1, epoch_id=n) for n in (1, 2, 3))
        ours.commit(first, by(1))
        held = proxy.hold_next(lambda asked: asked.startswith(is_it))
        ours.commit(second, by(successor))
        held.wait()
        read = Counter(visible(folder))
        folder.delete(second[0].target)  # the marker lists it
        ours.commit(third, by(successor))
        markers = {name: folder.get(name) for name in folder.names() if "_epochs" in name}
        assert held.release()
    assert visible(folder) == ['{"a":10}', '{"a":11}', '{"a":21}', '{"a":30}', '{"a":31}']
    assert markers == {name: folder.get(name) for name in folder.names() if "_epochs" in name}
    assert read == Counter(f'{{"a":{v}}}' for v in (10, 11, 20, 21)) and folder.uploads() == []


def test_a_dead_execution_that_completes_late(folder: S3Folder, sink: FilesSink) -> None:
    """The successor has committed the same epoch in between, and a reader has taken the file
    away."""
    parts = stage(sink, 1)
    asleep, go_on, errors = threading.Event(), threading.Event(), []
    late = open_sink(folder)
    place = late.place()
    publish = type(place).publish

    def wait(artifact: Artifact) -> bool:
        asleep.set()
        assert go_on.wait(30)
        return publish(place, artifact)

    def commit_late() -> None:
        try:
            late.commit(parts, by(1))
        except Exception as error:
            errors.append(error)

    object.__setattr__(place, "publish", wait)
    thread = threading.Thread(target=commit_late)
    thread.start()
    assert asleep.wait(30)
    object.__delattr__(place, "publish")
    sink.commit(parts, by(2))
    folder.delete(parts[0].target)
    go_on.set()
    thread.join(30)
    assert not errors and visible(folder) == []


def test_of_two_that_commit_at_once_one_writes_the_marker(
    folder: S3Folder, sink: FilesSink
) -> None:
    parts = stage(sink, *range(4))
    barrier, errors = threading.Barrier(2), []

    def commit(execution_id: int) -> None:
        barrier.wait()
        try:
            sink.commit(parts, by(execution_id))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=commit, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and len(visible(folder)) == 4


def test_orphans_are_found_by_their_names_and_removed(folder: S3Folder, sink: FilesSink) -> None:
    kept = stage(sink, 1)
    stage(sink, 2, 3, epoch_id=2)
    stage(sink, 4, execution_id=3)
    assert sink.abort_orphans(by(3), [kept[0].token]) == 2
    assert len(folder.uploads()) == 2
    sink.commit(kept, by(3))
    assert visible(folder) == ['{"a":1}']
    assert sink.abort_orphans(by(4), []) == 1 and folder.uploads() == []


def test_an_aborted_writer_leaves_nothing(folder: S3Folder, sink: FilesSink) -> None:
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "x"))
    writer.write(pa.record_batch({"a": pa.array([1])}))
    writer.abort()
    assert folder.uploads() == [] == folder.names()


def test_a_file_of_many_parts(
    folder: S3Folder, sink: FilesSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_output, "_PART_BYTES", 5 << 20)
    writer = sink.open_writer(TransactionId("j", "out", 1, 1, 1, 0, "x"))
    text = "x" * (1 << 20)
    for _ in range(12):
        writer.write(pa.record_batch({"a": pa.array([text])}))
    (part,) = writer.prepare()
    sink.commit([part], by(1))
    assert len(folder.get(part.target)) == part.bytes > 12 << 20


def test_a_staged_file_that_is_gone(folder: S3Folder, sink: FilesSink) -> None:
    parts = stage(sink, 1, 2)
    sink.place().discard(parts[0].token)
    with pytest.raises(ArtifactLostError, match="1 rows is gone"):
        sink.commit(parts, by(2))
    lost: list[Artifact] = []
    sink.commit(parts, CommitContext("j", "out", 1, 2, True, True, report_lost=lost.append))
    assert lost == parts[:1] and visible(folder) == ['{"a":2}']


def test_another_file_of_that_name_is_not_ours(folder: S3Folder, sink: FilesSink) -> None:
    (part,) = stage(sink, 1)
    folder.put(part.target, "somebody else's")
    with pytest.raises(ArtifactLostError, match="or is another file"):
        sink.commit([part], by(1))
    assert folder.get(part.target) == b"somebody else's"


def test_a_sink_that_was_moved(folder: S3Folder, sink: FilesSink) -> None:
    parts = stage(sink, 1)
    moved = S3Folder.new(folder.server)
    with pytest.raises(SinkMismatchError, match="Start once with the sink's old path"):
        open_sink(moved).commit(parts, by(2))
    assert destination_of(open_sink(moved)) != destination_of(sink)
    FilesSink.reopen(destination_of(sink)).commit(parts, by(2))
    assert visible(folder) == ['{"a":1}']


def test_a_folder_has_one_owner(folder: S3Folder, sink: FilesSink) -> None:
    sink.check("j", "out", is_new_job=False)
    with pytest.raises(ConfigurationError, match="belongs to 'j/out'"):
        open_sink(folder).check("other", "out", is_new_job=True)
    sink.commit(stage(sink, 1), by(1))
    with pytest.raises(ConfigurationError, match="an earlier life of this job"):
        sink.check("j", "out", is_new_job=True)


def test_a_folder_is_given_up_by_its_owner_alone(folder: S3Folder, sink: FilesSink) -> None:
    sink.check("j", "out", is_new_job=False)
    sink.commit(stage(sink, 1), by(1))
    sink.give_up_place(CommitContext("other", "out", 1, 9, recovering=True))
    assert folder.get("_epochs/.owner") == b"j/out"
    for _ in range(2):
        sink.give_up_place(by(2))
        assert not [name for name in folder.names() if name.startswith("_epochs/.")]
    assert visible(folder) == ['{"a":1}']


def test_a_server_that_ignores_conditions_is_refused(
    folder: S3Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.server.ignore("PUT If-None-Match")
    monkeypatch.setattr("dagster_jet.aws.conditions._kept", set())
    with pytest.raises(ConfigurationError, match="ignores If-None-Match of PUT"):
        open_sink(folder).check("j", "out", is_new_job=True)


def test_a_bucket_that_is_not_there(folder: S3Folder) -> None:
    elsewhere = sinks.files(
        f"s3://nowhere-{folder.prefix}/out", format="csv", storage_options=folder.storage_options
    )
    with pytest.raises(ConfigurationError, match="NoSuchBucket"):
        elsewhere.check("j", "out", is_new_job=True)


def test_an_outage_restarts_a_start_and_is_waited_for_by_a_commit(
    folder: S3Folder, sink: FilesSink
) -> None:
    (part,) = stage(sink, 1)
    away = open_sink(folder, timeout="0.2", connect_timeout="0.2")
    folder.server.stop_answering()
    try:
        with pytest.raises(SinkUnavailableError, match="cannot be written"):
            away.commit([part], by(1))
        with pytest.raises(SinkError, match="cannot be used now"):
            away.check("j", "out", is_new_job=False)
    finally:
        folder.server.go_on()
    away.commit([part], by(1))
    assert visible(folder) == ['{"a":1}']


def test_a_bucket_that_removes_uploads_early_is_told(
    folder: S3Folder, sink: FilesSink, caplog: pytest.LogCaptureFixture
) -> None:
    rule = {
        "ID": "tidy",
        "Status": "Enabled",
        "Filter": {"Prefix": ""},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1},
    }
    folder.client.put_bucket_lifecycle_configuration(
        Bucket=BUCKET, LifecycleConfiguration={"Rules": [rule]}
    )
    try:
        sink.claim_place("j", "out")
    finally:
        folder.client.delete_bucket_lifecycle(Bucket=BUCKET)
    assert "removes incomplete uploads after 1 days" in caplog.text


# --- keys -----------------------------------------------------------------------------------------


def test_keys_are_named_and_never_carried(
    folder: S3Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("MY_ID", "TheKeysId")
    monkeypatch.setenv("MY_KEY", "TheKeyItself")
    keys = {"access_key_id": Secret(env="MY_ID"), "secret_access_key": Secret(env="MY_KEY")}
    sink = open_sink(folder, **keys)
    sink.check("j", "out", is_new_job=True)
    source = sources.files(
        folder.url,
        format="json",
        schema="a long",
        storage_options={**folder.storage_options, **keys},
    )
    source.open("j", "in", None).poll()
    destination = json.dumps(destination_of(sink))
    for shown in (repr(sink), repr(source), destination, str(sink.describe())):
        assert "TheKey" not in shown
    for made in (sink, source):
        assert b"TheKey" not in pickle.dumps(made)
    assert FilesSink.reopen(json.loads(destination)) == sink
    reopened = pickle.loads(pickle.dumps(sink))
    reopened.commit(stage(reopened, 1), by(1))
    assert visible(folder) == ['{"a":1}']


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("s3://key:secret@bucket/x", {}, "no place for keys"),
        ("s3://bucket/x?region=eu", {}, "give options as storage_options"),
        ("s3://bucket/x", {"regoin": "eu"}, "regoin is not an option of s3://"),
        (
            "s3://bucket/x",
            {"secret_access_key": "abc", "access_key_id": "b"},
            "given in plain text",
        ),
        ("s3://bucket/x", {"access_key_id": Secret(env="ID")}, "belong together"),
        ("s3://bucket/x", {"endpoint_url": "http://me:secret@h"}, "has a password in it"),
        ("/tmp/x", {"region": "eu"}, "region is not an option of file://"),
        ("gopher://x/y", {}, "gopher:// is not supported"),
    ],
)
def test_wrong_places_are_refused_in_one_sentence(
    url: str, options: dict[str, Any], said: str
) -> None:
    for build in (sinks.files, sources.files):
        with pytest.raises(ConfigurationError, match=f"(?i){said}") as told:
            build(url, format="parquet", storage_options=options)
        assert told.value.cure and "secret@" not in str(told.value)
