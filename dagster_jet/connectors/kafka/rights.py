"""Checks permissions on topics before a start: a later refusal would come too late."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping, Sequence

from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    Troubles,
    admin_library,
    client_library,
    error_of,
    is_lasting,
    is_unsupported,
    said,
)
from dagster_jet.errors import ConfigurationError, SourceUnavailableError

_CALL_S = 5.0


def check_rights(
    cluster: Cluster, wanted: Mapping[str, Sequence[str]], job: str, stage: str
) -> None:
    """Checks the permissions needed per topic: "READ", "WRITE".

    Without access control everything is allowed; a cluster that cannot report it is not checked.

    Raises:
        ConfigurationError: a permission is missing.
        SourceUnavailableError: the cluster does not answer.
    """
    if not wanted:
        return
    library, administration = client_library(), admin_library()
    troubles = Troubles()
    admin = administration.AdminClient(cluster.settings(error_cb=troubles))
    asked = library.TopicCollection(list(wanted))
    described = admin.describe_topics(
        asked, include_authorized_operations=True, request_timeout=_CALL_S
    )
    lacking = []
    try:
        for topic, future in described.items():
            # None: the broker does not report them.
            operations = future.result(_CALL_S).authorized_operations
            if operations is not None:
                have = {operation.name for operation in operations}
                lacking += [f"{right} on {topic!r}" for right in wanted[topic] if right not in have]
    except library.KafkaException as error:
        admin.poll(0)
        raised = error_of(error)
        explained = None if raised is None else troubles.explain(raised)
        if explained is not None and is_unsupported(explained):
            return
        if explained is None or not is_lasting(explained):
            text = error if explained is None else said(explained)
            raise SourceUnavailableError(f"the cluster cannot be reached: {text}.") from None
        lacking.append(said(explained))
    except (TimeoutError, concurrent.futures.TimeoutError):
        raise SourceUnavailableError("the cluster cannot be reached.") from None
    if lacking:
        raise ConfigurationError(
            f"this user may not: {', '.join(lacking)}.",
            job=job,
            stage=stage,
            cure="Grant it to the user of the options.",
        )
