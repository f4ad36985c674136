"""`dagster-jet probe` against real servers: what it says is what they do."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from dagster_jet.cli.app import app
from tests.long import long
from tests.servers import SharedServer, free_port, launch, own_folder, stop
from tests.servers import kafka as kafka_server
from tests.servers import mariadb as mariadb_server
from tests.servers import postgres as postgres_server
from tests.servers import rabbitmq as rabbitmq_server
from tests.servers.kafka import kafka
from tests.servers.mariadb import mariadb
from tests.servers.members import AwsServer
from tests.servers.postgres import PASSWORD, PostgresDatabase, new_database, postgres
from tests.servers.rabbitmq import rabbitmq
from tests.servers.sqs import KEY, KEY_ID, REGION, new_queue

DISCONNECT = "Does it keep a prepared transaction when its connection ends?"
RESTART = "Does it keep a prepared transaction when it is restarted?"
HELD = "Does it keep a transaction that is held when its producer has gone?"
HELD_OVER_A_RESTART = "Does it keep a transaction that is held when its brokers are restarted?"
DISK = "Is what it has committed on its disk?"


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs the command with a URL in the environment; its exit code, and answers by question."""

    def asked(url: str, *words: str) -> Any:
        monkeypatch.setenv("PROBED", url)
        done = CliRunner().invoke(app, ["probe", "env:PROBED", *words, "--json"])
        assert PASSWORD not in done.output
        if not done.stdout:
            return done.exit_code, done.stderr
        found = json.loads(done.stdout)
        if "left" in found:
            return found["left"]
        return done.exit_code, {one["question"]: one for one in found["answers"]}

    return asked


def verdicts(findings: dict[str, Any], *questions: str) -> list[str]:
    return [findings[question]["verdict"] for question in questions]


# --- databases ------------------------------------------------------------------------------------


def with_rights(database: PostgresDatabase, attributes: str = "") -> PostgresDatabase:
    """The same, by a user of its own who may connect, and do what is granted."""
    user = f"{database.name}_user"
    database.run(f"create role {user} login password '{PASSWORD}' {attributes}")
    return PostgresDatabase(database.port, database.name, user=user)


def test_postgres_is_asked_and_tried(ask: Any) -> None:
    """The run's server does not sync what it commits: that is what the probe finds."""
    database = postgres()
    code, found = ask(database.url)
    assert code == 1 and verdicts(found, DISK, DISCONNECT, RESTART) == ["no", "yes", "unknown"]
    assert "fsync = off, full_page_writes = off" in found[DISK]["meaning"]
    assert [q for q, one in found.items() if one["verdict"] == "no"] == [DISK]
    assert database.run("select count(*) from pg_prepared_xacts where gid like 'jet_probe%'") == [
        (0,)
    ]
    assert database.run("select count(*) from pg_tables where tablename like 'jet_probe%'") == [
        (0,)
    ]


def test_postgres_rights_and_time_outs(ask: Any) -> None:
    database = postgres()
    poor = with_rights(database)
    database.run(f"revoke create on schema public from public, {poor.user}")
    database.run(f"alter role {poor.user} set statement_timeout = '800 ms'")
    code, found = ask(poor.url, "--snapshot-interval", "2 seconds")
    timeouts = found["Are its time-outs longer than the snapshot interval?"]
    assert code == 1 and timeouts["verdict"] == "no" and "= 800 ms" in timeouts["meaning"]
    rights = found["May the user create the table that says what is committed, and write to it?"]
    assert rights["verdict"] == "no" and "permission denied" in rights["meaning"]
    changes = found["Can its changes be read (sources.postgres_changes)?"]
    assert changes["verdict"] == "no" and "REPLICATION" in changes["meaning"]
    assert verdicts(found, DISCONNECT) == ["unknown"], "there was no table to write to"
    _, found = ask(poor.url, "--snapshot-interval", "500 ms")
    assert found["Are its time-outs longer than the snapshot interval?"]["verdict"] == "yes"


