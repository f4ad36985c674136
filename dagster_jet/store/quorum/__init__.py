"""The quorum register over real members: the I/O around ``store/register``.

acceptor_on_member.py   one request to one member, by compare-and-set
rounds.py               sends an operation's rounds to all members
client.py               RegisterClient, OwnedRegister: the interface for the rest of the library
rolled_back_members.py  finds members that came back older
movement.py             moves registers to a new set of members
discovery.py            finds the current members of a store
"""

from dagster_jet.store.quorum.client import OwnedRegister, RegisterClient, RegisterValue
from dagster_jet.store.quorum.discovery import Discovered, discover_configuration
from dagster_jet.store.quorum.movement import list_registers, move_register, move_registers
from dagster_jet.store.quorum.rolled_back_members import disown_rolled_back_members
from dagster_jet.store.register import Ballot, Configuration

__all__ = [
    "Ballot",
    "Configuration",
    "Discovered",
    "OwnedRegister",
    "RegisterClient",
    "RegisterValue",
    "discover_configuration",
    "disown_rolled_back_members",
    "list_registers",
    "move_register",
    "move_registers",
]
