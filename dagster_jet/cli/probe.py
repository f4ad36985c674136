"""``dagster-jet probe URL``: checks whether a server supports exactly-once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

import typer

from dagster_jet.cli.options import errors_as_sentences, text_in
from dagster_jet.cli.output import say, show_answers, show_json
from dagster_jet.core.answers import Answer, as_rows, breaks_the_recipe
from dagster_jet.core.durations import to_ms
from dagster_jet.core.secret import Url, holds_password, named, shown, text_of
from dagster_jet.errors import ConfigurationError


@dataclass(frozen=True)
class Asked:
    """Arguments of the command line.

    Attributes:
        url: server to probe; may name a secret.
        interval: snapshot interval of the job.
        queue: RabbitMQ queue.
        topic: Kafka topic.
        options: options of Kafka's client library, or of an Iceberg catalog; values may name
            secrets.
        region: AWS region for SQS.
        endpoint_url: endpoint for SQS.
        storage: `storage_options` of a table's files; values may name secrets.
    """

    url: Url
    interval: timedelta
    queue: str | None = None
    topic: str | None = None
    options: Mapping[str, str] | None = None
    region: str | None = None
    endpoint_url: str | None = None
    storage: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Kind:
    """Probe functions of one kind of server."""

    probe: Callable[[Asked], list[Answer]]
    leave: Callable[[Asked], str] | None = None
    """None: the server holds nothing that a restart could lose."""
    find: Callable[[Asked, str], list[Answer]] | None = None


def probe(
    url: Annotated[
        str,
        typer.Argument(
            help="Of a database (postgresql://, mariadb+pymysql://, sqlite:///), "
            "of Kafka (kafka://host:9092), RabbitMQ (amqp://), an SQS queue (https://), of a table "
            "(delta+s3://bucket/table, delta+file:///table, iceberg://catalog/space.table), or of "
            "a member of the store (file://, redis://, s3://, dynamodb://). One with a password: "
            "env:NAME of a variable, or @FILE."
        ),
    ],
    snapshot_interval: Annotated[
        str, typer.Option(help="Snapshot interval of the job that will use the server.")
    ] = "1 second",
    queue: Annotated[str | None, typer.Option(help="RabbitMQ: the queue to be read.")] = None,
    topic: Annotated[str | None, typer.Option(help="Kafka: a topic to be read or written.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option of Kafka's client, or of an Iceberg catalog: name=value; a secret as "
            "name=env:VARIABLE."
        ),
    ] = None,
    region: Annotated[
        str | None, typer.Option(help="SQS: the region, if the URL has none.")
    ] = None,
    endpoint_url: Annotated[
        str | None, typer.Option(help="SQS: the endpoint, if it is not AWS's.")
    ] = None,
    storage_option: Annotated[
        list[str] | None,
        typer.Option(
            help="Option of the bucket that has a table's files, as storage_options= has it: "
            "name=value, for example endpoint_url=http://host:9000; a secret as name=env:VARIABLE."
        ),
    ] = None,
    leave: Annotated[
        bool,
        typer.Option(
            "--leave",
            help="Write test data that must survive a restart of the server; check it later with "
            "--find.",
        ),
    ] = False,
    find: Annotated[
        str | None,
        typer.Option(
            help="The name that --leave printed: check whether the test data still exists, and "
            "remove it."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Checks whether a server supports exactly-once: reads its settings and rights, and tries the
    rest without leaving anything behind.

    Exit code 1: the default recipe of a source or sink lacks something. 2: the server cannot be
    reached, or the call is wrong.
    """
    with errors_as_sentences():
        asked = Asked(
            _url(url),
            timedelta(milliseconds=to_ms(snapshot_interval, "--snapshot-interval")),
            queue,
            topic,
            dict(_pair(one, "--option") for one in option or ()),
            region,
            endpoint_url,
            dict(_pair(one, "--storage-option") for one in storage_option or ()),
        )
        if leave and find is not None:
            raise ConfigurationError("--leave and --find exclude each other.")
        kind = _kind_of(asked.url)
        if leave:
            _say_what_is_left(kind, asked, as_json=as_json)
            return
        answers = kind.probe(asked) if find is None else _found(kind, asked, find)
    _show(answers, shown(asked.url), as_json=as_json)
    if breaks_the_recipe(answers):
        raise typer.Exit(1)


def _show(answers: list[Answer], server: str, *, as_json: bool) -> None:
    is_good = not breaks_the_recipe(answers)
    if as_json:
        document = {"server": server, "exactly_once": is_good, "answers": as_rows(answers)}
        show_json(document)
        return
    show_answers(answers, title=server)
    say(
        "The server supports exactly once with the default recipe."
        if is_good
        else "The server does not support exactly once with the default recipe: see the answers "
        "that are no."
    )