@pytest.mark.parametrize("how", [pytest.param(signal.SIGTERM, marks=long), signal.SIGKILL])
def test_postgres_after_a_restart(ask: Any, how: int) -> None:
    """A transaction that is left prepared survives any kind of restart; the next probe removes
    it."""
    folder = own_folder("postgres")
    running: SharedServer = launch("postgres", folder, postgres_server.prepared(folder))
    try:
        database = new_database(running)
        name = ask(database.url, "--leave")
        assert database.run("select gid from pg_prepared_xacts") == [(name,)]
        stop(running, how)
        code, said = ask(database.url, "--find", name)
        assert code == 2 and "does not do what it is asked" in said
        running = launch("postgres", folder, postgres_server.prepared(folder))
        code, found = ask(database.url, "--find", name)
        assert code == 0 and verdicts(found, RESTART) == ["yes"]
        assert database.run("select gid from pg_prepared_xacts") == []
        code, said = ask(database.url, "--find", name)
        assert code == 2 and f"nothing of the name {name} was left" in said
        name = ask(database.url, "--leave")
        database.run(f"rollback prepared '{name}'")  # by a person, or another server
        code, found = ask(database.url, "--find", name)
        assert code == 1 and verdicts(found, RESTART) == ["no"]
    finally:
        stop(running)


def test_a_postgres_as_it_comes_is_good_for_the_default_recipe(ask: Any) -> None:
    folder = own_folder("postgres")
    settings = {"max_prepared_transactions": "0", "fsync": "on", "full_page_writes": "on"}
    own = launch("postgres", folder, postgres_server.prepared(folder, **settings))
    try:
        database = new_database(own)
        code, found = ask(database.url)
        assert code == 0 and verdicts(found, DISK, DISCONNECT) == ["yes", "no"]
        assert "max_prepared_transactions is 0" in found[DISCONNECT]["meaning"].lower()
        assert "postgresql.conf" in found[DISCONNECT]["cure"]
        with pytest.raises(AssertionError, match="max_prepared_transactions is 0"):
            raise AssertionError(ask(database.url, "--leave")[1])
    finally:
        stop(own)


def test_mariadb_is_asked_and_tried(ask: Any) -> None:
    database = mariadb()
    code, found = ask(database.url)
    assert verdicts(found, DISCONNECT, RESTART) == ["yes", "unknown"]
    assert code == (1 if found[DISK]["verdict"] == "no" else 0)
    assert database.run("show tables") == []
    _, found = ask(database.url, "--snapshot-interval", "2 days")
    timeouts = found["Are its time-outs longer than the snapshot interval?"]
    assert timeouts["verdict"] == "no" and "wait_timeout = 28800 s" in timeouts["meaning"]


@long  # a PostgreSQL is killed, and a MariaDB between prepare and commit in test_sql_held.py
def test_mariadb_after_a_restart(ask: Any) -> None:
    folder = own_folder("mariadb")
    running = launch("mariadb", folder, mariadb_server.prepared(folder))
    try:
        database = mariadb_server.new_database(running)
        name = ask(database.url, "--leave")
        stop(running, signal.SIGKILL)
        running = launch("mariadb", folder, mariadb_server.prepared(folder))
        code, found = ask(database.url, "--find", name)
        assert code == 0 and verdicts(found, RESTART) == ["yes"]
        assert database.run("show tables") == []
    finally:
        stop(running)


