"""Probe of a place as a member of the store, by writing to it."""

from __future__ import annotations

from dagster_jet.core.answers import Answer, answered
from dagster_jet.core.secret import Url, text_of
from dagster_jet.errors import StoreUnwritableError
from dagster_jet.store.members import member_id_of, open_member


def probe(url: Url) -> list[Answer]:
    """Returns the answers about a place. Does not create a place that does not exist.

    Raises:
        ConfigurationError: the URL is not valid for a member.
        StoreUnavailableError: the place does not answer.
    """
    member_id = member_id_of(text_of(url))
    member = open_member(text_of(url))
    refused = None
    try:
        member.ping()
    except StoreUnwritableError as error:
        refused = error
    finally:
        member.close()
    return [
        answered(
            "Can it be used as a member of the store?",
            refused is None,
            yes=f"A value was written to {member_id} and read back. If a server might ignore "
            "conditions of writes, these were tested too.",
            no="" if refused is None else refused.message,
            cure="" if refused is None else refused.cure or "",
            needed=True,
        )
    ]