def _say_what_is_left(kind: _Kind, asked: Asked, *, as_json: bool) -> None:
    url = asked.url
    if kind.leave is None:
        raise _nothing_to_leave(url)
    name = kind.leave(asked)
    if as_json:
        show_json({"server": shown(url), "left": name})
        return
    say(
        f"The test data {name} was written to {shown(url)}. Restart the server, then check it; "
        "the check removes it:"
    )
    say(f"dagster-jet probe {shown(url)} --find {name}")


def _found(kind: _Kind, asked: Asked, name: str) -> list[Answer]:
    if kind.find is None:
        raise _nothing_to_leave(asked.url)
    return kind.find(asked, name)


def _nothing_to_leave(url: Url) -> ConfigurationError:
    return ConfigurationError(
        f"--leave, --find: {shown(url)} has no data that a restart could lose.",
        cure="Use them with a database, Kafka or RabbitMQ.",
    )


def _url(given: str) -> Url:
    """Raises `ConfigurationError` if a password is written out."""
    url = named(text_in(given).strip())
    if holds_password(url) and not given.startswith("@"):
        raise ConfigurationError(
            f"the password of {shown(url)} is on the command line, where every user of this "
            "machine can read it; your shell saves it in its history. Change the password.",
            cure="Put the URL into a variable (env:NAME) or into a file (@FILE).",
        )
    return url


def _pair(given: str, option: str) -> tuple[str, str]:
    name, is_pair, value = given.partition("=")
    if not is_pair:
        raise ConfigurationError(f"{option}: {name!r} has no value.", cure="Write name=value.")
    return name.strip(), value.strip()


# --- kinds of servers -----------------------------------------------------------------------------
# Imported on demand: most need packages of their own.


def _kind_of(url: Url) -> _Kind:
    scheme = urlsplit(text_of(url)).scheme.lower()
    family = scheme.partition("+")[0]
    if family not in _KINDS:
        raise ConfigurationError(
            f"{family or 'nothing'}: this kind of server cannot be probed.",
            cure=f"Use one of {', '.join(f'{known}://' for known in _KINDS)}.",
        )
    return _KINDS[family]()


def _sql() -> _Kind:
    from dagster_jet.connectors.sql import sql_probe as sql

    return _Kind(
        lambda asked: sql.probe(asked.url, asked.interval),
        lambda asked: sql.leave(asked.url),
        lambda asked, name: sql.find(asked.url, name),
    )


def _kafka() -> _Kind:
    from dagster_jet.connectors.kafka import kafka_probe as kafka
    from dagster_jet.connectors.kafka.cluster import Cluster

    def cluster(asked: Asked) -> Cluster:
        servers = text_of(asked.url).partition("://")[2].rstrip("/")
        return Cluster.of(servers, asked.options)

    return _Kind(
        lambda asked: kafka.probe(cluster(asked), asked.interval, asked.topic),
        lambda asked: kafka.leave(cluster(asked)),
        lambda asked, name: kafka.find(cluster(asked), name),
    )


def _rabbitmq() -> _Kind:
    from dagster_jet.connectors.rabbitmq import rabbitmq_probe as rabbitmq

    def probe_it(asked: Asked) -> list[Answer]:
        if asked.queue is None:
            raise ConfigurationError("--queue is missing: the one that a job is to read.")
        return rabbitmq.probe(asked.url, asked.queue, asked.interval)

    return _Kind(
        probe_it,
        lambda asked: rabbitmq.leave(asked.url),
        lambda asked, name: rabbitmq.find(asked.url, name),
    )


def _sqs() -> _Kind:
    from dagster_jet.connectors.sqs import sqs_probe as sqs

    return _Kind(
        lambda asked: sqs.probe(asked.url, asked.interval, asked.region, asked.endpoint_url)
    )


def _delta() -> _Kind:
    from dagster_jet.connectors.delta import delta_probe as delta

    return _Kind(lambda asked: delta.probe(asked.url, asked.storage))


def _iceberg() -> _Kind:
    from dagster_jet.connectors.iceberg import iceberg_probe as iceberg

    return _Kind(lambda asked: iceberg.probe(asked.url, asked.options or {}, asked.storage))


def _member() -> _Kind:
    from dagster_jet.store import probe as member

    return _Kind(lambda asked: member.probe(asked.url))


_KINDS: dict[str, Callable[[], _Kind]] = {
    **dict.fromkeys(("postgresql", "mysql", "mariadb", "sqlite"), _sql),
    "kafka": _kafka,
    **dict.fromkeys(("amqp", "amqps"), _rabbitmq),
    **dict.fromkeys(("https", "http"), _sqs),
    "delta": _delta,
    "iceberg": _iceberg,
    **dict.fromkeys(("file", "redis", "rediss", "s3", "dynamodb"), _member),
}