def test_sqlite_prepares_nothing_and_needs_not(ask: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    code, said = ask(f"sqlite:///{path}")
    assert code == 2 and "there is no such file" in said and not path.exists()
    sqlite3.connect(path).execute("create table t (v)").connection.close()
    code, found = ask(f"sqlite:///{path}")
    assert code == 0 and verdicts(found, DISK, DISCONNECT) == ["yes", "no"]
    code, said = ask(f"sqlite:///{path}", "--leave")
    assert code == 2 and "cannot prepare a transaction: it has no prepared" in said


# --- queues and logs ------------------------------------------------------------------------------


def test_kafka_is_asked_and_tried(ask: Any) -> None:
    code, found = ask(f"kafka://{kafka()}")
    assert code == 0, found
    tried = "Does it carry out transactions for this user?"
    alone = "Does it keep transactions when a broker is lost?"
    assert verdicts(found, tried, alone) == ["yes", "no"], "it is one broker"
    assert verdicts(found, HELD, HELD_OVER_A_RESTART) == ["yes", "unknown"]
    longest = found["Are its time-outs longer than the snapshot interval?"]
    assert longest["verdict"] == "yes" and "900 s" in longest["meaning"]
    _, found = ask(f"kafka://{kafka()}", "--snapshot-interval", "1 hour")
    assert verdicts(found, "Are its time-outs longer than the snapshot interval?") == ["no"]
    code, said = ask(f"kafka://{kafka()}", "--topic", "nowhere")
    assert code == 2 and "has no topic 'nowhere'" in said


@long
def test_kafka_keeps_a_held_transaction(ask: Any) -> None:
    """Over the end of its producer, and over a broker that is killed."""
    folder = own_folder("kafka")
    running: SharedServer = launch("kafka", folder, kafka_server.prepared(folder))
    url = f"kafka://{running.facts['servers']}"
    try:
        _, found = ask(url)
        assert verdicts(found, HELD, HELD_OVER_A_RESTART) == ["yes", "unknown"]
        name = ask(url, "--leave")
        stop(running, signal.SIGKILL)
        running = launch("kafka", folder, kafka_server.prepared(folder))
        code, found = ask(url, "--find", name)
        assert code == 0 and verdicts(found, HELD_OVER_A_RESTART) == ["yes"]
        code, found = ask(url, "--find", name)
        assert code == 1 and verdicts(found, HELD_OVER_A_RESTART) == ["no"], "it was given up"
        topics = AdminClient({"bootstrap.servers": running.facts["servers"]}).list_topics(
            timeout=10
        )
        assert not [topic for topic in topics.topics if topic.startswith("jet-probe")]
    finally:
        stop(running)


def test_rabbitmq_is_asked_and_tried(ask: Any) -> None:
    queue = rabbitmq()
    again = "Does a message that was not acknowledged come again after a disconnect?"
    ids, durable = (
        "Do its messages have a message_id?",
        "Does the queue survive a restart of the server?",
    )
    code, found = ask(queue.url, "--queue", queue.name)
    assert code == 0 and verdicts(found, again, ids, durable) == ["yes", "unknown", "yes"]
    with queue.channel() as channel:
        channel.basic_publish("", queue.name, b"{}")
        passing = f"{queue.name}-passing"
        channel.queue_declare(passing, auto_delete=False, durable=False)
    code, found = ask(queue.url, "--queue", queue.name)
    assert code == 1 and verdicts(found, ids) == ["no"] and queue.left() == 1
    code, found = ask(queue.url, "--queue", passing)
    assert code == 1 and verdicts(found, durable) == ["no"]
    timeout = "Is its consumer time-out longer than the snapshot interval?"
    _, found = ask(queue.url, "--queue", queue.name, "--snapshot-interval", "1 hour")
    assert verdicts(found, timeout) == ["no"]
    code, said = ask(queue.url, "--queue", "nowhere")
    assert code == 2 and "the queue 'nowhere' of" in said
    code, said = ask(queue.url)
    assert code == 2 and "--queue is missing" in said


@long  # the restarts of databases are not, nor what a RabbitMQ as it runs is asked
def test_rabbitmq_after_a_restart(ask: Any) -> None:
    question = "Does it come again after the server was restarted?"
    folder = own_folder("rabbitmq")
    running = launch("rabbitmq", folder, rabbitmq_server.prepared(folder))
    try:
        queue = rabbitmq_server.new_queue(running)
        name = ask(queue.url, "--leave")
        rabbitmq_server.write_down(running)
        stop(running, signal.SIGKILL)
        code, said = ask(queue.url, "--find", name)
        assert code == 2 and "cannot be read now" in said
        running = launch("rabbitmq", folder, rabbitmq_server.prepared(folder))
        code, found = ask(queue.url, "--find", name)
        assert code == 0 and verdicts(found, question) == ["yes"]
        code, found = ask(queue.url, "--find", name)
        assert code == 1 and verdicts(found, question) == ["no"], "found once, it is gone"
    finally:
        stop(running)


def test_rabbitmqs_kinds_of_queues_and_rights(ask: Any) -> None:
    is_queue = "Does it forget what is acknowledged?"
    stays = "Do messages stay there when the job crashes again and again?"
    may_read = "May the user read the queue?"
    for limit, code_wanted, verdict in ((None, 0, "yes"), (2, 1, "no"), (10, 0, "yes")):
        given = {} if limit is None else {"x-delivery-limit": limit}
        queue = rabbitmq("quorum", **given)
        code, found = ask(queue.url, "--queue", queue.name)
        assert (code, verdicts(found, is_queue, stays)) == (code_wanted, ["yes", verdict]), limit
    stream = rabbitmq("stream")
    code, found = ask(stream.url, "--queue", stream.name)
    assert code == 1 and verdicts(found, is_queue) == ["no"] and list(found) == [is_queue]
    user = f"u-{stream.name}"
    server = rabbitmq_server.the_server()
    rabbitmq_server.control(server, "add_user", user, PASSWORD)
    rabbitmq_server.control(server, "set_permissions", user, "", "", "^nothing$")
    queue = rabbitmq()
    url = f"amqp://{user}:{PASSWORD}@127.0.0.1:{queue.port}/%2F"
    code, found = ask(url, "--queue", queue.name)
    assert code == 1 and verdicts(found, may_read) == ["no"]
    assert "set_permissions" in found[may_read]["cure"]


def test_sqs_is_asked(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """moto's server stands in for SQS."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEY)
    with AwsServer() as server:
        good = new_queue(server, VisibilityTimeout=30)
        code, found = ask(good.url, "--region", REGION)
        assert code == 0 and {one["verdict"] for one in found.values()} == {"yes"}
        _, found = ask(good.url, "--region", REGION, "--snapshot-interval", "12 hours")
        assert verdicts(found, "Does it wait for a snapshot?") == ["no"]
        arn = f"arn:aws:sqs:{REGION}:123456789012:{good.name}"
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": 2})
        bad = new_queue(server, VisibilityTimeout=0, RedrivePolicy=policy)
        code, found = ask(bad.url, "--region", REGION)
        wrong = [question for question, one in found.items() if one["verdict"] == "no"]
        assert code == 1 and wrong == [
            "Is the visibility time-out long enough to be renewed?",
            "Do messages stay there when the job crashes again and again?",
        ]
        short = new_queue(server, fifo=True, MessageRetentionPeriod=3600)
        code, found = ask(short.url, "--region", REGION)
        wrong = [question for question, one in found.items() if one["verdict"] == "no"]
        assert code == 0 and wrong == [
            "Does it keep messages for longer than an outage?",
            "Is it read without waiting?",
        ]
        code, said = ask(f"{good.url}-no", "--region", REGION)
        assert code == 2 and "there is no queue" in said


def test_a_member_of_the_store_is_tried(ask: Any, tmp_path: Path) -> None:
    question = "Can it be used as a member of the store?"
    code, found = ask(f"file://{tmp_path}")
    assert code == 0 and verdicts(found, question) == ["yes"]
    code, said = ask(f"redis://127.0.0.1:{free_port()}/0")
    assert code == 2 and "does not answer" in said


# --- the call -------------------------------------------------------------------------------------


def test_a_table_for_people_says_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "a.db").execute("create table t (v)").connection.close()
    monkeypatch.setenv("COLUMNS", "200")
    done = CliRunner().invoke(app, ["probe", f"sqlite:///{tmp_path}/a.db"])
    assert done.exit_code == 0 and "what it means" in done.stdout and "cure" in done.stdout
    assert "sqlite has no prepared transactions" in done.stdout
    assert "The server supports exactly once" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ftp://host"], "ftp: this kind of server cannot be probed"),
        (["host"], "nothing: this kind of server"),
        (["postgresql://me:hush@host/db"], "the password of postgresql://me@host/db is on the"),
        (["env:NOT_SET"], "the environment variable NOT_SET is not set"),
        (["@/not/there"], "@/not/there: the file cannot be read"),
        (["kafka://h:1", "--option", "x"], "--option: 'x' has no value"),
        (["sqlite:///a", "--leave", "--find", "x"], "--leave and --find exclude each other"),
        (["sqlite:///a", "--find", "'; drop"], "is no name that --leave gives out"),
        (["sqlite:///a", "--snapshot-interval", "soon"], "--snapshot-interval: 'soon' is not a"),
        (["postgresql://me@127.0.0.1:1/db"], "does not do what it is asked"),
        (["kafka://h:1", "--option", "sasl.password=hush"], "sasl.password is given in plain text"),
    ],
)
def test_a_wrong_call_is_a_sentence(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["probe", *words])
    assert done.exit_code == 2 and said in done.stderr and "hush" not in done.output
