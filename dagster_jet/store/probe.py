"""What a place can do as a member of the store: tried by writing to it."""

from __future__ import annotations

from dagster_jet.core.findings import Finding, answered
from dagster_jet.core.secret import Url, text_of
from dagster_jet.errors import StoreUnwritableError
from dagster_jet.store.members import member_id_of, open_member


def probe(url: Url) -> list[Finding]:
    """All that can be asked of it now. Makes no place that is not there.

    Raises:
        ConfigurationError: this is no URL of a member.
        StoreUnavailableError: it does not answer.
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
            "Can it be a member of the store?",
            refused is None,
            yes=f"{member_id} was written to and read back; where a server might ignore the "
            "conditions of a write, they were tried.",
            no="" if refused is None else refused.message,
            cure="" if refused is None else refused.cure or "",
            needed=True,
        )
    ]
