"""One acceptor on one real member: a versioned value, changed by compare-and-set.

The state is read, changed by the pure step and set; after a lost race the cycle starts again.

A member also keeps a *floor*: the lowest configuration in which it still begins a register that it
does not hold. The floor makes a list of registers complete. A change of the members raises the
floor, then lists; a process that begins a register first makes its name appear in the list, then
reads the floor. One of the two always sees the other: the register is in the list, or it is never
begun in the old configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dagster_jet.errors import StoreError, StoreUnavailableError, StoreUnwritableError
from dagster_jet.store.identity import disown
from dagster_jet.store.members.member import Member, Versioned
from dagster_jet.store.register import (
    Accept,
    AcceptorState,
    Choose,
    Read,
    Reply,
    ReplyStatus,
    Request,
    Seal,
    acceptor_step,
)
from dagster_jet.store.values.envelope import BadCopyError, seal, unseal

T = TypeVar("T")

_RACES_MAX = 1_000
_PREFIX = b"register/"
_FLOOR_KEY = b"member/floor"


@dataclass(frozen=True, slots=True)
class Silence:
    """No answer from a member.

    Attributes:
        error: the reason.
        may_have_applied: the request may have been carried out anyway.
    """

    error: StoreError
    may_have_applied: bool


def ask(member: Member, name: str, request: Request, member_id: str) -> Reply | Silence:
    """Send one request for a register to one member; ``member_id`` is its configured name.

    A member that came back older is disowned: for all processes it has then lost its data.

    After a crash inside, the request is carried out or not; at most an empty register is left.
    """
    key = _PREFIX + name.encode()
    # An owner's next write may begin with what it wrote last: the set fails if that is not there
    # any more. Any other answer but "granted, and set" is that of a state that was read.
    own = member.written_last(key) if isinstance(request, Accept) else None
    # A set that lost a race may be one that a proxy has sent twice: then the first has won.
    is_lost = False
    for _ in range(_RACES_MAX):
        try:
            stored = own or member.get_versioned(key)
            state = _state_in(member, name, stored)
            begins = state.configuration < request.configuration
            floor = 0
            if begins and not isinstance(request, Seal | Choose):
                if stored is None and not isinstance(request, Read):
                    listed = member.compare_and_set(key, 0, seal(state.to_bytes()))
                    if not listed:
                        continue
                    stored = Versioned(1, b"")
                floor = floor_of(member)
        except (StoreUnavailableError, StoreUnwritableError) as error:
            return Silence(error, may_have_applied=is_lost)
        new, reply = acceptor_step(state, request, floor, member_id)
        is_read, own = own is None, None
        if not is_read and (new == state or reply.status is not ReplyStatus.GRANTED):
            continue
        if reply.status is ReplyStatus.FORGETFUL:
            disown(member)
        if new == state:
            return reply
        try:
            if member.compare_and_set(key, stored.version if stored else 0, seal(new.to_bytes())):
                return reply
        except (StoreUnavailableError, StoreUnwritableError) as error:
            # Crash window: the member may have applied it before it or the connection broke.
            return Silence(error, may_have_applied=is_lost or not error.was_not_applied)
        is_lost = True
    lost = StoreUnavailableError(
        f"{member.member_id} lost {_RACES_MAX} races for the register {name!r}."
    )
    return Silence(lost, may_have_applied=True)


def state_of(member: Member, name: str) -> AcceptorState:
    """Return a member's state of a register, in any configuration.

    Raises:
        StoreUnavailableError: the member does not answer, or its copy is damaged.
    """
    return _state_in(member, name, member.get_versioned(_PREFIX + name.encode()))


def list_names(member: Member) -> set[str]:
    """Return the name of every register on the member, including empty ones."""
    return {key[len(_PREFIX) :].decode() for key in member.list_versioned(_PREFIX)}


def floor_of(member: Member) -> int:
    """Return the lowest configuration in which the member still begins a register."""
    return _floor_in(member, member.get_versioned(_FLOOR_KEY))


def raise_floor(member: Member, number: int) -> None:
    """Forbid the member to begin registers in configurations below ``number``."""
    for _ in range(_RACES_MAX):
        stored = member.get_versioned(_FLOOR_KEY)
        if _floor_in(member, stored) >= number:
            return
        floor = seal(str(number).encode())
        if member.compare_and_set(_FLOOR_KEY, stored.version if stored else 0, floor):
            return
    raise StoreUnavailableError(f"{member.member_id} lost {_RACES_MAX} races for its floor.")


def _state_in(member: Member, name: str, stored: Versioned | None) -> AcceptorState:
    if stored is None:
        return AcceptorState()
    return _undamaged(
        member, f"the register {name!r}", lambda: AcceptorState.from_bytes(unseal(stored.value))
    )


def _floor_in(member: Member, stored: Versioned | None) -> int:
    if stored is None:
        return 0
    return _undamaged(member, "its floor", lambda: int(unseal(stored.value)))


def _undamaged(member: Member, what: str, read: Callable[[], T]) -> T:
    try:
        return read()
    except BadCopyError as error:
        # Not treated as empty: a member that forgets its promises breaks the quorum.
        raise StoreUnavailableError(
            f"{member.member_id} holds a damaged copy of {what}: {error}."
        ) from error
