"""Checks permissions on topics before a start: a later refusal would come too late."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping, Sequence
from typing import Any

from dagster_jet.connectors.kafka.admin_client import Administration
from dagster_jet.connectors.kafka.cluster import (
    Cluster,
    client_library,
    error_of,
    is_lasting,
    is_unknown_topic,
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
    library = client_library()
    asked = library.TopicCollection(list(wanted))

    def call(client: Any) -> dict[str, Any]:
        described = client.describe_topics(
            asked, include_authorized_operations=True, request_timeout=_CALL_S
        )
        return {topic: future.result(_CALL_S) for topic, future in described.items()}

    admin, lacking = Administration(cluster), []
    try:
        for topic, description in admin.call(call).items():
            # None: the broker does not report them.
            operations = description.authorized_operations
            if operations is not None:
                have = {operation.name for operation in operations}
                lacking += [f"{right} on {topic!r}" for right in wanted[topic] if right not in have]
    except library.KafkaException as error:
        raised = error_of(error)
        explained = None if raised is None else admin.last_error.explain(raised)
        if explained is not None and is_unsupported(explained):
            return
        # The topics were listed: a broker that does not know one hears of it soon.
        if explained is None or is_unknown_topic(explained) or not is_lasting(explained):
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
