"""Members in memory whose places a test can take away, empty, and bring back."""

import uuid

import pytest

from dagster_jet.errors import StoreUnavailableError
from dagster_jet.store import MemoryMember, StoreConfig


class Places:
    """Names of members; what is done to a place all members of that name notice."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        self._suffix = uuid.uuid4().hex
        self.gone: set[str] = set()

    def url(self, name: str) -> str:
        return f"memory://{name}-{self._suffix}"

    def urls(self, names: str) -> tuple[str, ...]:
        return tuple(self.url(name) for name in names)

    def config(self, names: str = "abc", **settings: object) -> StoreConfig:
        return StoreConfig(
            self.urls(names), allow_memory=True, **{"partition_count": 12, **settings}
        )

    def member(self, name: str) -> MemoryMember:
        return MemoryMember(self.url(name).removeprefix("memory://"))

    def take_away(self, name: str) -> None:
        self.gone.add(self.url(name))

    def bring_back(self, name: str) -> None:
        self.gone.discard(self.url(name))

    def empty(self, name: str) -> None:
        self.member(name).forget()


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    places = Places()
    room = MemoryMember._room

    def room_if_there(member: MemoryMember) -> object:
        if member.member_id in places.gone:
            raise StoreUnavailableError(f"the store member {member.member_id} does not answer.")
        return room(member)

    monkeypatch.setattr(MemoryMember, "_room", room_if_there)
    # Members that do not answer are asked several times before they count as gone.
    monkeypatch.setattr("dagster_jet.store.upkeep.administration._PAUSE_SECONDS", 0)
    return places
